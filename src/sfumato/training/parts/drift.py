"""A drift between two groups of records: which group each is in, where the participation drifts between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sfumato.experiment.drift import facts_read, second_group
from sfumato.privacy import Circumstances
from sfumato.training.parts.part import Asked, Part


@dataclass(frozen=True, kw_only=True)
class Drift(Part):
    """The two groups that a plan's participation drifts between.

    Args:
        groups: whether each training record is in the second one, bool (N,).
        read: the facts that were read from the data for it.
    """

    groups: np.ndarray = field(repr=False)
    read: tuple[str, ...]

    @classmethod
    def of(cls, asked: Asked) -> Drift | None:
        """As the plan has it."""
        groups = second_group(asked.source, asked.plan)
        return None if groups is None else cls(groups=groups, read=facts_read(asked.source, asked.plan))

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """The groups."""
        return {"groups": self.groups}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the facts that were read."""
        return replace(facts, read=facts.read + self.read)
