"""The HTTP service: paths, handlers and refusals, the API key, and the web page on which users try the model."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import io
import ipaddress
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, regular_file
from sfumato._systems import exposed_mode
from sfumato.report.plots.drawing import stylesheet
from sfumato.runs import Loaded
from sfumato.serving.bodies import (
    ARRAY,
    CONTENT_TYPE,
    Counts,
    Limits,
    Predictor,
    Refused,
    body_of,
    busy,
    discard_rest,
    parse_records,
)

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

SHORTEST = 16


class ApiKey:
    """The key that requests must present.

    Args:
        path: a file that holds the key as its only line and that only its owner can read.

    Raises:
        SfumatoError: the file cannot be read, can be read by others, or is not one line of at least 16 ASCII characters
            without spaces.
    """

    def __init__(self, path: str | Path):
        file, remedy = Path(path), "create one: openssl rand -hex 32 > PATH; chmod 600 PATH"
        with path_errors(f"the API key {file}", remedy, remedy):
            text = regular_file(file).read_text("utf-8", errors="replace").strip()
        if mode := exposed_mode(file):
            raise SfumatoError(f"the API key {file} can be read by others (mode {mode:03o})", f"chmod 600 {file}")
        if len(text) < SHORTEST or len(text.split()) != 1 or not text.isascii():
            raise SfumatoError(f"the API key {file} must be one line of at least {SHORTEST} ASCII characters", remedy)
        self._digest = hashlib.sha256(text.encode()).digest()

    def matches(self, presented: str) -> bool:
        """Whether the presented key is this key, compared in constant time."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)

    def __repr__(self) -> str:
        return "ApiKey(secret)"


def page(answering: Predictor, *, closed: bool) -> tuple[str, str]:
    """Renders the page and its content security policy, which allows the page's own script only and no other host.

    Args:
        closed: whether requests need a key.
    """
    import jinja2

    folder = files("sfumato.serving")
    script = folder.joinpath("page.js").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    statement = answering.loaded.statement.to_dict()
    text = environment.from_string(folder.joinpath("page.html.jinja").read_text("utf-8")).render(
        style=Markup(stylesheet()),
        script=Markup(script),
        sentence=statement["sentence"],
        plain=statement.get("plain", []),
        not_covered=statement.get("not_covered", []),
        of_texts=answering.takes_texts,
        of_numbers=answering.takes_numbers,
        verb="predict" if answering.loaded.embedding is None else "embed",
        closed=closed,
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src blob:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    )
    return text, policy


LOCAL = "localhost"

GONE = 499
"""Status under which a client that disconnected before its answer is counted."""


class Service:
    """An HTTP service for a model, as an ASGI application.

    Args:
        loaded: the model.
        limits: limits of the server.
        key: the key that requests must present; None for an open service.
        local: whether the server listens on a loopback address. Requests must then name a loopback address in their
            Host header, so that a page from another host cannot read answers by DNS rebinding.

    **Guarantee.** Answers are functions of the released model and of what was sent. Nothing that was sent is kept or
    logged. Source: post-processing, Dwork and Roth 2014, Proposition 2.1.
    """

    def __init__(self, loaded: Loaded, *, limits: Limits | None = None, key: ApiKey | None = None, local: bool = False):
        self.limits, self._key, self._local, self.counts = limits or Limits(), key, local, Counts()
        self._answering = Predictor(loaded)
        self._waiting: queue.SimpleQueue[tuple[Sequence[Any], Future[Tensor]] | None] = queue.SimpleQueue()
        self._began: float | None = None

    def application(self) -> Starlette:
        """Builds the application. Needs the libraries of `sfumato[serve]`."""
        import python_multipart  # noqa: F401 - starlette needs it for forms
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        logging.getLogger("python_multipart").setLevel(logging.CRITICAL + 1)  # its messages quote requests
        self._rendered = page(self._answering, closed=self._key is not None)
        handlers: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/": ("GET", self._page),
            "/statement": ("GET", self._statement),
            "/healthz": ("GET", self._alive),
            "/readyz": ("GET", self._readiness),
            "/metrics": ("GET", self._metrics),
            "/predict": ("POST", self._predict),
            "/embed": ("POST", self._embed),
        }
        routes = [
            Route(path, self._answered(handler), methods=[method]) for path, (method, handler) in handlers.items()
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: self._unknown})
        app.router.redirect_slashes = False  # a redirect would go to any host that the request names
        return app

    def _answered(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Wraps a handler: refusals become one line of JSON, and requests are counted."""

        async def answered(request: Request) -> Response:
            from starlette.requests import ClientDisconnect
            from starlette.responses import Response

            began = time.perf_counter()
            try:
                if self._local:
                    require_local(request.headers.get("host", LOCAL))
                response = await handler(request)
            except ClientDisconnect:
                response = Response(status_code=GONE)
            except SfumatoError as error:
                response = await _refusal(request, error, self.limits.seconds)
            except Exception as error:
                trace = error.__traceback__
                while trace is not None and trace.tb_next is not None:
                    trace = trace.tb_next
                where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
                print(f"error: {type(error).__name__} at {where}", file=sys.stderr)  # its message might quote a record
                response = await _refusal(
                    request, Refused(500, "the server failed", "contact its operator"), self.limits.seconds
                )
            self.counts.requests[request.url.path, response.status_code] += 1
            self.counts.seconds += time.perf_counter() - began
            return response

        return answered

    async def _unknown(self, request: Request, error: Any) -> Response:
        self.counts.requests["other", error.status_code] += 1
        problem = f"{request.method[:20]} is not supported for this path"
        refusal = Refused(error.status_code, problem, "POST to /predict or /embed")
        return await _refusal(request, refusal, self.limits.seconds)

    async def _predict(self, request: Request) -> Response:
        self._require_key(request)
        if self._answering.loaded.embedding is not None:
            raise SfumatoError("the model gives embeddings, not labels", "POST to /embed")
        rows = await self._rows(request)
        if _wants_array(request):
            return _array(rows)
        return _json({"predictions": [self._answering.labelled(row) for row in rows.tolist()]})

    async def _embed(self, request: Request) -> Response:
        self._require_key(request)
        if self._answering.loaded.embedding is None:
            raise SfumatoError("the model is a classifier", "POST to /predict")
        rows = await self._rows(request)
        return _array(rows) if _wants_array(request) else _json({"embeddings": rows.tolist()})

    async def _rows(self, request: Request) -> Tensor:
        """The model's outputs for the records of a request, (n, classes) or (n, D)."""
        if self.counts.open >= self.limits.queue:
            raise busy(f"{self.counts.open} requests are waiting")
        self.counts.open += 1
        transform, kind = self._answering.loaded.transform, self._answering
        kinds = {"takes_texts": kind.takes_texts, "takes_numbers": kind.takes_numbers, "is_one": transform.is_one}
        try:
            async with body_of(request, self.counts, self.limits) as body:
                records = await parse_records(request, body, **kinds)
                async with asyncio.timeout(self.limits.seconds):
                    answer = Future[Tensor]()
                    self._waiting.put((records, answer))
                    rows = await asyncio.wrap_future(answer)
        except TimeoutError:
            raise busy(f"there was no answer within {self.limits.seconds:g} s") from None
        finally:
            self.counts.open -= 1
        self.counts.records += len(rows)
        return rows

    @asynccontextmanager
    async def _lifespan(self, application: Starlette) -> AsyncIterator[None]:
        # A daemon thread, so that a forward pass that hangs does not keep the process alive.
        threading.Thread(target=self._run_model, name="sfumato-model", daemon=True).start()
        yield
        self._waiting.put(None)

    def _run_model(self) -> None:
        """Answers the waiting requests one after the other."""
        while (request := self._waiting.get()) is not None:
            records, answer = request
            self._began = time.monotonic()
            with suppress(InvalidStateError):  # the request was abandoned
                try:
                    rows = self._answering.rows(records, answer.cancelled)
                except Exception as error:  # it fails this request only
                    answer.set_exception(error)
                else:
                    answer.set_result(rows)
            self._began = None

    @property
    def _is_alive(self) -> bool:
        """Whether the model has not exceeded the timeout."""
        return self._began is None or time.monotonic() - self._began <= self.limits.seconds

    def _require_key(self, request: Request) -> None:
        if self._key is None:
            return
        scheme, _, presented = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._key.matches(presented.strip()):
            raise Refused(401, "the key is missing or wrong", "send the header Authorization: Bearer KEY")

    async def _page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        text, policy = self._rendered
        return HTMLResponse(text, headers={"content-security-policy": policy, "x-content-type-options": "nosniff"})

    async def _statement(self, request: Request) -> Response:
        return _json(self._answering.loaded.statement.to_dict())

    async def _alive(self, request: Request) -> Response:
        if not self._is_alive:
            raise busy(f"the model has taken more than {self.limits.seconds:g} s")
        return _json({"status": "alive"})

    async def _readiness(self, request: Request) -> Response:
        if not self._is_alive or self.counts.open >= self.limits.queue:
            raise busy("the queue is full, or the model takes too long")
        return _json({"status": "ready"})

    async def _metrics(self, request: Request) -> Response:
        from starlette.responses import Response

        self._require_key(request)
        return Response(self.counts.text(), media_type=CONTENT_TYPE)


def is_local(host: str) -> bool:
    """Whether a host is a loopback address, which only this machine can reach.

    >>> is_local("localhost"), is_local("127.0.0.5"), is_local("::1"), is_local("0.0.0.0"), is_local("rebound.example")
    (True, True, True, False, False)
    """
    try:
        return host.lower() == LOCAL or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_local(host: str) -> None:
    """Refuses a Host header that is not a loopback address. Any port is accepted, since tunnels change the port."""
    match = re.fullmatch(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?", host)
    if match is None or not is_local(match[1] or match[2]):
        raise Refused(421, "the Host header names another host", "send it to localhost, or serve on another `host`")


def _json(data: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(data, status, headers)


def _wants_array(request: Request) -> bool:
    return request.headers.get("accept", "").strip().lower() == ARRAY


def _array(rows: Tensor) -> Response:
    """Rows in the format of `numpy.save`, float32."""
    from starlette.responses import Response

    file = io.BytesIO()
    np.save(file, rows.numpy(), allow_pickle=False)
    return Response(file.getvalue(), media_type=ARRAY)


async def _refusal(request: Request, error: SfumatoError, seconds: float) -> Response:
    """The refusal as one line of JSON. Discards the rest of the request and closes the connection."""
    from starlette.requests import ClientDisconnect

    status, headers = (error.status, error.headers) if isinstance(error, Refused) else (400, {})
    try:
        await discard_rest(request, seconds)
    except ClientDisconnect:
        status = GONE
    return _json({"error": " ".join(str(error).split())}, status, {**headers, "connection": "close"})
