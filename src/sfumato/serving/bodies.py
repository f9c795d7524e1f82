"""A request's records and answers: its body is read within limits and parsed, and the model is run on it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib import format
from torch import Tensor
from torch.nn.functional import normalize

from sfumato._checks import SfumatoError, parse_json, positive, positive_integer
from sfumato.data import FeatureTransform, Tokens
from sfumato.models.losses import is_exclusive
from sfumato.runs import Loaded

if TYPE_CHECKING:
    from starlette.requests import Request

ARRAY = "application/x-npy"
"""The content type of an array written by `numpy.save`."""

RAW = ("image/", "application/octet-stream", "application/dicom")


BODIES = 16
"""Memory limit for all request bodies, as a multiple of the largest body."""
BATCH = 64
"""Largest number of records in one pass through the model."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Args:
        megabytes: largest body of a request, in units of 10^6 bytes.
        seconds: timeout for sending a request, and for answering it.
        queue: largest number of requests that wait or are answered; more are refused with "send it again later".

    Raises:
        SfumatoError: a limit is out of range.

    >>> Limits(megabytes=10).body, Limits(megabytes=10).held
    (10000000, 160000000)
    """

    megabytes: float = 10
    seconds: float = 30
    queue: int = 512

    def __post_init__(self):
        positive(max_body=self.megabytes, timeout=self.seconds)
        positive_integer(queue=self.queue)

    @property
    def body(self) -> int:
        """Largest size of one body, in bytes."""
        return int(1e6 * self.megabytes)

    @property
    def held(self) -> int:
        """Largest total size of the bodies in memory, in bytes."""
        return BODIES * self.body


class Refused(SfumatoError):  # noqa: N818 - in HTTP a refusal is a response
    """Refusal of a request.

    Args:
        status: HTTP status.
        problem, remedy: as for `SfumatoError`.
    """

    def __init__(self, status: int, problem: str, remedy: str):
        super().__init__(problem, remedy)
        self.status = status

    def __reduce__(self):
        return type(self), (self.status, self.problem, self.remedy)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response: `retry-after` for 503, `www-authenticate` for 401."""
        by_status = {503: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}
        return by_status.get(self.status, {})


def busy(problem: str) -> Refused:
    """The refusal of a request while the server is overloaded."""
    return Refused(503, problem, "send it again later")


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Counts:
    """Counts since the server started, for Prometheus. They hold nothing about contents.

    Args:
        requests: number of requests by path and status.
        seconds: total duration of all requests.
        records: number of answered records.
        open: number of requests that wait or are answered.
        held: bytes of request bodies in memory.
    """

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: float = 0.0
    records: int = 0
    open: int = 0
    held: int = 0

    def text(self) -> str:
        """All counts in Prometheus' text format, version 0.0.4."""
        by_status = "\n".join(
            f'sfumato_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        )
        return f"""\
# HELP sfumato_requests_total Requests by path and status.
# TYPE sfumato_requests_total counter
{by_status}
# HELP sfumato_request_seconds_total Seconds from a request's header to its answer.
# TYPE sfumato_request_seconds_total counter
sfumato_request_seconds_total {self.seconds:g}
# HELP sfumato_records_total Answered records.
# TYPE sfumato_records_total counter
sfumato_records_total {self.records}
# HELP sfumato_open_requests Requests that wait or are answered.
# TYPE sfumato_open_requests gauge
sfumato_open_requests {self.open}
# HELP sfumato_held_bytes Bytes of request bodies in memory.
# TYPE sfumato_held_bytes gauge
sfumato_held_bytes {self.held}
"""


@asynccontextmanager
async def body_of(request: Request, counts: Counts, limits: Limits) -> AsyncIterator[bytes]:
    """Reads the body of a request. Within the context, its size counts towards the memory limit.

    **Guarantee.** At most `limits.body` bytes of one request and `limits.held` bytes of all requests are kept,
    whatever size a client declares.

    Raises:
        Refused: status 413 for a body that is too large, 408 for a timeout, 503 if the memory limit is reached.
    """
    too_large = Refused(413, f"the body is larger than {limits.megabytes:g} MB", "send a smaller image, or fewer")
    if int(request.headers.get("content-length", "0")) > limits.body:  # the server has checked that it is a number
        raise too_large
    pieces, size = [], 0
    try:
        try:
            async with asyncio.timeout(limits.seconds):
                async for piece in request.stream():
                    if size + len(piece) > limits.body:
                        raise too_large
                    if counts.held + len(piece) > limits.held:
                        raise busy("other requests use all of the memory limit")
                    size += len(piece)
                    counts.held += len(piece)
                    pieces.append(piece)
        except TimeoutError:
            raise Refused(408, f"the body took more than {limits.seconds:g} s", "send it faster") from None
        yield b"".join(pieces)
    finally:
        counts.held -= size


async def discard_rest(request: Request, seconds: float) -> None:
    """Reads and discards the rest of a refused request, for at most `seconds`, so that the client reads the refusal."""
    if "expect" in request.headers:  # the client waits for permission to send
        return
    with suppress(TimeoutError, RuntimeError):  # RuntimeError: the stream has already ended
        async with asyncio.timeout(seconds):
            async for _ in request.stream():
                pass


async def parse_records(
    request: Request, content: bytes, *, takes_texts: bool, takes_numbers: bool, is_one: Callable[[Any], bool]
) -> list[Any]:
    """Parses the images or texts in a body, by its content type.

    Args:
        is_one: whether an array is a single image.

    Raises:
        Refused: status 415 for an unsupported content type, 400 for a body that does not match its type.
    """
    name = "texts" if takes_texts else "images"
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        records = _from_json(content, name, numeric=takes_numbers)
    elif kind == "multipart/form-data" and not takes_texts:
        records = await _from_form(request, content)
    elif kind == ARRAY and not takes_texts:
        records = _from_array(content, is_one)
    elif kind.startswith(RAW) and not takes_texts:
        records = [content]
    else:
        forms = "JSON" if takes_texts else f"JSON, multipart/form-data, {ARRAY} or the image itself (image/png)"
        raise Refused(415, f"the content type {kind[:60]!r} is not supported", f"send {forms}")
    if not records:
        raise Refused(400, f"there are no {name} in the request", "send at least one")
    return records


def _from_json(content: bytes, name: str, *, numeric: bool) -> list[Any]:
    example = '{"texts": [[12, 7]]}' if numeric else f'{{"{name}": ["..."]}}'

    def check(holds: bool, problem: str) -> None:
        if not holds:
            raise Refused(400, problem, f"send {example}")

    data: Any = None
    try:
        data = parse_json(content)
    except (ValueError, UnicodeDecodeError):
        check(False, "the body is not JSON")
    whole = isinstance(data, dict) and set(data) == {name} and isinstance(data[name], list)
    check(whole, f"the JSON must be an object with one field, {name}, a list")
    for index, entry in enumerate(data[name]):
        if numeric:
            right = isinstance(entry, list) and all(type(one) is int and not abs(one) >> 62 for one in entry) and entry
            check(bool(right), f"texts[{index}] is not a list of integers")
        else:
            check(isinstance(entry, str), f"{name}[{index}] is not a string")
    if name == "texts":
        return [np.array(entry, dtype=np.int64) for entry in data[name]] if numeric else data[name]
    try:
        return [base64.b64decode("".join(entry.split()), validate=True) for entry in data[name]]
    except (binascii.Error, ValueError):
        raise Refused(400, "an image in the JSON is not base64", "encode the bytes of the image file") from None


def _from_array(content: bytes, is_one: Callable[[Any], bool]) -> list[np.ndarray]:
    """The images in an array (N, H, W, C) or (N, H, W), or a single one (H, W) or (H, W, C), as views of the body.

    `numpy.load` is not used, because it allocates whatever size the header declares.
    """
    file = io.BytesIO(content)
    try:
        old = format.read_magic(file) == (1, 0)
        shape, by_column, dtype = (format.read_array_header_1_0 if old else format.read_array_header_2_0)(file)
        array = np.frombuffer(content, dtype, offset=file.tell()).reshape(shape, order="F" if by_column else "C")
    except Exception:  # reading a header raises errors of many types
        raise Refused(400, "the body is not an array of images", "send the output of numpy.save") from None
    return [array] if is_one(array) else list(array) if array.size else []


async def _from_form(request: Request, content: bytes) -> list[bytes]:
    from starlette.formparsers import MultiPartException, MultiPartParser

    class InMemory(MultiPartParser):
        spool_max_size = len(content) + 1  # never writes a file to disk

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    try:
        form = await InMemory(request.headers, pieces(), max_files=1000, max_fields=10).parse()  # type: ignore[arg-type]
    except (MultiPartException, KeyError, ValueError) as error:
        reason = getattr(error, "message", "it has no boundary")
        raise Refused(400, f"the form cannot be read ({reason})", "send files as multipart/form-data") from None
    try:
        return [await upload.read() for _, upload in form.multi_items() if not isinstance(upload, str)]
    finally:
        await form.close()


THRESHOLD = 0.5
"""Score from which a multilabel model predicts a label."""


class Predictor:
    """Answers requests with a loaded model.

    Args:
        loaded: the model, as returned by `sfumato.load`.

    Raises:
        SfumatoError: the model takes stored features, which clients cannot send.
    """

    def __init__(self, loaded: Loaded):
        if isinstance(loaded.transform, FeatureTransform):
            raise SfumatoError(
                "the model takes features of a backbone that is not in its file", "serve a model of images or texts"
            )
        self.loaded, self._transform = loaded, loaded.transform
        self.takes_texts = isinstance(loaded.transform, Tokens)
        self.takes_numbers = isinstance(loaded.transform, Tokens) and loaded.transform.tokenizer == "numbers"

    def rows(self, records: Sequence[Any], is_abandoned: Callable[[], bool]) -> Tensor:
        """The rows (n, classes) of probabilities or (n, D) of embeddings for the records of a request.

        Args:
            is_abandoned: whether no client waits for the answer any more. The rest of the records is then not read.

        **Guarantee.** Answers are functions of the released model and of what was sent. The model's guarantee covers
        anything computed from any number of answers.
        """
        stored = self._stored(records, is_abandoned)
        parts = []
        while batch := list(islice(stored, BATCH)):
            parts.append(self._rows(self._transform(np.stack(batch))))
        return torch.cat(parts)

    def _stored(self, records: Sequence[Any], is_abandoned: Callable[[], bool]) -> Iterator[np.ndarray]:
        """Yields the records as a source would store them."""
        for number, record in enumerate(records):
            if is_abandoned():
                raise busy("the request has timed out")
            try:
                yield self._transform.to_stored(record)
            except SfumatoError as error:
                which = f"record {number} of the request: " if len(records) > 1 else ""
                raise SfumatoError(f"{which}{error.problem}", error.remedy) from None

    def _rows(self, inputs: Tensor) -> Tensor:
        """The scores or embeddings of inputs (n, ...)."""
        with torch.inference_mode():
            outputs = self.loaded.outputs(inputs)
            return (
                normalize(outputs, dim=1) if self.loaded.embedding is not None else self.loaded.reading.scores(outputs)
            )

    def labelled(self, row: Sequence[float]) -> dict[str, Any]:
        """Labels and scores from probabilities (classes,), in the format of `sfumato predict --json`."""
        scores = dict(zip(self.loaded.classes, row, strict=True))
        if not is_exclusive(self.loaded.loss):
            return {"labels": [name for name, score in scores.items() if score >= THRESHOLD], "scores": scores}
        best = max(scores, key=scores.__getitem__)
        return {"label": best, "score": scores[best], "scores": scores}
