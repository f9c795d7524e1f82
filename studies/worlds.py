"""Two worlds: thousands of models trained with and without one example, distinguished by their loss on it.

De et al. 2022 (arXiv 2204.13650), appendix A.2. Phase I searches for the example z and the training for which models on
D and on D with z differ most, by the total variation distance of two Gaussians fitted to their losses on z. Phase II
trains many models in each world with this choice, takes a threshold from some of them, and bounds epsilon with the
others. All models have the same initial weights. Two models of one world differ only in their coins and noise.
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
from sfumato.averaging.choices import Averages
from sfumato.evaluation.diagnostic import auc
from sfumato.optim.descent import Descent
from sfumato.privacy import PrivacyPlan
from studies.many_models import Layer, Layers, Training, forward

CANARIES = ("blank", "noise", "7 as 8", "6 as 7", "0 as 1")
"""The kinds of z: an empty image, uniform noise, or a real image with a wrong label."""


class World(NamedTuple):
    """The records of one world: inputs float32 (N, D), targets int64 (N,)."""

    inputs: Tensor
    targets: Tensor

    def union(self, other: World) -> World:
        """The records of both worlds."""
        return World(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice of phase I (De et al. 2022, table 8).

    Args:
        canary: the kind of z, one of `CANARIES`.
        learning_rate: the learning rate of SGD, whose gradients are divided by C.
        max_norm: C.
        batch_size: B, the expected batch size.
        steps: T.
        hidden: the number of units in the one hidden layer; 0 for a linear model.
    """

    canary: str
    learning_rate: float
    max_norm: float
    batch_size: int
    steps: int
    hidden: int = 0

    def __post_init__(self) -> None:
        one_of(CANARIES, canary=self.canary)


def choices(
    *,
    canaries: Sequence[str] = CANARIES,
    learning_rates: Sequence[float] = (0.1, 0.5, 1.0),
    max_norms: Sequence[float] = (0.1, 1.0, 10.0),
    batch_sizes: Sequence[int] = (64,),
    steps: Sequence[int] = (50, 100),
    hidden: Sequence[int] = (0,),
) -> list[Choice]:
    """All combinations of the values; by default those of table 8 for |D| = 100.

    >>> len(choices())
    90
    """
    rows = itertools.product(canaries, learning_rates, max_norms, batch_sizes, steps, hidden)
    return [
        Choice(canary=canary, learning_rate=rate, max_norm=norm, batch_size=size, steps=count, hidden=units)
        for canary, rate, norm, size, count, units in rows
    ]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The problem: D, the examples that may be added to it, and the tested promise.

    Args:
        records: D.
        canaries: the possible z by name, each as a world of one record.
        classes: K.
        epsilon: the nominal epsilon. Each choice is trained with the least noise that meets it.
        delta: the delta of the promise; 1 / |D| in the paper.
        seed: the seed of initial weights, coins and noise.

    **Guarantee.** Both worlds are trained by the plan of |D| declared examples, whose promise is for adding or removing
    one example. The world with z has one record more than declared, with the same sampling probability and divisor.
    """

    records: World
    canaries: Mapping[str, World]
    classes: int
    epsilon: float
    delta: float
    seed: int = 0

    def plan(self, choice: Choice) -> PrivacyPlan:
        """The plan of a choice, with the least noise that meets epsilon."""
        return _make_plan(
            len(self.records.targets), choice.batch_size, choice.steps, choice.max_norm, self.epsilon, self.delta
        )

    def scores(self, choice: Choice, models: int, *, phase: int) -> tuple[np.ndarray, np.ndarray]:
        """Minus the losses on z, float64 (M,), of M models trained with z and of M models trained without it."""
        if choice.canary not in self.canaries:
            raise SfumatoError(f"canary is {choice.canary!r}, and no such record is given", "add it to `canaries`")
        canary = self.canaries[choice.canary]
        widths = (self.records.inputs.shape[1], *([choice.hidden] if choice.hidden else []), self.classes)
        start = init_layers(widths, torch.Generator().manual_seed(self.seed))
        training = Training(
            plan=self.plan(choice),
            descent=Descent(optimizer="sgd", learning_rate=choice.learning_rate, momentum=0.0),
            averages=Averages(ema=0.0),
        )
        generator = torch.Generator().manual_seed(1 + 2 * self.seed + phase)
        found = []
        for world in (self.records.union(canary), self.records):
            layers = training(start, *world, models=models, generator=generator)
            found.append(-losses_at(layers, *canary)[:, 0].numpy())
        return found[0], found[1]

    def choose(self, choices: Sequence[Choice], *, models: int) -> list[tuple[Choice, float]]:
        """Phase I: the choices with their total variation distances, the largest first.

        Args:
            models: the number of models in each world for each choice. Phase II uses no model of phase I.
        """
        positive_integer(models=models, remedy="give how many models each choice is tried with, such as 200")
        found = [(choice, _total_variation(*self.scores(choice, models, phase=1))) for choice in choices]
        return sorted(found, key=lambda row: -row[1])

    def measure(self, choice: Choice, *, models: int, confidence: float = 0.999) -> Measured:
        """Phase II: the bound that the models of both worlds prove. The first half of them chooses the threshold.

        Args:
            choice: the choice of phase I, or any other that does not depend on a model of phase II.
            models: the number of models in each world.
            confidence: the confidence of the bound.
        """
        positive_integer(models=models, remedy="give how many models are trained in each world, such as 2000")
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
            advantage_at_most=max_advantage(self.epsilon, self.delta),
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The results of two worlds: a row of De et al. 2022, table 9.

    Args:
        choice: the trained choice.
        epsilon: the nominal epsilon.
        noise_multiplier: the noise multiplier of the plan.
        models: the number of models in each world. The figures are measured on half of them.
        bound: the lower bound of epsilon, and the largest bound that this many models could have proven (`at_most`).
        auc: the AUC of distinguishing the models of the two worlds.
        advantage: 1 - alpha - beta, with the threshold that is best for it on the first half of the models.
        advantage_at_most: the largest advantage that the promise allows.
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
        """The result, compared with the promise, in one sentence."""
        held = "contradicts" if self.bound.refutes(self.epsilon) else "does not contradict"
        return (
            f"{self.models:,} models in each world: {self.bound.sentence}, which {held} the promise of {self.epsilon:g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        own = {name: value for name, value in vars(self).items() if name not in ("choice", "bound")}
        return {**own, **asdict(self.choice), "bound": self.bound.to_dict(), "sentence": self.sentence}


@functools.cache
def _make_plan(examples: int, batch: int, steps: int, max_norm: float, epsilon: float, delta: float) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        examples=examples, batch_size=batch, steps=steps, max_norm=max_norm, epsilon=epsilon, delta=delta
    )


def total_variation(first: tuple[float, float], second: tuple[float, float]) -> float:
    """The total variation distance of two Gaussians, each given by its mean and standard deviation.

    It is half of the integral of |p - q|. The sign of p - q changes only at the points where p = q, which solve a
    quadratic equation.

    >>> round(total_variation((0.0, 1.0), (1.0, 1.0)), 4)  # 2 Phi(1/2) - 1
    0.3829
    """
    (m, s), (n, t) = first, second
    square, line = 1 / t**2 - 1 / s**2, 2 * (m / s**2 - n / t**2)
    roots = np.roots([square, line, n**2 / t**2 - m**2 / s**2 + 2 * math.log(t / s)])
    ends = np.concatenate([[-np.inf], np.sort(roots[np.isreal(roots)].real), [np.inf]])
    masses = np.diff(ndtr((ends - m) / s)) - np.diff(ndtr((ends - n) / t))
    return float(np.abs(masses).sum() / 2)


def max_advantage(epsilon: float, delta: float) -> float:
    """The largest 1 - alpha - beta of any test against (epsilon, delta)-private training (Humphries et al. 2020).

    >>> [round(max_advantage(epsilon, 0.01), 2) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    [0.47, 0.76, 0.96, 1.0]
    """
    return (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)


def _total_variation(own: np.ndarray, others: np.ndarray) -> float:
    """The total variation distance of Gaussians fitted to both samples."""
    fitted = [(float(found.mean()), float(found.std(ddof=1))) for found in (own, others)]
    if not all(math.isfinite(mean) and deviation > 0 for mean, deviation in fitted):
        return 0.0  # the models diverged, or all have the same loss
    return total_variation(*fitted)


def _advantage(own: np.ndarray, others: np.ndarray, half: int) -> float:
    """1 - alpha - beta on the second half, at the best threshold of the first half."""
    places = np.unique(np.concatenate([own[:half], others[:half]]))
    missed, alarms = (np.searchsorted(np.sort(part[:half]), places) / half for part in (own, others))
    threshold = places[np.argmax(alarms - missed)]
    return float((own[half:] >= threshold).mean() - (others[half:] >= threshold).mean())


def init_layers(widths: Sequence[int], generator: torch.Generator) -> list[Layer]:
    """The initial layers of one model: zeros for the last layer; weights from N(0, 1 / in) and zero biases for the
    others.

    Args:
        widths: the widths of the inputs, of each hidden layer, and of the outputs.
    """
    shapes = list(zip(widths[1:], widths, strict=False))
    hidden = [torch.randn(1, *shape, generator=generator) / math.sqrt(shape[1]) for shape in shapes[:-1]]
    return [Layer(weight, torch.zeros(1, weight.shape[1])) for weight in (*hidden, torch.zeros(1, *shapes[-1]))]


def losses_at(layers: Layers, inputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each example under each model, float64 (M, N), in nats."""
    logits = forward(layers, inputs)[1].double()
    return functional.cross_entropy(logits, targets.expand(len(logits), -1), reduction="none")
