"""How a model's logits are read: with a temperature, and shifted to other class shares or an operating point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.models.losses import is_exclusive, probabilities
from sfumato.models.shares import logit_offsets, ordered_shares, parse_shares
from sfumato.runs.figures.operating import SHARES, OperatingPoint

Given = Mapping[str, float] | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Turns logits into probabilities. The predicted class is the one with the highest probability.

    Args:
        classes: the names of the classes.
        loss: the name of the training loss.
        temperature: the number by which logits are divided; None for 1.
        shares: the class shares for which the unshifted scores hold; None if unknown.
        prevalence: the declared class shares where the model is used; None for `shares`.
        operating_point: the score threshold of a model of two classes; None for one half.
    """

    classes: tuple[str, ...]
    loss: str
    temperature: float | None = None
    shares: Mapping[str, float] | None = None
    prevalence: Mapping[str, float] | None = None
    operating_point: OperatingPoint | None = None

    @property
    def offsets(self) -> tuple[float, ...]:
        """The number added to each class's logit after the division by the temperature; zeros for no shift."""
        moved = [0.0] * len(self.classes)
        if self.shares is not None and self.prevalence is not None:
            trained, used = (ordered_shares(one, self.classes) for one in (self.shares, self.prevalence))
            moved = list(logit_offsets(trained, used, loss=self.loss))
        if self.operating_point is not None:
            further = self.operating_point.offsets(self.classes)
            moved = [one + other for one, other in zip(moved, further, strict=True)]
        return tuple(moved)

    def decision_logits(self, outputs: Tensor) -> Tensor:
        """Logits (N, classes) on the module's scale whose largest belongs to the predicted class."""
        if not any(self.offsets):
            return outputs
        return outputs + outputs.new_tensor(self.offsets) * (self.temperature or 1.0)

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits (N, classes) whose probabilities are the model's scores."""
        outputs = outputs if self.temperature is None else outputs / self.temperature
        return outputs + outputs.new_tensor(self.offsets) if any(self.offsets) else outputs

    def scores(self, outputs: Tensor) -> Tensor:
        """Probabilities (N, classes)."""
        return probabilities(self.logits(outputs), self.loss)

    def with_prevalence(self, prevalence: Given | None) -> Reading:
        """The reading for a site with these declared class shares.

        Shifts for another site are dropped, including an operating point; except one by the rule "shares", at which the
        model expects each class as often as a published table has it: then the scores hold for the table's shares.

        Args:
            prevalence: the class shares at the site; None for no change.

        **Guarantee.** A function of the released model and of the declared shares: it costs no privacy.

        Errors: `SfumatoError` for shares of other classes, for models of several labels, and if the shares for which
        the scores hold are unknown.
        """
        if prevalence is None:
            return self
        if not is_exclusive(self.loss):
            raise SfumatoError(
                "`prevalence` needs a model of one class for each image, and this model predicts several labels",
                "leave it out, and give a threshold",
            )
        used = check_shares(prevalence, self.classes, "prevalence")
        if self.shares is None:
            raise SfumatoError(
                "`prevalence` is given, but the model file does not hold the class shares that its scores are for",
                "train with `class_prevalence`",
            )
        found = self.operating_point
        return replace(self, prevalence=used, operating_point=found if found and found.rule == SHARES else None)

    @property
    def notes(self) -> list[str]:
        """The shifts of the scores, in sentences."""
        lines = []
        if self.shares is not None and self.prevalence is not None:
            there, here = (listed(one) for one in (self.shares, self.prevalence))
            lines.append(f"scores are shifted from the shares {there} to {here}")
        if (point := self.operating_point) is not None:
            lines.append(
                f"scores are shifted so that {point.positive} is predicted from an original score of "
                f"{point.threshold:g} on (operating point {point.rule}, from the published table)"
            )
        return lines

    @property
    def as_data(self) -> dict[str, Any]:
        """The shifts as JSON-ready data; empty if there are none."""
        moved = {"moved_from": self.shares, "moved_to": self.prevalence} if self.shares and self.prevalence else {}
        point = {} if self.operating_point is None else {"operating_point": self.operating_point.to_dict()}
        return moved | point

    @classmethod
    def from_dict(cls, about: Mapping[str, Any]) -> Reading:
        """The reading described in a model file."""
        known = {name: about[name] for name in ("temperature", "shares") if name in about}
        if "operating_point" in about:
            known["operating_point"] = OperatingPoint.from_dict(about["operating_point"])
        return cls(classes=tuple(about["classes"]), loss=about.get("loss", "softmax"), **known)

    def to_dict(self) -> dict[str, Any]:
        """The entries of a model file, besides classes and loss."""
        known = {
            "temperature": self.temperature,
            "shares": None if self.shares is None else dict(self.shares),
            "operating_point": None if self.operating_point is None else self.operating_point.to_dict(),
        }
        return {name: value for name, value in known.items() if value is not None}


def check_shares(given: Given, classes: Sequence[str], name: str) -> dict[str, float]:
    """Declared shares of exactly these classes, in order."""
    return dict(zip(classes, ordered_shares(parse_shares(given, name), classes, name), strict=True))


def refuse_unreadable(reading: Reading, path: object) -> None:
    """Refuse shares and an operating point of a model file that are not of its own classes."""
    if reading.shares is not None and set(reading.shares) != set(reading.classes):
        raise SfumatoError(f"{path} holds shares of other classes than its own", "restore it from a copy")
    point = reading.operating_point
    if point is not None and (point.positive not in reading.classes or len(reading.classes) != 2):
        raise SfumatoError(f"{path} has an operating point for {point.positive!r}", "restore it from a copy")


def listed(shares: Mapping[str, float]) -> str:
    """Shares as text.

    >>> listed({"a": 0.2, "b": 0.8})
    'a 20.0%, b 80.0%'
    """
    most = list(shares.items())
    shown = ", ".join(f"{name} {share:.1%}" for name, share in most[:5])
    return shown if len(most) <= 5 else f"{shown} and {len(most) - 5} more"
