"""Which files are images: by their names those that are commonly called so, and by content what Pillow opens."""

from __future__ import annotations

import functools

from PIL import Image

from sfumato.data.paths import UnreadableError
from sfumato.data.readers import dicom

_ALWAYS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pbm"),
    *(".jp2", ".j2k", ".jpx", ".avif", ".heic", ".heif", ".jxl"),
    *dicom.EXTENSIONS,
)
"""Endings of images whatever is installed: where such a file cannot be read it is refused, and not passed over."""

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
