"""The server: a socket, connections that may not dawdle, and an end that answers what was begun."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.serving.service import Service, missing

if TYPE_CHECKING:
    import uvicorn

CONNECTIONS = 1000
"""At once; more are told to come again."""

GRACE = 0.5
"""Seconds that a server which is to end still takes what clients have sent already."""

_LAST_PORT = 65535


def listening(host: str, port: int) -> socket.socket:
    """A socket on which clients may call already. Errors: `SfumatoError` where it cannot be had."""
    try:
        if not 0 <= port <= _LAST_PORT:  # for which Python leaves a socket open
            raise OverflowError("a port is a number from 0 to 65535")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SfumatoError(
            f"the server cannot listen on `host={host}`, `port={port}` ({reason})", "choose another `port`; 0 for any"
        ) from None


def address(listener: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(service: Service) -> uvicorn.Server:
    """The server, ready to run (`serve`). At its end it takes no more requests, and answers those that it has.

    Errors: `SfumatoError` where the libraries are missing.
    """
    application = service.application()
    try:
        import uvicorn
    except ImportError:
        raise missing() from None

    class Graceful(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await grace()
            await super().shutdown(sockets)

    seconds = service.limits.seconds
    config = uvicorn.Config(
        application,
        http=_patient(seconds),
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
    return Graceful(config)


async def grace() -> None:
    """While it lasts, what clients have sent already is still taken."""
    await asyncio.sleep(GRACE)


def serve(ready: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until `should_exit`, SIGINT or SIGTERM; the latter ends the process once all is answered."""
    with listener, suppress(KeyboardInterrupt):  # which uvicorn raises again after its orderly end
        ready.run(sockets=[listener])


def _patient(seconds: float) -> Any:
    """uvicorn's protocol, which waits without end for a request's head and for an answer to be read, with an end."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        late: Any = None
        unread: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
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

        def _watch(self) -> None:
            """A connection without a whole head has so long to bring it, however often it brings a byte."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()
            elif self.late is None:
                self.late = self.loop.call_later(seconds, self.transport.close)

        def _rest(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return Patient
