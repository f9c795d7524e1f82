"""Two worlds: thousands of models trained with and without one example, told apart by their loss on it.

De et al. 2022 (arXiv 2204.13650), appendix A.2. Phase I looks for the example z and the training by which models on D
and on D with z differ most: by the total variation distance of two Gaussians fitted to their losses on z. Phase II
trains many models in each world by that choice alone, takes a threshold from some of them, and bounds epsilon by the
others. All begin at the same weights; coins and noise are all that differs between two models of one world.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.averaging.averages import Averages
from sfumato.observers.progress import Progress, Silence
from sfumato.optim.descent import Descent
from sfumato.privacy import PrivacyPlan
from sfumato.search.audits.many import Training, begin, losses_at

CANARIES = ("blank", "noise", "mislabelled")
"""What z may be: an image without anything on it, uniform noise, or a real image under another label."""


class World(NamedTuple):
    """Records of one world: inputs float32 (N, D), targets int64 (N,)."""

    inputs: Tensor
    targets: Tensor

    def with_(self, other: World) -> World:
        """The records of both."""
        return World(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One row of what phase I tries (De et al. 2022, table 8).

    Args:
        canary: z, one of `CANARIES`.
        learning_rate: of SGD, whose gradients are divided by C.
        max_norm: C.
        batch_size: B, as expected.
        steps: T.
        hidden: units of one hidden layer; 0 for a linear model.
    """

    canary: str
    learning_rate: float
    max_norm: float
    batch_size: int
    steps: int
    hidden: int = 0

    def __post_init__(self) -> None:
        one_of("canary", self.canary, CANARIES)


def choices(
    *,
    canaries: Sequence[str] = CANARIES,
    learning_rates: Sequence[float] = (0.1, 0.5, 1.0),
    max_norms: Sequence[float] = (0.1, 1.0, 10.0),
    batch_sizes: Sequence[int] = (64,),
    steps: Sequence[int] = (50, 100),
    hidden: Sequence[int] = (0,),
) -> list[Choice]:
    """All combinations; by default those of table 8 for |D| = 100.

    >>> len(choices())
    54
    """
    names = ("canary", "learning_rate", "max_norm", "batch_size", "steps", "hidden")
    values = (canaries, learning_rates, max_norms, batch_sizes, steps, hidden)
    return [Choice(**dict(zip(names, row, strict=True))) for row in itertools.product(*values)]


@dataclass(frozen=True, kw_only=True)
class TwoWorlds:
    """The problem: D, the examples that may be added to it, and the promise that is put to the test.

    Args:
        records: D.
        canaries: by name, a world of one record each.
        classes: K.
        epsilon: nominal, whose least noise each choice trains with.
        delta: of the promise; 1 / |D| in the paper.
        seed: of initial weights, coins and noise.

    **Guarantee.** Both worlds are trained by the plan of |D| declared examples, whose promise is for adding one of them
    or leaving it out: with z there is one more record than declared, under the same sampling probability and divisor.
    """

    records: World
    canaries: Mapping[str, World]
    classes: int
    epsilon: float
    delta: float
    seed: int = 0

    def plan(self, choice: Choice) -> PrivacyPlan:
        """What a choice is trained by: the least noise for epsilon."""
        return PrivacyPlan.calibrate(
            examples=len(self.records.targets),
            batch_size=choice.batch_size,
            steps=choice.steps,
            max_norm=choice.max_norm,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def scores(self, choice: Choice, models: int, *, phase: int) -> tuple[np.ndarray, np.ndarray]:
        """Minus the loss on z of so many models, float64 (M,): trained with z, and without it."""
        if choice.canary not in self.canaries:
            raise SfumatoError(f"canary is {choice.canary!r}, and no such record is given", "add it to `canaries`")
        canary = self.canaries[choice.canary]
        widths = (self.records.inputs.shape[1], *([choice.hidden] if choice.hidden else []), self.classes)
        start = begin(widths, torch.Generator().manual_seed(self.seed))
        training = Training(
            plan=self.plan(choice),
            descent=Descent(optimizer="sgd", learning_rate=choice.learning_rate, momentum=0.0),
            averages=Averages(ema=0.0),
        )
        generator = torch.Generator().manual_seed(1 + 2 * self.seed + phase)
        found = []
        for world in (self.records.with_(canary), self.records):
            layers = training(start, *world, models=models, generator=generator)
            found.append(-losses_at(layers, *canary)[:, 0].numpy())
        return found[0], found[1]
