"""Learning rate schedules: pure functions from the step to a multiplier of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from sfumato._checks import SfumatoError, one_of, positive_integer, within


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
    """Refuses what `schedule` refuses; with `steps` None, only what it refuses for any number of steps."""
    one_of("schedule", name, SCHEDULES)
    if steps is not None:
        positive_integer("steps", steps)
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
        within("step", step, 0, steps - 1, remedy="plan more steps")
        if step < warmup:
            return (step + 1) / warmup
        return shape((step - warmup) / (steps - warmup))

    return multiplier
