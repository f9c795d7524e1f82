"""Parts with declared facts: a drift gives each record's group, and class shares the weights of examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sfumato.data import Source
from sfumato.experiment.drift import facts_read, second_group
from sfumato.models.shares import answer_weights, class_weights, refuse_for_users
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.training.parts.part import Part, RunRequest


@dataclass(frozen=True, kw_only=True)
class Drift(Part):
    """The two groups of a plan with a drift.

    Args:
        groups: whether each training record is in the second group, bool (N,).
        read: the facts read from the data for it.
    """

    groups: np.ndarray = field(repr=False)
    read: tuple[str, ...]

    @classmethod
    def from_request(cls, request: RunRequest) -> Drift | None:
        """The drift of the plan."""
        groups = second_group(request.source, request.plan)
        return None if groups is None else cls(groups=groups, read=facts_read(request.source, request.plan))

    @property
    def sampler_inputs(self) -> dict[str, np.ndarray]:
        """The groups."""
        return {"groups": self.groups}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds the facts that were read."""
        return replace(facts, read=facts.read + self.read)


@dataclass(frozen=True, kw_only=True)
class ClassShares(Part):
    """Declared class shares, whose inverses weight the examples of each class or the answers to each label
    (`models.shares`)."""

    prevalence: Mapping[str, float]

    @classmethod
    def from_request(cls, request: RunRequest) -> ClassShares | None:
        """The class shares of the settings."""
        prevalence = request.settings.objective.class_prevalence
        if prevalence is None:
            return None
        if request.source.next_words:
            request.source.require_classes("`class_prevalence`")
        (answer_weights if request.source.multilabel else class_weights)(prevalence, request.source.classes)
        if request.plan.users is not None:
            refuse_for_users()
        return cls(prevalence=prevalence)

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """Advice on when weights help."""
        of = "labels" if source.multilabel else "classes"
        yield f"note: with weights by `class_prevalence`, rare {of} are recognised more often and others less often"

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds the shares."""
        return replace(facts, class_prevalence=tuple(self.prevalence.items()))
