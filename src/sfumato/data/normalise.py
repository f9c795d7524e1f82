"""From stored pictures to what a model takes, by constants that everybody knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sfumato import _checks
from sfumato._checks import SfumatoError
from sfumato.data import images as pictures


@dataclass(frozen=True, kw_only=True)
class Transform:
    """(pixel / 255 - mean) / deviation, channel by channel.

    **Guarantee.** The constants are public: statistics measured on the private pictures would be a release without
    noise. The result for one picture depends on that picture alone (unit: one example; adjacency: any).

    Args:
        size: pixels on each side of the pictures.
        channels: 1 or 3.
        mean: what to subtract, one number for each channel or one for all, in pixel / 255.
        std: what to divide by, likewise. The defaults bring pixels to [-1, 1].

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

    def __post_init__(self):
        pictures.check_size(_checks.positive_integer("size", self.size))
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

    def __call__(self, images: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Pictures uint8 (n, size, size, channels) to float32 (n, channels, size, size), on the tensor's device."""
        tensor = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
        shape = (self.size, self.size, self.channels)
        if tensor.dtype != torch.uint8 or tuple(tensor.shape[1:]) != shape:
            raise SfumatoError(
                f"images must be uint8 (n, {', '.join(map(str, shape))}), got {tensor.dtype} {tuple(tensor.shape)}",
                "bring files to this form with the transform's read method",
            )
        result = tensor.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return result.div_(255).sub_(self._constants("mean", result)).div_(self._constants("std", result))

    def read(self, image: str | Path | Image.Image) -> torch.Tensor:
        """One picture, from a file or from Pillow, as float32 (channels, size, size), by the rule of the sources.

        >>> Transform(size=8, channels=3).read(Image.new("L", (20, 10))).shape
        torch.Size([3, 8, 8])
        """
        with pictures.quiet_decoder():
            if isinstance(image, Image.Image):
                pixels = pictures.prepare(image, size=self.size, channels=self.channels)
            else:
                path = Path(image).expanduser()
                pixels = pictures.decode(pictures.read_bytes(path), path, size=self.size, channels=self.channels)
        return self(pixels[np.newaxis].copy())[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        constants = {name: list(getattr(self, name)) for name in ("mean", "std")}
        return {"size": self.size, "channels": self.channels, **constants}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Transform:
        """The transform that `to_dict` wrote down."""
        if set(data) != {"size", "channels", "mean", "std"}:
            raise SfumatoError(
                f"a transform holds size, channels, mean and std, got {sorted(data)}", "restore the file"
            )
        return cls(**data)

    def _constants(self, name: str, like: torch.Tensor) -> torch.Tensor:
        return torch.tensor(getattr(self, name), dtype=torch.float32, device=like.device).reshape(1, -1, 1, 1)
