"""Which files are images: by their names those that are commonly called so, and by content what Pillow opens."""

from __future__ import annotations

import functools

from PIL import Image

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


@functools.cache
def opened() -> tuple[str, ...]:
    """Pillow's names of the formats that are read, with those of plug-ins that are installed; common ones first."""
    Image.init()
    return (*_FIRST, *(name for name in Image.ID if name not in _NEVER and name not in _FIRST))


@functools.cache
def endings() -> frozenset[str]:
    """File name endings that are read as images, in small letters."""
    return frozenset({*_ALWAYS, *(one for one, name in Image.registered_extensions().items() if name in opened())})
