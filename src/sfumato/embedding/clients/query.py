"""What a round asks of the private data: the sum of its virtual clients' clipped updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import one_of, positive
from sfumato.embedding.clients.local import LocalTraining
from sfumato.gradients.clipping import accumulation_dtype, clip_factors, exact_squared_norms, exact_weighted_sum

ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippedUpdateSum:
    """The clipped update of a client, or the sum of several.

    Attributes:
        gradients: by parameter name: the sum of clip_C(weights at the start - weights at the end).
        within: the sum over clients of 1 where the update's norm is at most C and 0 where not, less 1/2 each: what
            adaptive clipping adds its noise to (Andrew et al. 2021, arXiv 1905.03871). As private as the sum itself.
    """

    gradients: dict[str, Tensor]
    within: float


@dataclass(frozen=True, kw_only=True)
class ClippedUpdates:
    """``sum over clients of clip_C(update)``, one client at a time, so that memory does not grow with their number.

    Args:
        local: how a client comes to its update.
        max_norm: C, the bound on the L2 norm of a client's update over all parameters together.

    **Guarantee.** Unit: a user; adjacency: add or remove one, let one contribute nothing, or replace one by another.
    Such a change reaches the records of one client, if every user's client is independent of the other users
    (`clients`), and that client's clipped update may move from anywhere in the ball of radius C to anywhere else in it.
    So the sum moves by at most 2 C in L2 norm, and `ClippedUpdateSum.within` by at most 1. All users of a client
    together move them by C and by 1/2, since an empty client contributes nothing: that is a promise for a group that is
    fixed for the run. Each update obeys the bound as computed (`clipping.clip_factors`), with room for the grid's
    rounding. An update with anything not finite counts as zero. Source: Xu et al. 2022 (arXiv 2211.10844), section 3.3,
    whose own accounting takes the whole virtual client for the unit.
    """

    local: LocalTraining
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        positive("max_norm", self.max_norm)

    @property
    def sums_over(self) -> Literal["clients"]:
        """Virtual clients: each one's update is clipped."""
        return "clients"

    def at(self, max_norm: float) -> ClippedUpdates:
        """The same with another bound C."""
        return replace(self, max_norm=max_norm)

    def sensitivity(self, adjacency: str) -> float:
        """How far one user can move the sum in L2 norm: 2 C."""
        one_of("adjacency", adjacency, ADJACENCIES)
        return 2 * self.max_norm

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no clients."""
        return {
            name: torch.zeros_like(value, dtype=accumulation_dtype(value.dtype))
            for name, value in self.local.start().items()
        }

    @torch.no_grad()
    def __call__(self, inputs: Tensor, labels: Tensor, generator: np.random.Generator) -> ClippedUpdateSum:
        """The clipped update of one client, from all of its records; arguments as for `LocalTraining.update`.

        One without records has no update and no `within`: it is the same as one that is not there.
        """
        if len(labels) == 0:
            return ClippedUpdateSum(gradients=self.zeros(), within=0.0)
        update = self.local.update(inputs, labels, generator)
        squares = sum(exact_squared_norms(value[None]) for value in update.values())
        assert isinstance(squares, Tensor)
        factors = clip_factors(squares, torch.zeros_like(squares), max_norm=self.max_norm, of=update.values())
        finite = bool(squares.isfinite())
        fits = not finite or bool(squares.sqrt() <= self.max_norm)
        return ClippedUpdateSum(
            gradients={name: exact_weighted_sum(value[None], factors) for name, value in update.items()},
            within=0.5 if fits else -0.5,
        )
