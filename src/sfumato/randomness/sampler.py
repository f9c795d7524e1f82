"""Draws who takes part in a step, by the plan's own rule."""

from __future__ import annotations

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.privacy.sampling import FullBatch, Poisson, SamplingRule
from sfumato.randomness.keys import DiceKey


class Sampler:
    """Index sets by a sampling rule.

    Args:
        rule: the plan's sampling rule.
        key: the run's dice key.
        records: how many records there really are; each of them has the rule's probability, whatever N was declared.

    **Guarantee.** Under `Poisson` each record's coin in each step is independent of all other records and steps, and
    comes up with the rule's probability (to one part in 2^53). Batches have random sizes; an empty one is returned like
    any other. The draw is a function of (key, step), so a replayed step has the same participants.

    >>> from sfumato.privacy import Poisson
    >>> sampler = Sampler(Poisson(examples=10, batch_size=3), DiceKey.from_seed(0), records=10)
    >>> bool((sampler.draw(7) == sampler.draw(7)).all())
    True
    """

    def __init__(self, rule: SamplingRule, key: DiceKey, *, records: int):
        if not isinstance(rule, (Poisson, FullBatch)):
            raise SfumatoError(f"no sampler draws by the rule {rule!r}", "use the sampling rule of a PrivacyPlan")
        self.rule = rule
        self.records = records
        self._key = key

    def draw(self, step: int) -> np.ndarray:
        """The participants of a step: ascending record indices, int64, of any number from none to all."""
        if isinstance(self.rule, FullBatch):
            return np.arange(self.records)
        coins = self._key.generator("sampling", step).random(self.records)
        return np.flatnonzero(coins < self.rule.probability)
