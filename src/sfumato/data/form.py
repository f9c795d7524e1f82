"""What a model is given of each record: an image, a vector of features, or the numbers of a text's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


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
