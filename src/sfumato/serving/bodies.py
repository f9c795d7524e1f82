"""The body of a request: read piece by piece within its bounds, and taken apart into records."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format

from sfumato._checks import parse_json
from sfumato.serving.counts import Counts
from sfumato.serving.limits import Limits, Refused, busy

if TYPE_CHECKING:
    from starlette.requests import Request

ARRAY = "application/x-npy"
"""The content type of an array as `numpy.save` writes it."""

RAW = ("image/", "application/octet-stream", "application/dicom")


@contextmanager
def bounded(counts: Counts, limits: Limits) -> Iterator[Body]:
    """The body of one request, which counts among those in memory until this is over."""
    body = Body(counts, limits)
    try:
        yield body
    finally:
        counts.held -= body.size


class Body:
    """What a client sends.

    **Guarantee.** Never are more than `limits.body` bytes of one request, or `limits.held` of all, kept, whatever a
    client declares.
    """

    def __init__(self, counts: Counts, limits: Limits):
        self._counts, self._limits, self.size = counts, limits, 0

    async def read(self, request: Request) -> bytes:
        """All of it. Errors: `Refused` with 413 where it is too large, 408 too slow, 503 where memory is used up."""
        declared = request.headers.get("content-length", "0")
        if int(declared) > self._limits.body:  # which the server has checked to be digits
            raise self._too_large()
        pieces = []
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for piece in request.stream():
                    if self.size + len(piece) > self._limits.body:
                        raise self._too_large()
                    if self._counts.held + len(piece) > self._limits.held:
                        raise busy("other requests fill the memory")
                    self.size += len(piece)
                    self._counts.held += len(piece)
                    pieces.append(piece)
        except TimeoutError:
            raise Refused(408, f"the body took more than {self._limits.seconds:g} s", "send it faster") from None
        return b"".join(pieces)

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self._limits.megabytes:g} MB", "send a smaller image, or fewer")


async def thrown_away(request: Request, seconds: float) -> None:
    """Read what a refused client still sends, for so long, and keep none of it: then it reads why it was refused."""
    if "expect" in request.headers:  # it waits to be told whether to send
        return
    with suppress(TimeoutError, RuntimeError):  # the latter where the stream has ended already
        async with asyncio.timeout(seconds):
            async for _ in request.stream():
                pass


async def records_of(
    request: Request, content: bytes, *, of_texts: bool, of_numbers: bool, is_one: Callable[[Any], bool]
) -> list[Any]:
    """The images or texts in a body, by its content type; `is_one` says whether an array is a single image.

    Errors: `Refused` with 415 for another content type than these, 400 for what is not as its type says.
    """
    name = "texts" if of_texts else "images"
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        found = _of_json(content, name, of_numbers=of_numbers)
    elif kind == "multipart/form-data" and not of_texts:
        found = await _of_form(request, content)
    elif kind == ARRAY and not of_texts:
        found = _of_array(content, is_one)
    elif kind.startswith(RAW) and not of_texts:
        found = [content]
    else:
        forms = "JSON" if of_texts else f"JSON, multipart/form-data, {ARRAY} or the image itself (image/png)"
        raise Refused(415, f"the content type {kind[:60]!r} is not read", f"send {forms}")
    if not found:
        raise Refused(400, f"there are no {name} in the request", "send one at least")
    return found


def _of_json(content: bytes, name: str, *, of_numbers: bool) -> list[Any]:
    of_texts, example = name == "texts", f'{{"{name}": ["..."]}}'
    try:
        data = parse_json(content)
    except (ValueError, UnicodeDecodeError):
        raise Refused(400, "the body is no JSON", f"send {example}") from None
    if not isinstance(data, dict) or set(data) != {name} or not isinstance(data[name], list):
        raise Refused(400, f"the JSON is no object with {name} alone, a list", f"send {example}")
    if of_numbers:
        return [_row(place, one) for place, one in enumerate(data[name])]
    for place, one in enumerate(data[name]):
        if not isinstance(one, str):
            raise Refused(400, f"number {place} of {name} is no string", f"send {example}")
    if of_texts:
        return data[name]
    try:
        return [base64.b64decode("".join(one.split()), validate=True) for one in data[name]]
    except (binascii.Error, ValueError):
        raise Refused(400, "an image in the JSON is not in base64", "encode the bytes of its file") from None


def _of_array(content: bytes, is_one: Callable[[Any], bool]) -> list[np.ndarray]:
    """The images (N, H, W, C) or (N, H, W) of an array, or a single one (H, W) or (H, W, C), as views of what was sent.

    numpy's own `load` makes room for whatever a header declares.
    """
    file = io.BytesIO(content)
    try:
        old = format.read_magic(file) == (1, 0)
        shape, by_column, dtype = (format.read_array_header_1_0 if old else format.read_array_header_2_0)(file)
        found = np.frombuffer(content, dtype, offset=file.tell()).reshape(shape, order="F" if by_column else "C")
    except Exception:  # the reading of headers raises a dozen types
        raise Refused(400, "the body is no array of images", "send what numpy.save writes") from None
    return [found] if is_one(found) else list(found) if found.size else []


def _row(place: int, given: Any) -> Any:
    if not isinstance(given, list) or any(type(one) is not int or abs(one) >> 62 for one in given) or not given:
        raise Refused(400, f"number {place} of texts is no list of whole numbers", 'send {"texts": [[12, 7]]}')
    return np.array(given, dtype=np.int64)


async def _of_form(request: Request, content: bytes) -> list[bytes]:
    from starlette.formparsers import MultiPartException, MultiPartParser

    class InMemory(MultiPartParser):
        spool_max_size = len(content) + 1  # never a file on the disk

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    try:
        form = await InMemory(request.headers, pieces(), max_files=1000, max_fields=10).parse()  # type: ignore[arg-type]
    except (MultiPartException, KeyError, ValueError) as error:
        reason = getattr(error, "message", "it has no boundary")
        raise Refused(400, f"the form cannot be read ({reason})", "send files as multipart/form-data") from None
    try:
        return [await one.read() for _, one in form.multi_items() if not isinstance(one, str)]
    finally:
        await form.close()
