"""Declared shares of classes: weights that follow from them, and how logits are moved to other shares.

To count the classes would be a release of private labels.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

from sfumato._checks import SfumatoError, fraction

TOLERANCE = 0.01
"""Tolerance for the sum of declared shares, which are rounded."""

REMEDY = "give every class's share, such as pneumonia=0.02 normal=0.98"


def parse_shares(given: Mapping[str, float] | Sequence[str], name: str = "class_prevalence") -> dict[str, float]:
    """Reads shares by class name, each between 0 and 1, that sum to one.

    Args:
        given, name: as for `parse_label_shares`.

    >>> parse_shares(["pneumonia=0.02,normal=0.98"])
    {'pneumonia': 0.02, 'normal': 0.98}
    """
    shares = parse_label_shares(given, name)
    refuse_other_sum(shares, name)
    return shares


def parse_label_shares(given: Mapping[str, float] | Sequence[str], name: str = "class_prevalence") -> dict[str, float]:
    """Reads shares by class name, each between 0 and 1. Their sum is not checked: an image may have several labels.

    Args:
        given: a mapping, or texts NAME=SHARE. One text may hold several, separated by commas.
        name: name of the option.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [parse_share(text, name) for text in _pieces(given)]
    shares = dict(pairs)
    if len(shares) < len(pairs):
        raise SfumatoError(f"`{name}` names a class twice", "name each class once")
    for one, share in shares.items():
        fraction(f"`{name}` of {one!r}", share, remedy=REMEDY)
    return {one: float(share) for one, share in shares.items()}


def refuse_other_sum(shares: Mapping[str, float], name: str = "class_prevalence") -> None:
    """Refuses shares of exclusive classes that do not sum to one."""
    total = math.fsum(shares.values())
    if abs(total - 1) > TOLERANCE + 1e-9:
        several = "; if an image may have several labels, name them as `label_columns`"
        remedy = REMEDY + (several if name == "class_prevalence" else "")
        raise SfumatoError(f"the shares of `{name}` sum to {total:g}, not to 1", remedy)


def ordered_shares(
    shares: Mapping[str, float], classes: Sequence[str], name: str = "class_prevalence"
) -> tuple[float, ...]:
    """The shares in the order of the classes.

    Raises:
        SfumatoError: a share of another class, or a class without a share.
    """
    for one in shares:
        if one not in classes:
            near = difflib.get_close_matches(one, classes, n=1)
            raise SfumatoError(
                f"`{name}` names {one!r}, which is not a class",
                f"did you mean {near[0]!r}" if near else f"the classes are {', '.join(classes)}",
            )
    missing = [one for one in classes if one not in shares]
    if missing:
        raise SfumatoError(f"`{name}` has no share for the class {missing[0]!r}", REMEDY)
    return tuple(shares[one] for one in classes)


def logit_offsets(trained: Sequence[float], used: Sequence[float], *, loss: str) -> tuple[float, ...]:
    """The offsets that adapt logits to other class shares (Saerens et al. 2002, equation 2.4; Elkan 2001, theorem 2).

    The offset is log q_c - log p_c for a softmax, and the difference of log odds for sigmoids. By Bayes' rule it is
    exact if only the shares change, and the distribution of images within each class stays the same. For sigmoids with
    more than two classes it is approximate, because the mixture of the other classes changes.

    Args:
        trained: p, (classes,), the shares in training.
        used: q, (classes,), the shares where the model is used.
        loss: the name of the model's loss.

    **Guarantee.** A function of declared or released numbers only, so shifting a released model's logits costs no
    privacy. If the shares are counted from private labels, the offsets are a release of these labels.

    >>> [round(one, 3) for one in logit_offsets((0.5, 0.5), (0.9, 0.1), loss="softmax")]
    [0.588, -1.609]
    """

    def of(share: float) -> float:
        return math.log(share) - (0.0 if loss == "softmax" else math.log1p(-share))

    return tuple(of(one) - of(other) for one, other in zip(used, trained, strict=True))


def parse_share(text: str, name: str) -> tuple[str, float]:
    """Parses NAME=SHARE."""
    one, _, share = text.rpartition("=")
    try:
        return one.strip(), float(share)
    except ValueError:
        raise SfumatoError(f"`{name}` {text!r} is not NAME=SHARE", REMEDY) from None


def _pieces(given: Sequence[str]) -> list[str]:
    """Splits texts at commas into NAME=SHARE. A name may contain commas."""
    pieces, current = [], ""
    for piece in (piece for text in ([given] if isinstance(given, str) else given) for piece in f"{text}".split(",")):
        current += piece
        if "=" in piece:
            pieces.append(current)
            current = ""
        else:  # the comma is part of a name
            current += ","
    return [*pieces, *filter(None, [current.removesuffix(",")])]


def class_weights(prevalence: Mapping[str, float], classes: Sequence[str]) -> tuple[float, ...]:
    """Class weights w_c = min_k p_k / p_c in the order of the classes: inverse to the share, 1 for the rarest class.

    An example's clipped gradient is multiplied by the weight of its class. Weights in the loss would be undone by
    clipping: a gradient longer than C has norm C whatever its weight.

    **Guarantee.** The weights are a function of the declared shares only, and at most 1. An example's term in a step's
    sum is never longer than without weights, so the sensitivity is unchanged (unit: one example or one user; adjacency:
    any).

    Raises:
        SfumatoError: the shares are not those of exactly these classes, or don't sum to one.

    >>> class_weights({"normal": 0.8, "pneumonia": 0.2}, ("pneumonia", "normal"))
    (1.0, 0.25)
    """
    shares = ordered_shares(prevalence, classes)
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
    pairs = [(1 - share, share) for share in ordered_shares(prevalence, labels)]
    return tuple((min(pair) / pair[0], min(pair) / pair[1]) for pair in pairs)


def refuse_for_users() -> None:
    """Refuses class shares in runs that sample users."""
    raise SfumatoError(
        "`class_prevalence` weights single examples, but a step samples users, who are clipped as a whole",
        "leave it out",
    )
