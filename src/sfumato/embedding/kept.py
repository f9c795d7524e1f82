"""Weights of single rounds that a training of embeddings keeps beside its model."""

from __future__ import annotations

from sfumato._checks import SfumatoError, positive_integer
from sfumato.embedding.choices import WITH_NOISE
from sfumato.training.parts.kept_weights import REMEDY


def check(keep: int | None, method: str) -> None:
    """Refuse what is no number, and methods that have no rounds of a plan."""
    if not keep:
        return
    positive_integer("keep", keep, remedy=REMEDY)
    if method not in (keeping := (*WITH_NOISE, "dpsgd")):
        raise SfumatoError(
            f"keep is {keep}, and method {method} has no rounds by a plan whose weights could be kept",
            f"leave it out, or take method {' or '.join(keeping)}",
        )
