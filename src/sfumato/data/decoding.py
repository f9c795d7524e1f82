"""Image files to uint8 arrays, by one rule for every format, colour space and size. Files count as images by their
names, and are read if Pillow can open them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps, JpegImagePlugin, PngImagePlugin

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, refuse_special
from sfumato.data import paths
from sfumato.data.levels import Levels, check_depth, deep_grey_in_eight_bits, is_deep_grey, load
from sfumato.data.paths import refuse_too_large, several_images, too_large, unreadable
from sfumato.data.readers import dicom

_ALWAYS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pbm"),
    *(".jp2", ".j2k", ".jpx", ".avif", ".heic", ".heif", ".jxl"),
    *dicom.EXTENSIONS,
)
"""Image suffixes, whatever is installed. A file with one is refused if it cannot be read, never skipped."""

PngImagePlugin.MAX_TEXT_CHUNK = max(PngImagePlugin.MAX_TEXT_CHUNK, 1 << 24)
# Bytes of a text or colour profile, instead of 2^20. Pillow refuses the whole image above this limit.

_FIRST = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_NEVER = frozenset({"EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG", "FPX", "MIC"})
"""EPS runs Ghostscript, and WMF a Windows renderer. Pillow alone cannot decode the others."""

_STACKS = frozenset({"TIFF", "DCX", "IM", "SPIDER"})
"""Formats whose files may hold several equal images. For JPEG and HEIF the primary image is read."""
_ANIMATED = frozenset({"GIF", "WEBP", "PNG", "AVIF", "FLI", "JXL"})
"""Formats of animations. No single frame is the image, and the first is often empty or a title."""
_SUBFILE, _REDUCED_OR_MASK = 254, 0b101
"""TIFF's tag NewSubfileType, and its bits for a page that is a reduced version or mask of another."""


def refuse_stack(image: Image.Image, name: str) -> None:
    """Refuses animations, and files with several pages unless all but one are reduced versions or masks.

    Args:
        image: opened, at its first page, to which it returns.
        name: name of the image in errors.
    """
    if image.format in _ANIMATED and getattr(image, "is_animated", False):  # cheap: stops counting at two frames
        raise several_images(name, "is an animation", "one frame")
    pages = getattr(image, "n_frames", 1) if image.format in _STACKS else 1
    if pages > 1 and (image.format != "TIFF" or any(_is_image(image, page) for page in range(1, pages))):
        raise several_images(name, f"has {pages} pages", "each page")
    if pages > 1:
        image.seek(0)


def _is_image(image: Image.Image, page: int) -> bool:
    """Whether a page of a TIFF is an image of its own, not a reduced version or mask of another page."""
    image.seek(page)
    return not int(getattr(image, "tag_v2", {}).get(_SUBFILE, 0)) & _REDUCED_OR_MASK


@functools.cache
def pillow_formats() -> tuple[str, ...]:
    """Pillow's names of the formats to read, including installed plug-ins such as pillow-heif, common ones first."""
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    Image.init()
    return (*_FIRST, *(name for name in Image.ID if name not in _NEVER and name not in _FIRST))


@functools.cache
def image_suffixes() -> frozenset[str]:
    """File name suffixes of images, in lower case."""
    formats = pillow_formats()
    return frozenset({*_ALWAYS, *(suffix for suffix, name in Image.registered_extensions().items() if name in formats)})


LARGEST_FILE = 1 << 30
"""Bytes. A file is read whole, and no supported image needs more."""

LARGEST_WHOLE = 1 << 20
"""Pixels. Larger JPEGs are not fully decoded just to compute the pixel code."""

SIZE_CAP = 224
"""Pixels: largest default size for image files."""

LARGEST_JPEG = 200_000_000
"""Pixels of a JPEG, which is decoded at reduced size. What is decoded is limited like other images."""

_MODES = {1: "L", 3: "RGB"}
_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"})


@dataclass(frozen=True, kw_only=True)
class Header:
    """Facts from a file's header, without decoding pixels: the sides in pixels, and whether the image is grey."""

    shorter_side: int
    longer_side: int
    grey: bool


@contextlib.contextmanager
def quiet_decoder() -> Iterator[None]:
    """Turns Pillow's warning about huge images into an exception, and silences warnings about metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def is_image_file(path: Path) -> bool:
    """Whether a file counts as an image: by its suffix, or as DICOM by its first bytes."""
    return path.suffix.lower() in image_suffixes() or dicom.is_dicom_file(path)


def read_bytes(path: Path | str) -> bytes:
    """Reads an image file. Errors name the file."""
    name = f"image {str(path)!r}"
    with path_errors(name, "correct the path, or remove it"):
        file_stat = paths.status(path)
        refuse_special(file_stat, name)
        if file_stat.st_size > LARGEST_FILE:
            raise SfumatoError(f"{name} has {file_stat.st_size / 1e9:,.1f} GB", "make it smaller, or remove it")
        with open(path, "rb", buffering=0) as file:
            content = file.read()
    if not content:
        raise unreadable(name, "is empty")
    return content


def header(content: bytes, path: Path | str, *, levels: Levels | None = None) -> Header:
    """The image's header, without decoding pixels."""
    if dicom.is_dicom(content):
        with image_errors(path):
            *sides, grey = dicom.shape(content, f"image {str(path)!r}")
    else:
        with _open(content, path, levels) as (image, _):
            sides, grey = image.size, image.mode in _GREY
    return Header(shorter_side=min(sides), longer_side=max(sides), grey=grey)


def decode(content: bytes, path: Path | str, *, size: int, channels: int, levels: Levels | None = None) -> np.ndarray:
    """Decodes a file's bytes to uint8 (size, size, channels): see `prepare`. `path` is for errors."""
    with _open(content, path, levels) as (image, name):
        # JPEG decodes faster at reduced size. Twice the target size leaves enough detail for the final filter.
        image.draft(None, (2 * size, 2 * size))
        return prepare(image, size=size, channels=channels, levels=levels, name=name)


def decode_whole(
    content: bytes, path: Path | str, *, sizes: Sequence[int], channels: int, levels: Levels | None = None
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Decodes a file's bytes at several sizes, like `decode`, and at full size.

    Returns:
        uint8 (size, size, channels) for each size, and uint8 (H, W, 1 or 3). The latter is None for a JPEG with more
        than `LARGEST_WHOLE` pixels, which is decoded at reduced size.
    """
    images: list[np.ndarray] = []
    whole, large = None, False
    for size in (*sizes, None):
        if size is None and (whole is not None or large):
            break
        with _open(content, path, levels) as (image, name):
            full = image.size
            large = full[0] * full[1] > LARGEST_WHOLE
            if size is not None:
                image.draft(None, (2 * size, 2 * size))
            upright = None
            if whole is None and image.size == full:
                upright = _upright(image, levels, name)
                whole = _pixels(upright, "L" if upright.mode in ("1", "L") else "RGB")
            if size is not None and whole is not None and whole.shape == (size, size, channels):
                images.append(whole)
            elif size is not None:
                upright = _upright(image, levels, name) if upright is None else upright
                images.append(_squared(upright, size, channels))
    return images, whole


def prepare(
    image: Image.Image, *, size: int, channels: int, levels: Levels | None = None, name: str = "image"
) -> np.ndarray:
    """Prepares one image by the rule for all sources and predictions.

    Takes the current frame, applies the EXIF orientation, maps 16-bit grey by the declared levels, converts colours by
    the embedded profile (`in_srgb`), puts transparent parts on white, converts other colour spaces to RGB, crops the
    central square, and resizes it to `size` with an antialiased bilinear filter.

    Args:
        image: any Pillow image.
        size: pixels on each side of the result.
        channels: 1 for grey (ITU-R 601 luma of colour images), 3 for RGB.
        levels: declared levels for pixels of more than eight bits; None to refuse them.
        name: name of the image in errors.

    Returns:
        uint8 (size, size, channels).

    >>> prepare(Image.new("RGB", (40, 30), "white"), size=8, channels=1).shape
    (8, 8, 1)
    """
    check_depth(image, levels, name)
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
    """The image in eight bits of sRGB, with its EXIF orientation applied and transparent parts on white."""
    refuse_too_large(image.width * image.height, name)
    if levels is not None and is_deep_grey(image):
        image = deep_grey_in_eight_bits(image, levels, name)
    else:
        load(image, name)
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
        image = in_srgb(ImageOps.exif_transpose(image) if turned else image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def in_srgb(image: Image.Image) -> Image.Image:
    """The image with its colours, or greys of eight bits, converted to sRGB from the profile that its file embeds.

    An image without a profile is unchanged, as is one whose profile is broken or is for other channels than it has.
    """
    profile = image.info.get("icc_profile")
    if not profile or image.mode[0] in "IF":  # the latter are deep greys, which have declared levels
        return image
    if image.mode == "P" or image.has_transparency_data:
        image = image.convert("RGBA")
    transform = _from_profile(profile, image.mode)
    if transform is None:
        return image
    converted = transform.apply(image)
    return converted.convert("L") if image.mode == "L" else converted


@functools.lru_cache(maxsize=16)
def _from_profile(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Converts images of this mode from a profile to sRGB; None if there is nothing to convert."""
    try:
        embedded = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(embedded).lower():
            return None
        target, flags = "RGBA" if mode == "RGBA" else "RGB", ImageCms.Flags(0)
        if mode == "L":  # else dark greys are off by up to 10 of 255
            flags = ImageCms.Flags.NOOPTIMIZE
        return ImageCms.buildTransform(embedded, ImageCms.createProfile("sRGB"), mode, target, flags=flags)
    except (OSError, ImageCms.PyCMSError):
        return None


def to_bytes(image: np.ndarray, name: str, remedy: str = "give uint8 from 0 to 255, or scale to [0, 1]") -> np.ndarray:
    """An image of numbers in [0, 1] as uint8. Refuses other numbers."""
    if not (image.min(initial=0) >= 0 and image.max(initial=0) <= 1):  # true for NaN as well
        value = next(number for number in image.ravel().tolist() if not 0 <= number <= 1)
        raise SfumatoError(f"{name} holds {value:g}, outside [0, 1]", remedy)
    return np.rint(255 * image.astype(np.float64)).astype(np.uint8)


def prepare_array(images: np.ndarray, *, size: int, channels: int) -> np.ndarray:
    """Prepares images uint8 (N, H, W, C) like `prepare`: uint8 (N, size, size, channels).

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
def _open(content: bytes, path: Path | str, levels: Levels | None) -> Iterator[tuple[Image.Image, str]]:
    """The checked image in a file's bytes, opened by Pillow, or in eight bits for DICOM; and its name."""
    name = f"image {str(path)!r}"
    with image_errors(path):
        if dicom.is_dicom(content):
            image = dicom.to_eight_bits(content, levels, name)
        elif content.startswith(b"\xff\xd8\xff"):  # not by `Image.open`, which limits the undecoded size
            image = JpegImagePlugin.JpegImageFile(io.BytesIO(content))
        else:
            image = Image.open(io.BytesIO(content), formats=pillow_formats())
        with image:
            refuse_stack(image, name)
            refuse_too_large(image.width * image.height, name, LARGEST_JPEG if image.format == "JPEG" else None)
            check_depth(image, levels, name)
            yield image, name


@contextlib.contextmanager
def image_errors(path: Path | str) -> Iterator[None]:
    """Converts errors of Pillow and pydicom to errors that name the file."""
    try:
        yield
    except (SfumatoError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_large(f"image {str(path)!r}") from None
    except Image.UnidentifiedImageError:
        lacks = Path(path).suffix.lower() in (".heic", ".heif") and "HEIF" not in pillow_formats()
        remedy = "pip install pillow-heif" if lacks else "replace the file, or remove it"
        raise unreadable(repr(str(path)), "is not a readable image", remedy) from None
    except Exception:  # decoders raise a dozen types for broken files
        raise unreadable(f"image {str(path)!r}") from None
