"""Weights of the classes, from shares that are declared: to count them would be a release of private labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sfumato._checks import SfumatoError
from sfumato.models.shares import in_order


def weights_of(prevalence: Mapping[str, float], classes: Sequence[str]) -> tuple[float, ...]:
    """w_c = min_k p_k / p_c for classes in their order: inverse to the share p_c, and 1 for the rarest class.

    An example's clipped gradient is multiplied by its class's weight. Weights in the loss, before clipping, would be
    undone by it: a gradient that is longer than C has the length C whatever its weight.

    **Guarantee.** A function of what is declared alone, and at most 1: an example's term in a step's sum is never
    longer than without it, so the sensitivity is the same (unit: one example or one user; adjacency: any).

    Errors: `SfumatoError` unless the shares are those of exactly these classes.

    >>> weights_of({"normal": 0.8, "pneumonia": 0.2}, ("pneumonia", "normal"))
    (1.0, 0.25)
    """
    shares = in_order(prevalence, classes)
    return tuple(min(shares) / share for share in shares)


def refuse_of_users() -> None:
    """Refuse shares where users are drawn."""
    raise SfumatoError(
        "`class_prevalence` weighs single examples, and a step draws users, who are clipped as a whole",
        "leave it out, or give `drawn=examples`",
    )
