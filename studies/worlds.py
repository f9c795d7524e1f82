"""Two worlds: thousands of models trained with and without one example, told apart by their loss on it.

De et al. 2022 (arXiv 2204.13650), appendix A.2. Phase I looks for the example z and the training by which models on D
and on D with z differ most: by the total variation distance of two Gaussians fitted to their losses on z. Phase II
trains many models in each world by that choice alone, takes a threshold from some of them, and bounds epsilon by the
others. All begin at the same weights; coins and noise are all that differs between two models of one world.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor
from torch.nn import functional

from sfumato import audit
from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.averaging.averages import Averages
from sfumato.evaluation.diagnostic import auc
from sfumato.optim.descent import Descent
from sfumato.privacy import PrivacyPlan
from sfumato.search.audits.many import Layer, Layers, Training, forward

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
    rows = itertools.product(canaries, learning_rates, max_norms, batch_sizes, steps, hidden)
    return [
        Choice(canary=canary, learning_rate=rate, max_norm=norm, batch_size=size, steps=count, hidden=units)
        for canary, rate, norm, size, count, units in rows
    ]


@dataclass(frozen=True, kw_only=True)
class Problem:
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
        return _planned(
            len(self.records.targets), choice.batch_size, choice.steps, choice.max_norm, self.epsilon, self.delta
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

    def choose(self, choices: Sequence[Choice], *, models: int) -> list[tuple[Choice, float]]:
        """Phase I: the choices, that which tells the worlds apart best first, each with its total variation distance.

        Args:
            models: in each world, for each choice. No model of phase I has a part in phase II.
        """
        positive_integer("models", models, remedy="give how many models each choice is tried with, such as 200")
        found = [(choice, _apart(*self.scores(choice, models, phase=1))) for choice in choices]
        return sorted(found, key=lambda row: -row[1])

    def measure(self, choice: Choice, *, models: int, confidence: float = 0.999) -> Measured:
        """Phase II: what so many models in each world prove, with the threshold of the first half of them.

        Args:
            choice: of phase I, or any other that no model of phase II had a part in.
            confidence: of the bound.
        """
        positive_integer("models", models, remedy="give how many models are trained in each world, such as 2000")
        own, others = self.scores(choice, models, phase=2)
        bound = audit.two_worlds(own, others, delta=self.delta, confidence=confidence, nominal_epsilon=self.epsilon)
        half = models // 2
        return Measured(
            choice=choice,
            epsilon=self.epsilon,
            noise_multiplier=self.plan(choice).noise_multiplier,
            models=models,
            bound=bound,
            auc=auc(own[half:], others[half:]).value,
            advantage=_advantage(own, others, half),
            advantage_at_most=advantage_at_most(self.epsilon, self.delta),
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What two worlds have shown: a row of De et al. 2022, table 9.

    Args:
        choice: what was trained.
        epsilon: nominal.
        noise_multiplier: of its plan.
        models: trained in each world; half of them are what the figures are of.
        bound: the lower bound of epsilon, and the largest that so many models could have proven (`at_most`).
        auc: of telling models of one world from those of the other.
        advantage: 1 - alpha - beta at the threshold that is best for it among the models the bound's was chosen on.
        advantage_at_most: by the promise.
    """

    choice: Choice
    epsilon: float
    noise_multiplier: float
    models: int
    bound: audit.Bound
    auc: float
    advantage: float
    advantage_at_most: float

    @property
    def sentence(self) -> str:
        """The finding, and what was promised."""
        held = "contradicts" if self.bound.refutes(self.epsilon) else "does not contradict"
        return (
            f"{self.models:,} models in each world: {self.bound.sentence}, which {held} the promise of {self.epsilon:g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        own = {name: value for name, value in vars(self).items() if name not in ("choice", "bound")}
        return {**own, **asdict(self.choice), "bound": self.bound.to_dict(), "sentence": self.sentence}


@functools.cache
def _planned(examples: int, batch: int, steps: int, max_norm: float, epsilon: float, delta: float) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        examples=examples, batch_size=batch, steps=steps, max_norm=max_norm, epsilon=epsilon, delta=delta
    )


def total_variation(first: tuple[float, float], second: tuple[float, float]) -> float:
    """The total variation distance of two Gaussians, each given by its mean and standard deviation.

    Half of the integral of |p - q|: between the points where p = q, which solve a quadratic equation, one of the two
    densities is the larger one.

    >>> round(total_variation((0.0, 1.0), (1.0, 1.0)), 4)  # 2 Phi(1/2) - 1
    0.3829
    """
    (m, s), (n, t) = first, second
    square, line = 1 / t**2 - 1 / s**2, 2 * (m / s**2 - n / t**2)
    roots = np.roots([square, line, n**2 / t**2 - m**2 / s**2 + 2 * math.log(t / s)])
    ends = np.concatenate([[-np.inf], np.sort(roots[np.isreal(roots)].real), [np.inf]])
    masses = np.diff(ndtr((ends - m) / s)) - np.diff(ndtr((ends - n) / t))
    return float(np.abs(masses).sum() / 2)


def advantage_at_most(epsilon: float, delta: float) -> float:
    """The largest 1 - alpha - beta of any test against an (epsilon, delta)-private training (Humphries et al. 2020).

    >>> [round(advantage_at_most(epsilon, 0.01), 2) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    [0.47, 0.76, 0.96, 1.0]
    """
    return (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)


def _apart(own: np.ndarray, others: np.ndarray) -> float:
    """The total variation distance of Gaussians fitted to both."""
    fitted = [(float(found.mean()), float(found.std(ddof=1))) for found in (own, others)]
    if not all(math.isfinite(mean) and deviation > 0 for mean, deviation in fitted):
        return 0.0  # diverged, or never moved
    return total_variation(*fitted)


def _advantage(own: np.ndarray, others: np.ndarray, half: int) -> float:
    """1 - alpha - beta of the second half, at the threshold that is best for it in the first."""
    places = np.unique(np.concatenate([own[:half], others[:half]]))
    missed, alarms = (np.searchsorted(np.sort(part[:half]), places) / half for part in (own, others))
    threshold = places[np.argmax(alarms - missed)]
    return float((own[half:] >= threshold).mean() - (others[half:] >= threshold).mean())


def begin(widths: Sequence[int], generator: torch.Generator) -> list[Layer]:
    """One model's layers: zeros for the last one, and N(0, 1 / in) with biases 0 for those below it.

    Args:
        widths: of the inputs, of each hidden layer, and of the outputs.
    """
    shapes = list(zip(widths[1:], widths, strict=False))
    hidden = [torch.randn(1, *shape, generator=generator) / math.sqrt(shape[1]) for shape in shapes[:-1]]
    return [Layer(weight, torch.zeros(1, weight.shape[1])) for weight in (*hidden, torch.zeros(1, *shapes[-1]))]


def losses_at(layers: Layers, inputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each example under each model: float64 (M, N), in nats."""
    logits = forward(layers, inputs)[1].double()
    return functional.cross_entropy(logits, targets.expand(len(logits), -1), reduction="none")
