"""From stored records to what a model takes, by constants that everybody knows: images, features or texts."""

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
from sfumato.data.declared import check_size
from sfumato.data.images.given import Picture, each, is_one, pixels_of
from sfumato.data.images.levels import Levels, UndeclaredError
from sfumato.data.tokens import Tokens

INTERPOLATIONS = ("bilinear", "bicubic")


@dataclass(frozen=True, kw_only=True)
class Transform:
    """(pixel / 255 - mean) / deviation, channel by channel; for a backbone, of the middle of the enlarged image.

    **Guarantee.** The constants are public: statistics measured on the private images would be a release without
    noise. The result for one image depends on that image alone (unit: one example; adjacency: any).

    Args:
        size: pixels on each side of the images.
        channels: 1 or 3.
        mean: what to subtract, one number for each channel or one for all, in pixel / 255.
        std: what to divide by, likewise. The defaults bring pixels to [-1, 1].
        resolution: pixels on each side of the result, cut out of the middle; None for all of the image.
        enlarged: to how many pixels a side the image is brought before that; None for as it is.
        interpolation: "bilinear" or "bicubic", both antialiased.
        bit_depth: how files of 16 bits are read, as the model's own images were: see `Levels`. None to refuse them.
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
        if self.channels not in (1, 3):
            raise SfumatoError(f"channels must be 1 or 3, got {self.channels!r}", "give 1 for grey and 3 for colour")
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
        if self.resolution is not None and _checks.positive_integer("resolution", self.resolution) > side:
            raise SfumatoError(
                f"resolution must be at most the {side} pixels that it is cut out of, got {self.resolution}",
                "give enlarged as well",
            )

    @property
    def levels(self) -> Levels | None:
        """What is known of pixels of 16 bits."""
        return Levels.declared(self.bit_depth, self.window)

    def __call__(self, images: torch.Tensor | Picture | Sequence[Picture]) -> torch.Tensor:
        """One image or several to float32 (n, channels, R, R).

        R is the resolution, or the size where there is none.

        Args:
            images: as the sources store them, uint8 (n, size, size, channels), an array or a tensor, whose device is
                the result's; or whatever `read` takes, one of it (n is 1) or several.
        """
        shape = (self.size, self.size, self.channels)
        if isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[1:] == shape:
            # torch warns of arrays that may not be written to, though nothing is written here.
            tensor = torch.from_numpy(np.require(images, requirements="W"))
        elif isinstance(images, torch.Tensor):
            tensor = images
        else:
            side = self.resolution or self.enlarged or self.size
            return torch.stack([torch.zeros(self.channels, side, side), *each(self, images)])[1:]
        if tensor.dtype != torch.uint8 or tuple(tensor.shape[1:]) != shape:
            raise SfumatoError(
                f"images must be uint8 (n, {', '.join(map(str, shape))}), got {tensor.dtype} {tuple(tensor.shape)}",
                "give images of any size as paths, images of Pillow, or arrays (n, H, W, C) in place of a tensor",
            )
        result = tensor.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return self.normalised(self.cut_out(result))

    def cut_out(self, pixels: torch.Tensor) -> torch.Tensor:
        """The middle (n, channels, R, R) of images (n, channels, size, size), enlarged first; pixels 0 to 255."""
        if self.enlarged not in (None, self.size):
            side = (self.enlarged, self.enlarged)
            pixels = functional.interpolate(pixels, side, mode=self.interpolation, antialias=True).clamp_(0, 255)
        if self.resolution in (None, pixels.shape[-1]):
            return pixels
        start = (pixels.shape[-1] - self.resolution) // 2
        middle = slice(start, start + self.resolution)
        return pixels[:, :, middle, middle].contiguous()

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels 0 to 255 (n, channels, H, W), changed in place, by the constants.

        The same bits on every device: each operation rounds once, as IEEE 754 has it. By a plain 255 CUDA would
        multiply with its rounded inverse.
        """
        mean, std = (_constants(getattr(self, name), pixels) for name in ("mean", "std"))
        return pixels.div_(_constants((255.0,), pixels)).sub_(mean).div_(std)

    def is_one(self, images: Picture | Sequence[Picture]) -> bool:
        """Whether this is a single image, and no list of them."""
        return is_one(images, channels=self.channels)

    def read(self, image: Picture) -> torch.Tensor:
        """One image as float32 (channels, R, R), by the rule of the sources.

        Args:
            image: a path, a file's bytes, an open binary file, an image of Pillow, or an array (H, W) or (H, W, C) of
                uint8 (or of 16 bits, where the model was trained on such); with 2 or 4 channels the last one is the
                transparency, and is put on white as in a file.

        The same image gives the same result in each of these forms (`given.pixels_of`).

        >>> Transform(size=8, channels=3).read(np.zeros((20, 10), np.uint8)).shape
        torch.Size([3, 8, 8])
        """
        return self(self.stored(image)[np.newaxis].copy())[0]

    def stored(self, image: Picture) -> np.ndarray:
        """One image as a source would store it, uint8 (size, size, channels); whatever `read` takes."""
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
        """The transform that `to_dict` wrote down."""
        known = [one.name for one in fields(cls)]
        if set(data) != set(known):
            raise SfumatoError(f"a transform holds {', '.join(known)}, got {sorted(data)}", "restore the file")
        return cls(**data)


def _constants(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """One for each channel, (1, channels or 1, 1, 1), filled in on the device: for a copy the host would wait."""
    filled = [torch.full((1,), value, dtype=torch.float32, device=like.device) for value in values]
    return torch.cat(filled).reshape(1, -1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class AsStored:
    """In place of a `Transform` where the records are features: they are a model's input already.

    Args:
        width: D.

    >>> AsStored(width=3)(torch.ones(2, 1, 3)).shape
    torch.Size([2, 3])
    """

    width: int

    def __post_init__(self):
        _checks.positive_integer("width", self.width)

    def __call__(self, features: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Features float32 (n, S, D) to the first version of each, (n, D), which is the middle of its image."""
        if not isinstance(features, (np.ndarray, torch.Tensor)):
            return self.read(features)
        tensor = torch.from_numpy(features) if isinstance(features, np.ndarray) else features
        if tensor.dim() != 3 or tensor.shape[2] != self.width:
            raise SfumatoError(
                f"features must be (n, S, {self.width}), got {tuple(tensor.shape)}", "give those of the same backbone"
            )
        return tensor[:, 0].float()

    def is_one(self, given: Any) -> bool:
        """All that may be given is refused at once."""
        return True

    def read(self, image: Any) -> torch.Tensor:
        """Refused: without its backbone a head knows nothing of images."""
        raise SfumatoError(
            "this model takes features, and does not know the backbone that made them",
            "compute the image's features, and call the module on them",
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """(D,)."""
        return (self.width,)

    def synthetic(self, count: int) -> torch.Tensor:
        """Made-up features (count, D)."""
        return waves(count, self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {"width": self.width}


Preparation = Transform | AsStored | Tokens
"""From records as they are stored to a model's inputs."""


def preparation(data: Mapping[str, Any]) -> Preparation:
    """What `to_dict` of any of them wrote down."""
    if "tokenizer" in data:
        return Tokens.from_dict(data)
    return AsStored(width=data["width"]) if set(data) == {"width"} else Transform.from_dict(data)


class Form(Protocol):
    """One form of input: `Images`, `AsStored` for features, `Tokens` for texts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record as a model takes it."""
        ...

    def synthetic(self, count: int) -> Tensor:
        """Made-up records (count, ...) as a model takes them: what is found out about a model is found out on these."""
        ...


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images of `channels` colours and `size` pixels a side.

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
        return waves(count, self.shape)


def waves(count: int, shape: tuple[int, ...]) -> Tensor:
    """Numbers from -1 to 1 in order, (count, ...)."""
    return torch.linspace(-1, 1, count * int(torch.Size(shape).numel())).reshape(count, *shape)
