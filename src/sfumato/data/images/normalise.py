"""Stored records to model inputs, with public constants: images, features or texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sfumato import _checks
from sfumato._checks import SfumatoError
from sfumato.data.declared import check_channels, check_size
from sfumato.data.images.levels import Levels, UndeclaredError
from sfumato.data.images.prediction_inputs import Picture, is_one, pixels_of, read_each
from sfumato.data.next_words import NextWords
from sfumato.data.tokens import Tokens

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
        check_size(_checks.positive_integer("size", self.size))
        check_channels(self.channels)
        for name, check in (("mean", _checks.number), ("std", _checks.positive)):
            value = getattr(self, name)
            values = value if isinstance(value, (list, tuple)) else (value,)
            if len(values) not in (1, self.channels):
                raise SfumatoError(
                    f"{name} holds {len(values)} numbers for {self.channels} channels", "give one for each channel"
                )
            object.__setattr__(self, name, tuple(check(name, number) for number in values))
        _checks.one_of("interpolation", self.interpolation, INTERPOLATIONS)
        side = self.size if self.enlarged is None else _checks.positive_integer("enlarged", self.enlarged)
        if self.resolution is not None:
            resolution = _checks.positive_integer("resolution", self.resolution)
            _checks.within("resolution", resolution, None, side, remedy="give enlarged as well")

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

        All forms of an image give the same result (`given.pixels_of`).

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
        try:
            return pixels_of(image, size=self.size, channels=self.channels, levels=self.levels)
        except UndeclaredError as error:
            raise SfumatoError(
                error.problem,
                "save it with 8 bits, or train a model with `bit_depth` (12 if 4095 is white) or `window`",
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Transform:
        """The transform that `to_dict` wrote."""
        known = [one.name for one in fields(cls)]
        if set(data) != set(known):
            raise SfumatoError(f"a transform holds {', '.join(known)}, got {sorted(data)}", "restore the file")
        return cls(**data)


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
        _checks.positive_integer("width", self.width)

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

    def is_one(self, given: Any) -> bool:
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
