"""Weights of the classes, from shares that are declared: to count them would be a release of private labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sfumato._checks import SfumatoError
from sfumato.models.shares import in_order, refuse_other_sum


def weights_of(prevalence: Mapping[str, float], classes: Sequence[str]) -> tuple[float, ...]:
    """w_c = min_k p_k / p_c for classes in their order: inverse to the share p_c, and 1 for the rarest class.

    An example's clipped gradient is multiplied by its class's weight. Weights in the loss, before clipping, would be
    undone by it: a gradient that is longer than C has the length C whatever its weight.

    **Guarantee.** A function of what is declared alone, and at most 1: an example's term in a step's sum is never
    longer than without it, so the sensitivity is the same (unit: one example or one user; adjacency: any).

    Errors: `SfumatoError` unless the shares are those of exactly these classes, and sum to one.

    >>> weights_of({"normal": 0.8, "pneumonia": 0.2}, ("pneumonia", "normal"))
    (1.0, 0.25)
    """
    shares = in_order(prevalence, classes)
    refuse_other_sum(prevalence)
    return tuple(min(shares) / share for share in shares)


def answer_weights(prevalence: Mapping[str, float], labels: Sequence[str]) -> tuple[tuple[float, float], ...]:
    """Weights (no, yes) of the two answers to each label in their order, where none, one or many may be true.

    Each label is two classes, no and yes, with the shares 1 - p and p, so its answers weigh
    (min(p, 1 - p) / (1 - p), min(p, 1 - p) / p): 1 for the rarer one, and both count alike in the mean. They multiply
    the terms of the loss, before clipping: an example has an answer to every label, and clipping keeps the direction of
    its gradient, in which they count; one weight for the whole example would speak for all of its labels.

    **Guarantee.** A function of what is declared alone. What is summed is clipped afterwards, so an example's term is
    no longer than the clipping norm whatever the weights, and the sensitivity is the same (unit: one example;
    adjacency: any).

    Errors: `SfumatoError` unless the shares are those of exactly these labels. They need not sum to one.

    >>> answer_weights({"nodule": 0.2, "effusion": 0.5}, ("nodule", "effusion"))
    ((0.25, 1.0), (1.0, 1.0))
    """
    pairs = [(1 - share, share) for share in in_order(prevalence, labels)]
    return tuple((min(pair) / pair[0], min(pair) / pair[1]) for pair in pairs)


def refuse_of_users() -> None:
    """Refuse shares where users are drawn."""
    raise SfumatoError(
        "`class_prevalence` weighs single examples, and a step draws users, who are clipped as a whole",
        "leave it out, or give `drawn=examples`",
    )
