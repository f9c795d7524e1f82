"""The step that each record's own time stamp decides, where a plan goes by it."""

from __future__ import annotations

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Clock, Source
from sfumato.privacy import FixedOrder, PrivacyPlan
from sfumato.randomness import goes_by_time


def check_clock(clock: Clock | None, *, by_time: bool) -> None:
    """Refuse a plan by time without a clock, and a clock that no plan goes by."""
    if clock is not None and not by_time:
        raise SfumatoError(
            f"start {clock.start} and period {clock.period} are given, and the plan does not go by time",
            "leave both out, or give `order=time`",
        )
    if clock is None and by_time:
        raise SfumatoError(
            "the plan goes by the records' time stamps, and no start and period say which step each belongs to",
            "declare both, such as `start=2026-01-01` and `period=1d`",
        )


def steps_by_time(source: Source, plan: PrivacyPlan, clock: Clock | None) -> np.ndarray | None:
    """The step int64 (N,) of each training record; None for a plan that does not go by time.

    **Guarantee.** Each record's step is a function of its own time stamp and of the declared clock (`Clock`).

    Errors: `SfumatoError` for a plan by time without a clock or time stamps, and for a clock that no plan goes by.
    """
    check_clock(clock, by_time=goes_by_time(plan))
    if clock is None:
        return None
    if source.train.times is None and source.cache is not None:
        raise SfumatoError(
            "the plan goes by the records' time stamps, and a cache of features keeps none",
            "train on the images, or by another order",
        )
    if source.train.times is None:
        raise SfumatoError(
            "the plan goes by the records' time stamps, and the source has none",
            "give a csv with the column time, or an npz with the array time_train, or go by another order",
        )
    steps = clock.steps_of(source.train.times)
    if not _within(steps, plan).any():
        raise SfumatoError(
            f"none of the records' time stamps lies within the {plan.steps} steps from {clock.start} on, of "
            f"{clock.period} each",
            "declare the `start` and the `period` of these data",
        )
    return steps


def without_a_step(source: Source, plan: PrivacyPlan, times: np.ndarray | None) -> str | None:
    """What to say, to the owner alone, of training records that lie in no step of the plan; None where all may.

    Args:
        times: the step of each record, as `steps_by_time` gives it.

    **Guarantee.** The number is a private figure: it belongs to the terminal, and into no file.
    """
    records, rule = len(source.train) if times is None else len(times), plan.participation
    if not isinstance(rule, FixedOrder) or rule.assignment == "random":
        return None
    if times is None:
        within = min(records, rule.batch_size * min(plan.steps, rule.bins(plan.population)))
    else:
        within = int(_within(times, plan).sum())
    if within == records:
        return None
    return (
        f"note: {records - within} of the {records} training records lie in no step of the plan, and nothing is learnt "
        "from them (a figure of private data: keep it to yourself)"
    )


def _within(times: np.ndarray, plan: PrivacyPlan) -> np.ndarray:
    return (times >= 0) & (times < plan.steps)
