"""Images for prediction: paths, bytes, open files, Pillow images, or arrays; one or several.

All forms of an image give the same pixels, those that a source would read from its file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from PIL import Image, JpegImagePlugin

from sfumato._checks import SfumatoError
from sfumato.data.images.decoding import decode, image_errors, prepare, quiet_decoder, read_bytes
from sfumato.data.images.levels import Levels
from sfumato.data.paths import expanded

Picture = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | np.ndarray
"""Accepted forms of one image."""

_FORMS = "give a path, bytes, an open binary file, an image of Pillow, or an array of uint8"


def is_one(images: Picture | Sequence[Picture], *, channels: int = 3) -> bool:
    """Whether this is a single image rather than several.

    An array with three dimensions is one image if its last dimension is at most 4, the channels; otherwise it is
    several grey images, (N, H, W). For colour models (3, H, W) counts as one image, so that leading channels are not
    mistaken for three images.

    >>> is_one(np.zeros((8, 8, 3))), is_one(np.zeros((2, 8, 8, 3))), is_one(["a.png"]), is_one(np.zeros((200, 8, 8)))
    (True, False, False, False)
    """
    if isinstance(images, np.ndarray):
        if images.dtype.kind in "UO":  # an array of paths
            return images.ndim == 0
        greys = images.ndim == 3 and images.shape[2] not in (1, 2, 3, 4) and (images.shape[0] != 3 or channels == 1)
        return images.ndim != 4 and not greys
    one = isinstance(images, (str, os.PathLike, bytes, bytearray, memoryview, torch.Tensor)) or hasattr(images, "read")
    return one or not isinstance(images, Iterable)


class Reader(Protocol):
    """Converts given records to model inputs: `Transform`, `FeatureTransform` and `Tokens`."""

    def is_one(self, given: Any, /) -> bool:
        """Whether this is a single record rather than several."""
        ...

    def read(self, given: Any, /) -> torch.Tensor:
        """The model input of one record."""
        ...


def read_each(reader: Reader, given: Any) -> Iterator[torch.Tensor]:
    """Yields the model inputs of one or several records.

    Errors: `SfumatoError`, with the position of the record among several.
    """
    if reader.is_one(given):
        yield reader.read(given)
        return
    for place, one in enumerate(given):
        try:
            yield reader.read(one)
        except SfumatoError as error:
            if isinstance(one, (str, os.PathLike)):  # already named in the error
                raise
            raise SfumatoError(f"input {place}: {error.problem}", error.remedy) from None


def pixels_of(image: Picture, *, size: int, channels: int, levels: Levels | None) -> np.ndarray:
    """One image as uint8 (size, size, channels), by the rule of `decoding.prepare`.

    A large JPEG is decoded at reduced size. Its pixel array, or an image that Pillow has already decoded, may therefore
    give values that differ by a few of 255.
    """
    form: dict[str, Any] = {"size": size, "channels": channels, "levels": levels}
    with quiet_decoder():
        if isinstance(image, np.ndarray):
            return prepare(_to_image(image, levels), size=size, channels=channels)
        if isinstance(image, (str, os.PathLike)):
            path = expanded(image)
            return decode(read_bytes(path), path, **form)
        if isinstance(image, Image.Image):
            name = Path(getattr(image, "filename", "") or "of Pillow")
            with image_errors(name):
                packed = _packed(image)
                return prepare(image, **form) if packed is None else decode(packed, name, **form)
        content, name = _content(image)
        return decode(content, Path(name), **form)


def _packed(image: Image.Image) -> bytes | None:
    """The file of a JPEG that Pillow has opened and not unpacked yet; None of any other image."""
    if not (isinstance(image, JpegImagePlugin.JpegImageFile) and image.tile):
        return None
    file: Any = image.fp
    if file is None or file.closed:
        raise SfumatoError(
            f"image {image.filename!r} was closed before it was read", "give its path, or call load() before it closes"
        )
    place = file.tell()
    file.seek(0)  # where Pillow takes every file to begin
    content = file.read()
    file.seek(place)
    return content


def _to_image(image: np.ndarray, levels: Levels | None) -> Image.Image:
    """An array (H, W) or (H, W, C) as an 8-bit image. The last of 2 or 4 channels is transparency."""
    grey = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 1)
    if not image.size or not (grey or (image.ndim == 3 and image.shape[2] in (2, 3, 4))):
        raise SfumatoError(
            f"image is an array of shape {image.shape}; it must be (H, W), (H, W, 1), (H, W, 3) or, with "
            "transparency, (H, W, 2) or (H, W, 4)",
            "move the channels to the end with numpy.moveaxis(image, 0, -1), or give several images as (N, H, W, C)",
        )
    native = image.astype(image.dtype.newbyteorder("="), copy=False)
    if levels is not None and native.dtype in (np.uint16, np.int16) and (grey or image.shape[2] == 3):
        native = levels.apply(native, "image")
    if np.issubdtype(native.dtype, np.floating) and native.min() >= 0 and native.max() <= 1:
        native = np.rint(255 * native.astype(np.float64)).astype(np.uint8)  # like images in archives
    if native.dtype != np.uint8:
        raise SfumatoError(
            f"image is an array of {image.dtype}",
            "give uint8 from 0 (black) to 255 (white), or real numbers from 0 to 1",
        )
    return Image.fromarray(np.ascontiguousarray(native.reshape(image.shape[:2]) if grey else native))


def _content(image: bytes | bytearray | memoryview | IO[bytes]) -> tuple[bytes, str]:
    """The bytes of an image, and its name in errors."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image), f"of {len(image)} bytes"
    if isinstance(image, torch.Tensor):
        raise SfumatoError(
            f"image is a tensor of shape {tuple(image.shape)}",
            "give it as an array with the channels at the end, such as image.permute(1, 2, 0).numpy(), or "
            "image.numpy() without channels",
        )
    if isinstance(image, io.TextIOBase):
        raise SfumatoError("image is a file opened in text mode", f'open it with "rb", or {_FORMS}')
    name = str(getattr(image, "name", "of an open file"))
    try:
        content = image.read() if hasattr(image, "read") else None
    except (OSError, ValueError) as error:  # the latter of a file that is closed
        raise SfumatoError(f"image {name!r} cannot be read ({error})", "open it again, or give its path") from None
    if content == b"":
        raise SfumatoError(f"image {name!r} is empty or was already read", "rewind it with seek(0)")
    if not isinstance(content, bytes):
        raise SfumatoError(f"image is a {type(image).__name__}", _FORMS)
    return content, name
