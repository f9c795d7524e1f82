"""From image files to uint8 arrays: one rule for every format, colour space and size. Which files are images: by their
names those that are commonly called so, and by content what Pillow opens."""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, PngImagePlugin

from sfumato._checks import SfumatoError
from sfumato._files import refuse_special
from sfumato.data import paths
from sfumato.data.images.levels import Levels, check_depth, deep_grey_in_eight_bits, is_deep_grey, load
from sfumato.data.paths import UnreadableError, refuse_too_large, too_large
from sfumato.data.readers import dicom

_ALWAYS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pbm"),
    *(".jp2", ".j2k", ".jpx", ".avif", ".heic", ".heif", ".jxl"),
    *dicom.EXTENSIONS,
)
"""Endings of images whatever is installed: where such a file cannot be read it is refused, and not passed over."""

PngImagePlugin.MAX_TEXT_CHUNK = max(PngImagePlugin.MAX_TEXT_CHUNK, 1 << 24)
# Bytes of a text or colour profile beside the pixels, in place of 2^20: above it Pillow refuses the whole image.

_FIRST = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_NEVER = frozenset({"EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG", "FPX", "MIC"})
"""EPS starts Ghostscript, and WMF what Windows has; of the others Pillow reads no pixels by itself."""

_STACKS = frozenset({"TIFF", "DCX", "IM", "SPIDER"})
"""Formats of several images of equal rank. Of a JPEG or HEIF of several the main image is read."""
_ANIMATED = frozenset({"GIF", "WEBP", "PNG", "AVIF", "FLI", "JXL"})
"""Formats of animations: of several frames none is the image, and the first is often empty or a title."""
_SUBFILE, _REDUCED_OR_MASK = 254, 0b101
"""TIFF's tag of what a page is (NewSubfileType), and its bits of a smaller version or a mask of another page."""


def refuse_stack(image: Image.Image, name: str) -> None:
    """Refuse a file of several pages, of which none says that it is the image, and an animation.

    Args:
        image: as it was opened, at its first page, where it is afterwards.
        name: what to call it in the refusal.
    """
    if image.format in _ANIMATED and getattr(image, "is_animated", False):  # which counts no further than two
        raise UnreadableError(
            f"{name} is an animation, and one image is wanted", "save one frame as a file of its own, or take it out"
        )
    pages = getattr(image, "n_frames", 1) if image.format in _STACKS else 1
    if pages > 1 and (image.format != "TIFF" or any(_is_image(image, page) for page in range(1, pages))):
        raise UnreadableError(
            f"{name} has {pages} pages, and one image is wanted",
            "save each page as a file of its own, or take it out",
        )
    if pages > 1:
        image.seek(0)


def _is_image(image: Image.Image, page: int) -> bool:
    """Whether a page of a TIFF is an image of its own, and no smaller version or mask of another one."""
    image.seek(page)
    return not int(getattr(image, "tag_v2", {}).get(_SUBFILE, 0)) & _REDUCED_OR_MASK


@functools.cache
def opened() -> tuple[str, ...]:
    """Pillow's names of the formats that are read, with those of plug-ins that are installed; common ones first."""
    Image.init()
    return (*_FIRST, *(name for name in Image.ID if name not in _NEVER and name not in _FIRST))


@functools.cache
def endings() -> frozenset[str]:
    """File name endings that are read as images, in small letters."""
    return frozenset({*_ALWAYS, *(one for one, name in Image.registered_extensions().items() if name in opened())})


LARGEST_FILE = 1 << 30
"""Bytes: more than the largest image takes in any form; a file is read whole."""

LARGEST_WHOLE = 1 << 20
"""Pixels: a JPEG of more is not unpacked as a whole only to know it again in another format."""

SIZE_CAP = 224
"""Pixels: the largest size that is chosen for image files when none is declared."""

_MODES = {1: "L", 3: "RGB"}
_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"})


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says about its image before any pixel is decoded: its sides in pixels, and if it is grey."""

    shorter_side: int
    longer_side: int
    grey: bool


@contextlib.contextmanager
def quiet_decoder() -> Iterator[None]:
    """Turn Pillow's warning about huge images into an exception and silence remarks about metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def is_image_file(path: Path) -> bool:
    """Whether a file is read as an image: by its name, or as a DICOM file by its first bytes."""
    return path.suffix.lower() in endings() or dicom.is_dicom_file(path)


def read_bytes(path: Path | str) -> bytes:
    """The bytes of an image file, or a refusal that names it."""
    name = f"image {str(path)!r}"
    with paths.reading(name, "correct the path, or take it out"):
        known = paths.status(path)
        refuse_special(known, name)
        if known.st_size > LARGEST_FILE:
            raise SfumatoError(f"{name} has {known.st_size / 1e9:,.1f} GB", "make it smaller, or take it out")
        with open(path, "rb", buffering=0) as file:
            content = file.read()
    if not content:
        raise UnreadableError(f"{name} is empty", "replace the file, or take it out")
    return content


def header(content: bytes, path: Path | str, *, levels: Levels | None = None) -> Header:
    """The image's shorter side and whether it is grey, without decoding it."""
    if dicom.is_dicom(content):
        with refusals(path):
            *sides, grey = dicom.shape(content, f"image {str(path)!r}")
    else:
        with _opened(content, path, levels) as (image, _):
            sides, grey = image.size, image.mode in _GREY
    return Header(shorter_side=min(sides), longer_side=max(sides), grey=grey)


def decode(content: bytes, path: Path | str, *, size: int, channels: int, levels: Levels | None = None) -> np.ndarray:
    """The image in a file's bytes as uint8 (size, size, channels): see `prepare`. `path` is for errors."""
    with _opened(content, path, levels) as (image, name):
        # A JPEG can be unpacked at a fraction of its size; twice the target leaves the final filter its work.
        image.draft(None, (2 * size, 2 * size))
        return prepare(image, size=size, channels=channels, levels=levels, name=name)


def decode_whole(
    content: bytes, path: Path | str, *, sizes: Sequence[int], channels: int, levels: Levels | None = None
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The image in a file's bytes at several sizes, as `decode` gives it, and with all of its own pixels.

    Returns:
        uint8 (size, size, channels) for each size, and uint8 (H, W, 1 or 3); None in place of the latter for a JPEG of
        more than `LARGEST_WHOLE` pixels, which is unpacked at a fraction of its size.
    """
    found: list[np.ndarray] = []
    whole = None
    for size in (*sizes, None):
        if size is None and whole is not None:
            break
        with _opened(content, path, levels) as (image, name):
            full = image.size
            if size is not None:
                image.draft(None, (2 * size, 2 * size))
            upright = None
            if whole is None and image.size == full and (size is not None or full[0] * full[1] <= LARGEST_WHOLE):
                upright = _upright(image, levels, name)
                whole = _pixels(upright, "L" if upright.mode in ("1", "L") else "RGB")
            if size is not None and whole is not None and whole.shape == (size, size, channels):
                found.append(whole)
            elif size is not None:
                upright = _upright(image, levels, name) if upright is None else upright
                found.append(_squared(upright, size, channels))
    return found, whole


def prepare(
    image: Image.Image, *, size: int, channels: int, levels: Levels | None = None, name: str = "image"
) -> np.ndarray:
    """One image by the rule that every source and every prediction follows.

    The frame that it stands at; turned as its EXIF orientation says; 16-bit grey by the declared levels; transparent
    parts on white; other colour spaces to RGB; the centre square of the shorter side, brought to `size` by an
    antialiased bilinear filter.

    Args:
        image: any Pillow image.
        size: pixels on each side of the result.
        channels: 1 for grey (ITU-R 601 luma of a coloured image), 3 for RGB.
        levels: what was declared of pixels of more than eight bits; None to refuse them.
        name: what to call the image in a refusal.

    Returns:
        uint8 (size, size, channels).

    >>> prepare(Image.new("RGB", (40, 30), "white"), size=8, channels=1).shape
    (8, 8, 1)
    """
    _check(image, levels, name)
    return _squared(_upright(image, levels, name), size, channels)


def _squared(image: Image.Image, size: int, channels: int) -> np.ndarray:
    """The centre square of an upright image, uint8 (size, size, channels)."""
    image = image if image.mode == _MODES[channels] else image.convert(_MODES[channels])
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    if (width, height) != (size, size):
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return _pixels(image, _MODES[channels])


def _pixels(image: Image.Image, mode: str) -> np.ndarray:
    """Uint8 (H, W, C)."""
    image = image if image.mode == mode else image.convert(mode)
    width, height = image.size
    return np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, -1)


def _upright(image: Image.Image, levels: Levels | None, name: str) -> Image.Image:
    """The image in eight bits, turned as its EXIF orientation says, its transparent parts on white."""
    if levels is not None and is_deep_grey(image):
        image = deep_grey_in_eight_bits(image, levels, name)
    else:
        load(image, name)
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
        image = ImageOps.exif_transpose(image) if turned else image
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def prepare_array(images: np.ndarray, *, size: int, channels: int) -> np.ndarray:
    """Images uint8 (N, H, W, C) by the rule of `prepare`: uint8 (N, size, size, channels).

    >>> prepare_array(np.zeros((2, 10, 8, 3), np.uint8), size=8, channels=1).shape
    (2, 8, 8, 1)
    """
    if images.shape[1:] == (size, size, channels):
        return images
    result = np.empty((len(images), size, size, channels), np.uint8)

    def block(start: int) -> None:
        for index in range(start, min(start + 512, len(images))):
            pixels = images[index, :, :, 0] if images.shape[3] == 1 else images[index]
            result[index] = prepare(Image.fromarray(pixels), size=size, channels=channels)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(block, range(0, len(images), 512)):
            pass
    return result


@contextlib.contextmanager
def _opened(content: bytes, path: Path | str, levels: Levels | None) -> Iterator[tuple[Image.Image, str]]:
    """The image in a file's bytes, checked: as Pillow opens it, or of a DICOM file in eight bits; and its name."""
    name = f"image {str(path)!r}"
    with refusals(path):
        if dicom.is_dicom(content):
            image = dicom.in_eight_bits(content, levels, name)
        else:
            image = Image.open(io.BytesIO(content), formats=opened())
        with image:
            refuse_stack(image, name)
            _check(image, levels, name)
            yield image, name


def _check(image: Image.Image, levels: Levels | None, name: str) -> None:
    refuse_too_large(image.width * image.height, name)
    check_depth(image, levels, name)


@contextlib.contextmanager
def refusals(path: Path | str) -> Iterator[None]:
    """Whatever Pillow or pydicom says of a broken file, as a refusal that names it."""
    try:
        yield
    except (SfumatoError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_large(f"image {str(path)!r}") from None
    except Image.UnidentifiedImageError:
        raise UnreadableError(
            f"{str(path)!r} is not an image that can be read", "replace the file, or take it out"
        ) from None
    except Exception:  # decoders raise a dozen types for broken files
        raise UnreadableError(
            f"image {str(path)!r} is broken or cut short", "replace the file, or take it out"
        ) from None
