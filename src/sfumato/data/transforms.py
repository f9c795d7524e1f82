"""Model inputs, with public constants: of stored images, features or texts; and of images for prediction, in any form.

All forms of an image give the same pixels, those that a source would read from its file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from PIL import Image, JpegImagePlugin
from torch import Tensor
from torch.nn import functional

from sfumato import _checks
from sfumato._checks import SfumatoError
from sfumato.data.declared import check_channels, check_size
from sfumato.data.decoding import decode, image_errors, prepare, quiet_decoder, read_bytes
from sfumato.data.levels import Levels
from sfumato.data.paths import expanded
from sfumato.data.tokens import NextWords, Tokens, read_each

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
    kinds = (str, os.PathLike, bytes, bytearray, memoryview, torch.Tensor)
    return isinstance(images, kinds) or hasattr(images, "read") or not isinstance(images, Iterable)


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


INTERPOLATIONS = ("bilinear", "bicubic")


@dataclass(frozen=True, kw_only=True)
class Transform:
    """Computes (pixel / 255 - mean) / std for each channel; for a backbone, on the centre crop of the resized image.

    **Guarantee.** The constants are public; statistics measured on private images would be a release without noise. The
    result for one image depends on that image alone (unit: one example; adjacency: any).

    Args:
        size: pixels on each side of the images.
        channels: 1 or 3.
        mean: mean to subtract, one number for each channel or one for all, in pixel / 255.
        std: divisor, likewise. The defaults map pixels to [-1, 1].
        resolution: pixels on each side of the result, a centre crop; None for the whole image.
        enlarged: pixels on each side to which the image is resized before the crop; None for no resizing.
        interpolation: "bilinear" or "bicubic", both antialiased.
        bit_depth: levels of 16-bit files, the same as in training: see `Levels`. None to refuse them.
        window: likewise.

    >>> transform = Transform(size=8, channels=1)
    >>> batch = transform(np.full((2, 8, 8, 1), 255, np.uint8))
    >>> batch.shape, batch.max().item()
    (torch.Size([2, 1, 8, 8]), 1.0)
    >>> Transform.from_dict(transform.to_dict()) == transform
    True
    """

    size: int
    channels: int
    mean: float | Sequence[float] = (0.5,)
    std: float | Sequence[float] = (0.5,)
    resolution: int | None = None
    enlarged: int | None = None
    interpolation: str = "bilinear"
    bit_depth: int | None = None
    window: Sequence[int] | None = None

    def __post_init__(self):
        if self.levels is not None:
            object.__setattr__(self, "window", self.levels.window)
        check_size(_checks.positive_integer(size=self.size))
        check_channels(self.channels)
        for name, check in (("mean", _checks.number), ("std", _checks.positive)):
            value = getattr(self, name)
            values = value if isinstance(value, (list, tuple)) else (value,)
            if len(values) not in (1, self.channels):
                raise SfumatoError(
                    f"{name} holds {len(values)} numbers for {self.channels} channels", "give one for each channel"
                )
            object.__setattr__(self, name, tuple(check(**{name: number}) for number in values))
        _checks.one_of(INTERPOLATIONS, interpolation=self.interpolation)
        side = self.size if self.enlarged is None else _checks.positive_integer(enlarged=self.enlarged)
        _checks.positive_integer(most=side, optional=True, resolution=self.resolution, remedy="give enlarged as well")

    @property
    def levels(self) -> Levels | None:
        """Declared levels of 16-bit pixels."""
        return Levels.from_declared(self.bit_depth, self.window)

    def __call__(self, images: torch.Tensor | Picture | Sequence[Picture]) -> torch.Tensor:
        """One image or several to float32 (n, channels, R, R).

        R is the resolution, or the size if there is none.

        Args:
            images: stored images uint8 (n, size, size, channels), an array or a tensor, whose device the result has; or
                one image (n is 1) or several in any form that `read` takes.
        """
        shape = (self.size, self.size, self.channels)
        if isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[1:] == shape:
            # torch warns about read-only arrays, though nothing is written here.
            tensor = torch.from_numpy(np.require(images, requirements="W"))
        elif isinstance(images, torch.Tensor):
            tensor = images
        else:
            side = self.resolution or self.enlarged or self.size
            return torch.stack([torch.zeros(self.channels, side, side), *read_each(self, images)])[1:]
        if tensor.dtype != torch.uint8 or tuple(tensor.shape[1:]) != shape:
            raise SfumatoError(
                f"images must be uint8 (n, {', '.join(map(str, shape))}), got {tensor.dtype} {tuple(tensor.shape)}",
                "give images of any size as paths, Pillow images, or arrays (n, H, W, C) instead of a tensor",
            )
        result = tensor.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return self.normalise(self.center_crop(result))

    def center_crop(self, pixels: torch.Tensor) -> torch.Tensor:
        """Resizes images (n, channels, size, size) and takes the centre crop (n, channels, R, R); pixels 0 to 255."""
        if self.enlarged not in (None, self.size):
            side = (self.enlarged, self.enlarged)
            pixels = functional.interpolate(pixels, side, mode=self.interpolation, antialias=True).clamp_(0, 255)
        if self.resolution in (None, pixels.shape[-1]):
            return pixels
        start = (pixels.shape[-1] - self.resolution) // 2
        middle = slice(start, start + self.resolution)
        return pixels[:, :, middle, middle].contiguous()

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalises pixels 0 to 255 (n, channels, H, W) in place.

        The result has the same bits on every device: each operation rounds once, by IEEE 754. With a Python scalar 255,
        CUDA would multiply by its rounded inverse.
        """
        mean, std = (_constants(getattr(self, name), pixels) for name in ("mean", "std"))
        return pixels.div_(_constants((255.0,), pixels)).sub_(mean).div_(std)

    def is_one(self, images: Picture | Sequence[Picture]) -> bool:
        """Whether this is a single image rather than several."""
        return is_one(images, channels=self.channels)

    def read(self, image: Picture) -> torch.Tensor:
        """One image as float32 (channels, R, R), prepared like the images of sources.

        Args:
            image: a path, a file's bytes, an open binary file, a Pillow image, or an array (H, W) or (H, W, C) of uint8
                (or of 16 bits, if the model was trained on such). The last of 2 or 4 channels is transparency, which is
                put on white as in files.

        All forms of an image give the same result (`pixels_of`).

        >>> Transform(size=8, channels=3).read(np.zeros((20, 10), np.uint8)).shape
        torch.Size([3, 8, 8])
        """
        return self(self.to_stored(image)[np.newaxis].copy())[0]

    def to_stored(self, image: Picture) -> np.ndarray:
        """One image, in any form that `read` takes, as stored by sources: uint8 (size, size, channels)."""
        if isinstance(image, np.ndarray) and (image.dtype, image.shape) == (
            np.uint8,
            (*[self.size] * 2, self.channels),
        ):
            return image
        return pixels_of(image, size=self.size, channels=self.channels, levels=self.levels)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Transform:
        """The transform that `to_dict` wrote."""
        return cls(**_checks.exactly("a transform", data, [entry.name for entry in fields(cls)]))


def _constants(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Constants (1, channels or 1, 1, 1), created on the device: copying them would block the host."""
    filled = [torch.full((1,), value, dtype=torch.float32, device=like.device) for value in values]
    return torch.cat(filled).reshape(1, -1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class FeatureTransform:
    """Replaces `Transform` for features, which are already model inputs.

    Args:
        width: D.

    >>> FeatureTransform(width=3)(torch.ones(2, 1, 3)).shape
    torch.Size([2, 3])
    """

    width: int

    def __post_init__(self):
        _checks.positive_integer(width=self.width)

    def __call__(self, features: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Selects the first version of features float32 (n, S, D): (n, D), the centre crop of each image."""
        if not isinstance(features, (np.ndarray, torch.Tensor)):
            return self.read(features)
        tensor = torch.from_numpy(features) if isinstance(features, np.ndarray) else features
        if tensor.dim() != 3 or tensor.shape[2] != self.width:
            raise SfumatoError(
                f"features must be (n, S, {self.width}), got {tuple(tensor.shape)}",
                "give features of the same backbone",
            )
        return tensor[:, 0].float()

    def is_one(self, image: Any) -> bool:
        """Always true: `read` then refuses any input."""
        return True

    def read(self, image: Any) -> torch.Tensor:
        """Always refuses: a head without its backbone cannot read images."""
        raise SfumatoError(
            "this model takes features and has no backbone", "compute the image's features, and call the module on them"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """(D,)."""
        return (self.width,)

    def synthetic(self, count: int) -> torch.Tensor:
        """Synthetic features (count, D)."""
        return ramp(count, self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {"width": self.width}


Preparation = Transform | FeatureTransform | Tokens
"""Conversion of stored records to model inputs."""


def transform_from_dict(data: Mapping[str, Any]) -> Preparation:
    """The preparation that `to_dict` of any of them wrote."""
    if "tokenizer" in data:
        return (NextWords if "task" in data else Tokens).from_dict(data)
    return FeatureTransform(width=data["width"]) if set(data) == {"width"} else Transform.from_dict(data)


class Form(Protocol):
    """One form of input: `Images`, `FeatureTransform` for features, `Tokens` for texts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record as model input."""
        ...

    def synthetic(self, count: int) -> Tensor:
        """Synthetic model inputs (count, ...), on which models are measured and checked."""
        ...


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images with `channels` channels and `size` pixels on each side.

    >>> Images(size=8, channels=1).synthetic(2).shape
    torch.Size([2, 1, 8, 8])
    """

    size: int
    channels: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return (self.channels, self.size, self.size)

    def synthetic(self, count: int) -> Tensor:
        """Float images (count, C, H, W)."""
        return ramp(count, self.shape)


def ramp(count: int, shape: tuple[int, ...]) -> Tensor:
    """Increasing numbers from -1 to 1, (count, ...)."""
    return torch.linspace(-1, 1, count * int(torch.Size(shape).numel())).reshape(count, *shape)
