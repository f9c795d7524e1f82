"""The step that each record's own time stamp decides, where a plan goes by it."""

from __future__ import annotations

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Clock, Source
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import goes_by_time


def steps_by_time(source: Source, plan: PrivacyPlan, clock: Clock | None) -> np.ndarray | None:
    """The step int64 (N,) of each training record; None for a plan that does not go by time.

    **Guarantee.** Each record's step is a function of its own time stamp and of the declared clock (`Clock`).

    Errors: `SfumatoError` for a plan by time without a clock or time stamps, and for a clock that no plan goes by.
    """
    if not goes_by_time(plan):
        if clock is not None:
            raise SfumatoError(
                f"start {clock.start} and period {clock.period} are given, and the plan does not go by time",
                "leave both out, or give `order=time`",
            )
        return None
    if clock is None:
        raise SfumatoError(
            "the plan goes by the records' time stamps, and no start and period say which step each belongs to",
            "declare both, such as `start=2026-01-01` and `period=1d`",
        )
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
    return clock.steps_of(source.train.times)
