"""Draws who takes part in a step, by the plan's own rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.privacy import FullBatch, Participation, Poisson, PrivacyPlan
from sfumato.randomness.keys import DiceKey


def _poisson(plan: PrivacyPlan, key: DiceKey, records: int, step: int) -> np.ndarray:
    coins = key.generator("sampling", step).random(records)
    return np.flatnonzero(coins < plan.sampling_probability)


def _full_batch(plan: PrivacyPlan, key: DiceKey, records: int, step: int) -> np.ndarray:
    return np.arange(records)


DRAWS: dict[type[Participation], Callable[[PrivacyPlan, DiceKey, int, int], np.ndarray]] = {
    Poisson: _poisson,
    FullBatch: _full_batch,
}


class Sampler:
    """Index sets by a plan's participation.

    Args:
        plan: who takes part, and of how many.
        key: the run key.
        records: how many records there really are; each of them has the plan's probability, whatever N was declared.

    **Guarantee.** Under `Poisson` each record's coin in each step is independent of all other records and steps, and
    comes up with the plan's probability (to one part in 2^53). Batches have random sizes; an empty one is returned like
    any other. The draw is a function of (key, step), so a replayed step has the same participants.

    >>> plan = PrivacyPlan.calibrate(examples=10, batch_size=3, steps=9, noise_multiplier=1.0, delta=1e-5)
    >>> sampler = Sampler(plan, DiceKey.from_seed(0), records=10)
    >>> bool((sampler.draw(7) == sampler.draw(7)).all())
    True
    """

    def __init__(self, plan: PrivacyPlan, key: DiceKey, *, records: int):
        if type(getattr(plan, "participation", None)) not in DRAWS:
            raise SfumatoError(f"plan must be a PrivacyPlan, got {plan!r}", "give the plan of the run")
        self.plan = plan
        self.records = records
        self._key = key
        self._draw = DRAWS[type(plan.participation)]

    def draw(self, step: int) -> np.ndarray:
        """The participants of a step: ascending record indices, int64, of any number from none to all."""
        return self._draw(self.plan, self._key, self.records, step)
