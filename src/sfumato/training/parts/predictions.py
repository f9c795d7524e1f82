"""A model's outputs on the test split, from which figures are published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """A model's outputs on the test split. Private.

    Args:
        outputs: logits (N, classes), computed for each record separately (`Scorer.per_example_outputs`).
        labels: (N,).
        classes: names of the classes.
        loss: the loss, which determines how logits become probabilities.
        groups: the declared names of the groups; empty for none.
        group_of: text (N,), the group of each record.
    """

    outputs: Tensor
    labels: Tensor
    classes: Sequence[str]
    loss: str
    groups: Sequence[str] = ()
    group_of: np.ndarray | None = None

    @property
    def places(self) -> np.ndarray:
        """The position of each record's group in `groups`, int64 (N,); zeros without groups."""
        if self.group_of is None:
            return np.zeros(len(self.labels), np.int64)
        return np.array([self.groups.index(name) for name in self.group_of.tolist()], np.int64)
