"""Settings of the optimizer: trained weights, optimizer, learning rate and schedule; and the schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sfumato._checks import SfumatoError, one_of, positive, positive_integer, within
from sfumato._choices import choice

LARGEST_RATE = 3e38
"""Largest learning rate, just below the maximum of float32."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """The trained weights, the optimizer, its learning rate and its schedule.

    In private training gradients are divided by the clipping norm (De et al. 2022, equation 3).
    """

    pretrained_rate: float = choice(1.0, by_default="1")
    """Factor on the learning rate of all layers except the classifier."""
    trainable: tuple[str, ...] = choice((), "NAME [NAME ...]", "all")
    """What is trained: all, classifier, norm (normalisation layers), first (convolution), or patterns of parameter
    names such as blocks.3.*."""
    optimizer: str = choice("momentum", "NAME")
    """sgd, momentum, adam, adamw or lamb."""
    learning_rate: float = choice()
    """Step size for gradients divided by the clipping norm; for lamb, relative to each tensor's norm."""
    momentum: float = choice(0.9, by_default="0.9")
    """Heavy-ball coefficient, or beta1 of the Adam family."""
    weight_decay: float = choice(0.0, by_default="0")
    """L2 coefficient, decoupled for adamw."""
    schedule: str = choice("constant", "NAME", "constant")
    """Learning rate schedule: constant, cosine, linear, or step (a tenth from 1/2, a hundredth from 3/4 of the steps).
    """
    warmup: int = choice(0, by_default="0")
    """Number of steps of linear warm-up."""

    def __post_init__(self) -> None:
        positive(learning_rate=self.learning_rate, remedy="give a number such as 0.5")
        positive(pretrained_rate=self.pretrained_rate, remedy="give a number such as 0.1")
        largest = self.learning_rate * max(1.0, self.pretrained_rate)
        within(None, LARGEST_RATE, learning_rate=largest, remedy="give a number such as 0.5")
        if isinstance(self.trainable, str):
            raise SfumatoError(f"trainable must be a list of names, got {self.trainable!r}", "give it in brackets")
        object.__setattr__(self, "trainable", tuple(self.trainable))


def constant(progress: float) -> float:
    """1 at any progress in [0, 1] (De et al. 2022, appendix C.3)."""
    return 1.0


def cosine(progress: float) -> float:
    """Half a cosine period from 1 to 0 over the progress in [0, 1]: (1 + cos(pi * progress)) / 2."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    """A straight line from 1 to 0 over the progress in [0, 1]: 1 - progress."""
    return 1.0 - progress


def step(progress: float) -> float:
    """1 in the first half, 0.1 from one half on, 0.01 from three quarters on (De et al. 2022, appendix C.3)."""
    return 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01


_SHAPES = {"constant": constant, "cosine": cosine, "linear": linear, "step": step}
SCHEDULES: tuple[str, ...] = tuple(_SHAPES)


def check_schedule(name: str, *, steps: int | None, warmup: int = 0) -> None:
    """Refuses what `schedule` refuses; if `steps` is None, only what it refuses for any number of steps."""
    one_of(SCHEDULES, schedule=name)
    positive_integer(optional=True, steps=steps)
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0 or (steps is not None and warmup >= steps):
        most = "" if steps is None else f" to steps - 1 = {steps - 1}"
        raise SfumatoError(f"warmup must be a whole number from 0{most}, got {warmup!r}", "give fewer, or 0")


def schedule(name: str, *, steps: int, warmup: int = 0) -> Callable[[int], float]:
    """Returns the multiplier of the learning rate as a function of the step, 0 to steps - 1.

    During warm-up it is (t + 1) / warmup at step t; afterwards it is the shape's value at
    (t - warmup) / (steps - warmup). It is positive at every step, so that no step's privacy cost is wasted.

    Args:
        name: `constant`, `cosine`, `linear` or `step` (divided by ten at 1/2 and at 3/4 of the run).
        steps: number of steps T of the run.
        warmup: number of steps of linear warm-up, fewer than `steps`.

    Returns:
        A function of the step. It refuses a step outside 0, ..., steps - 1.

    Raises:
        SfumatoError: an unknown name, or values out of range.

    >>> rate = schedule("linear", steps=6, warmup=2)
    >>> [rate(step) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    check_schedule(name, steps=steps, warmup=warmup)
    shape = _SHAPES[name]

    def multiplier(step: int) -> float:
        within(0, steps - 1, step=step, remedy="plan more steps")
        if step < warmup:
            return (step + 1) / warmup
        return shape((step - warmup) / (steps - warmup))

    return multiplier
