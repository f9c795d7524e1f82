"""The HTTP server: socket, connection timeouts and graceful shutdown."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.serving.service import Service

if TYPE_CHECKING:
    import uvicorn

CONNECTIONS = 1000
"""Largest number of concurrent connections; more are refused with 503."""

_LAST_PORT = 65535


def open_listener(host: str, port: int) -> socket.socket:
    """Opens a listening socket.

    Raises:
        SfumatoError: the address is not available.
    """
    try:
        if not 0 <= port <= _LAST_PORT:  # for other numbers, Python would leave a socket open
            raise OverflowError("a port is a number from 0 to 65535")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SfumatoError(
            f"the server cannot listen on `host={host}`, `port={port}` ({reason})", "choose another `port`; 0 for any"
        ) from None


def address(listener: socket.socket) -> str:
    """The URL of the server."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(service: Service) -> uvicorn.Server:
    """Builds the server for `serve`. On shutdown it accepts no more requests, and answers those it has received.

    Raises:
        SfumatoError: the libraries are missing.
    """
    try:
        import uvicorn

        application = service.application()
    except ImportError:
        remedy = "pip install 'sfumato[serve]'"
        raise SfumatoError("sfumato serve needs starlette, uvicorn and python-multipart", remedy) from None

    seconds = service.limits.seconds
    config = uvicorn.Config(
        application,
        http=_protocol(seconds),
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(seconds) + 1,
    )
    return uvicorn.Server(config)


def serve(ready: uvicorn.Server, listener: socket.socket) -> None:
    """Serves until `should_exit`, SIGINT or SIGTERM. SIGTERM ends the process after all requests are answered."""
    with listener, suppress(KeyboardInterrupt):  # uvicorn raises it again after a graceful shutdown
        ready.run(sockets=[listener])


def _protocol(seconds: float) -> Any:
    """uvicorn's protocol with timeouts for receiving a request's header and for sending an answer."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class WithTimeouts(H11Protocol):
        late: Any = None
        unread: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._update_timer()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._update_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_timer()
            self.resume_writing()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self.unread = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            if self.unread is not None:
                self.unread.cancel()
                self.unread = None
            super().resume_writing()

        def _update_timer(self) -> None:
            """Starts the timer for receiving a whole header. Further bytes do not reset it."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._cancel_timer()
            elif self.late is None:
                self.late = self.loop.call_later(seconds, self.transport.close)

        def _cancel_timer(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return WithTimeouts
