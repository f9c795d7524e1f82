"""Declared class shares: refused where there are no classes to weigh, and named by the statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sfumato.data import Source
from sfumato.models.class_weights import answer_weights, refuse_of_users, weights_of
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.training.parts.part import Asked, Part


@dataclass(frozen=True, kw_only=True)
class ClassShares(Part):
    """Each class's declared share, by whose inverse its examples, or the answers to a label, are weighted
    (`models.class_weights`)."""

    prevalence: Mapping[str, float]

    @classmethod
    def of(cls, asked: Asked) -> ClassShares | None:
        """As the settings have them."""
        prevalence = asked.settings.objective.class_prevalence
        if prevalence is None:
            return None
        (answer_weights if asked.source.multilabel else weights_of)(prevalence, asked.source.classes)
        if asked.plan.unit.drawn == "users":
            refuse_of_users()
        return cls(prevalence=prevalence)

    def notes(self, source: Source, plan: PrivacyPlan) -> Iterator[str]:
        """When weights pay."""
        of = "labels" if source.multilabel else "classes"
        line = f"note: weights by `class_prevalence` pay where rare {of} would not be learnt without them"
        if not source.multilabel:  # measured: docs/figures.md
            line += "; they cost accuracy, and where the ranking is good already, a threshold finds as many for nothing"
        yield line

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the shares."""
        return replace(facts, class_prevalence=tuple(self.prevalence.items()))
