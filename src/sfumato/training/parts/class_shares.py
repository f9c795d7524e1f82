"""Declared class shares: refused where there are no classes to weigh, and named by the statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sfumato.models.class_weights import refuse_of_users, weights_of
from sfumato.privacy import Circumstances
from sfumato.training.parts.part import Asked, Part


@dataclass(frozen=True, kw_only=True)
class ClassShares(Part):
    """Each class's declared share, by whose inverse its examples are weighted (`models.class_weights`)."""

    prevalence: Mapping[str, float]

    @classmethod
    def of(cls, asked: Asked) -> ClassShares | None:
        """As the settings have them."""
        prevalence = asked.settings.objective.class_prevalence
        if prevalence is None:
            return None
        asked.source.require_classes("`class_prevalence`")
        weights_of(prevalence, asked.source.classes)
        if asked.plan.unit.drawn == "users":
            refuse_of_users()
        return cls(prevalence=prevalence)

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the shares."""
        return replace(facts, class_prevalence=tuple(self.prevalence.items()))
