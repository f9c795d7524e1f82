"""Class weights from declared class shares. Counting the shares would be a release of private labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sfumato._checks import SfumatoError
from sfumato.models.shares import in_order, refuse_other_sum


def weights_of(prevalence: Mapping[str, float], classes: Sequence[str]) -> tuple[float, ...]:
    """Class weights w_c = min_k p_k / p_c in the order of the classes: inverse to the share, 1 for the rarest class.

    An example's clipped gradient is multiplied by the weight of its class. Weights in the loss would be undone by
    clipping: a gradient longer than C has norm C whatever its weight.

    **Guarantee.** The weights are a function of the declared shares only, and at most 1. An example's term in a step's
    sum is never longer than without weights, so the sensitivity is unchanged (unit: one example or one user; adjacency:
    any).

    Raises:
        SfumatoError: the shares are not those of exactly these classes, or don't sum to one.

    >>> weights_of({"normal": 0.8, "pneumonia": 0.2}, ("pneumonia", "normal"))
    (1.0, 0.25)
    """
    shares = in_order(prevalence, classes)
    refuse_other_sum(prevalence)
    return tuple(min(shares) / share for share in shares)


def answer_weights(prevalence: Mapping[str, float], labels: Sequence[str]) -> tuple[tuple[float, float], ...]:
    """Weights (no, yes) of the two answers to each label, in the order of the labels, for multilabel losses.

    Each label has two answers, no and yes, with shares 1 - p and p. The weights are
    (min(p, 1 - p) / (1 - p), min(p, 1 - p) / p): 1 for the rarer answer, so that both have the same total weight on
    average. They multiply the terms of the loss, before clipping. Every example has an answer to each label, and the
    weights change the direction of its gradient, which clipping keeps. A single weight per example could not
    distinguish its labels.

    **Guarantee.** The weights are a function of the declared shares only. The weighted gradient is clipped afterwards,
    so an example's term is no longer than the clipping norm for any weights, and the sensitivity is unchanged (unit:
    one example; adjacency: any).

    Raises:
        SfumatoError: the shares are not those of exactly these labels. They need not sum to one.

    >>> answer_weights({"nodule": 0.2, "effusion": 0.5}, ("nodule", "effusion"))
    ((0.25, 1.0), (1.0, 1.0))
    """
    pairs = [(1 - share, share) for share in in_order(prevalence, labels)]
    return tuple((min(pair) / pair[0], min(pair) / pair[1]) for pair in pairs)


def refuse_of_users() -> None:
    """Refuses class shares in runs that sample users."""
    raise SfumatoError(
        "`class_prevalence` weights single examples, but a step samples users, who are clipped as a whole",
        "leave it out, or give `drawn=examples`",
    )
