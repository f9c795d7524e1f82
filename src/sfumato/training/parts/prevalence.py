"""Declared shares of classes: by which examples weigh, and to which the scores of a model in use are moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.models.shares import answer_weights, declared, in_order, refuse_of_users, weights_of
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.runs.reading import checked
from sfumato.training.parts.part import Asked, Early, Ending, Part


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


NAMES = ("prevalence", "training_prevalence")


@dataclass(frozen=True, kw_only=True)
class Prevalence(Part):
    """Shares that are declared, of which the model file keeps what its scores are read by.

    Args:
        prevalence: of each class where the model is to be used; None where that is not declared.
        training_prevalence: in the training data, likewise.
        weighted: whether examples are weighted by the inverse of `class_prevalence`: then scores hold where all classes
            are as frequent, or of several labels both answers to each.

    **Guarantee.** What is declared alone moves the scores; no label is counted. The statement names both.
    """

    options = NAMES
    prevalence: Mapping[str, float] | None
    training_prevalence: Mapping[str, float] | None
    weighted: bool

    @classmethod
    def check(cls, early: Early) -> None:
        """Refuse what is no list of shares."""
        for name in NAMES:
            if (given := early.options.get(name)) is not None:
                shares = declared(given, name)
                if (classes := early.spec.declared.labels.classes) is not None:
                    in_order(shares, classes, name)

    @classmethod
    def of(cls, asked: Asked) -> Prevalence | None:
        """As they are asked for; with weights alone, that scores are those of classes of equal shares."""
        weighted = asked.settings.objective.class_prevalence is not None
        given = {name: value for name in NAMES if (value := asked.options.get(name)) is not None}
        if not given:
            return cls(prevalence=None, training_prevalence=None, weighted=True) if weighted else None
        asked.source.require_classes(f"`{next(iter(given))}`")
        if weighted and "training_prevalence" in given:
            raise SfumatoError(
                "`training_prevalence` and `class_prevalence` are both given, and the latter says the same",
                "leave `training_prevalence` out",
            )
        if "prevalence" in given and "training_prevalence" not in given and not weighted:
            raise SfumatoError(
                "`prevalence` is given, and the classes' shares in the training data are not declared",
                "declare them, such as `training_prevalence` pneumonia=0.74 normal=0.26; or give `prevalence` when the "
                "model is used",
            )
        shares = {name: checked(value, asked.source.classes, name) for name, value in given.items()}
        return cls(
            prevalence=shares.get("prevalence"),
            training_prevalence=shares.get("training_prevalence"),
            weighted=weighted,
        )

    @classmethod
    def recorded(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The shares that the run began with."""
        return dict(record.get("prevalence", {}))

    @property
    def _declared(self) -> dict[str, Any]:
        return {name: dict(value) for name in NAMES if (value := getattr(self, name)) is not None}

    @property
    def pins(self) -> dict[str, dict[str, Any]]:
        """The shares."""
        return {"prevalence": self._declared} if self._declared else {}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the shares."""
        return replace(facts, **{name: tuple(value.items()) for name, value in self._declared.items()})

    def end(self, ending: Ending) -> None:
        """Say for which shares scores hold, and to which they are moved."""
        classes = ending.decided.source.classes
        alike = 1 / 2 if ending.decided.source.multilabel else 1 / len(classes)
        ending.shares = dict.fromkeys(classes, alike) if self.weighted else self.training_prevalence
        ending.prevalence = self.prevalence
