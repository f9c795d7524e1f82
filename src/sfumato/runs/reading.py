"""How a model's logits are read: shifted to other class shares where these are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.models.losses import is_exclusive, logit_offsets, ordered_shares, parse_shares, probabilities

Given = Mapping[str, float] | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Turns logits into probabilities. The predicted class is the one with the highest probability.

    Args:
        classes: the names of the classes.
        loss: the name of the training loss.
        shares: the class shares for which the unshifted scores hold; None if unknown.
        prevalence: the declared class shares where the model is used; None for `shares`.
    """

    classes: tuple[str, ...]
    loss: str
    shares: Mapping[str, float] | None = None
    prevalence: Mapping[str, float] | None = None

    @property
    def offsets(self) -> tuple[float, ...]:
        """The number added to each class's logit; zeros for no shift."""
        moved = [0.0] * len(self.classes)
        if self.shares is not None and self.prevalence is not None:
            trained, used = (ordered_shares(one, self.classes) for one in (self.shares, self.prevalence))
            moved = list(logit_offsets(trained, used, loss=self.loss))
        return tuple(moved)

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits (N, classes) whose probabilities are the model's scores."""
        return outputs + outputs.new_tensor(self.offsets) if any(self.offsets) else outputs

    def scores(self, outputs: Tensor) -> Tensor:
        """Probabilities (N, classes)."""
        return probabilities(self.logits(outputs), self.loss)

    def with_prevalence(self, prevalence: Given | None) -> Reading:
        """The reading for a site with these declared class shares.

        Shifts for another site are dropped.

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
        return replace(self, prevalence=used)

    @property
    def notes(self) -> list[str]:
        """The shifts of the scores, in sentences."""
        if self.shares is None or self.prevalence is None:
            return []
        return [f"scores are shifted from the shares {listed(self.shares)} to {listed(self.prevalence)}"]

    @property
    def as_data(self) -> dict[str, Any]:
        """The shifts as JSON-ready data; empty if there are none."""
        return {"moved_from": self.shares, "moved_to": self.prevalence} if self.shares and self.prevalence else {}

    @classmethod
    def from_dict(cls, about: Mapping[str, Any]) -> Reading:
        """The reading described in a model file."""
        shares = about.get("shares")
        return cls(classes=tuple(about["classes"]), loss=about.get("loss", "softmax"), shares=shares)

    def to_dict(self) -> dict[str, Any]:
        """The entries of a model file, besides classes and loss."""
        return {} if self.shares is None else {"shares": dict(self.shares)}


def check_shares(given: Given, classes: Sequence[str], name: str) -> dict[str, float]:
    """Declared shares of exactly these classes, in order."""
    return dict(zip(classes, ordered_shares(parse_shares(given, name), classes, name), strict=True))


def refuse_unreadable(reading: Reading, path: object) -> None:
    """Refuse shares of a model file that are not of its own classes."""
    if reading.shares is not None and set(reading.shares) != set(reading.classes):
        raise SfumatoError(f"{path} holds shares of other classes than its own", "restore it from a copy")


def listed(shares: Mapping[str, float]) -> str:
    """Shares as text.

    >>> listed({"a": 0.2, "b": 0.8})
    'a 20.0%, b 80.0%'
    """
    most = list(shares.items())
    shown = ", ".join(f"{name} {share:.1%}" for name, share in most[:5])
    return shown if len(most) <= 5 else f"{shown} and {len(most) - 5} more"
