"""Weights of the classes, from shares that are declared: to count them would be a release of private labels."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

from sfumato._checks import SfumatoError, fraction

TOLERANCE = 0.01
"""By how much declared shares may miss 1 together: they are rounded."""

_REMEDY = "give every class's share, such as pneumonia=0.02 normal=0.98"


def declared(given: Mapping[str, float] | Sequence[str]) -> dict[str, float]:
    """Shares by class name, each between 0 and 1, that sum to one.

    Args:
        given: such a mapping, or texts NAME=SHARE, several of which may stand in one with commas between them.

    >>> declared(["pneumonia=0.02,normal=0.98"])
    {'pneumonia': 0.02, 'normal': 0.98}
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [_pair(text) for text in _pieces(given)]
    shares = dict(pairs)
    if len(shares) < len(pairs):
        raise SfumatoError("`class_prevalence` names a class twice", "name each class once")
    for name, share in shares.items():
        fraction(f"`class_prevalence` of {name!r}", share, remedy=_REMEDY)
    total = math.fsum(shares.values())
    if abs(total - 1) > TOLERANCE + 1e-9:
        raise SfumatoError(f"the shares of `class_prevalence` sum to {total:g}, not to 1", _REMEDY)
    return {name: float(share) for name, share in shares.items()}


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
    for name in prevalence:
        if name not in classes:
            near = difflib.get_close_matches(name, classes, n=1)
            raise SfumatoError(
                f"`class_prevalence` names {name!r}, which is no class",
                f"did you mean {near[0]!r}" if near else f"the classes are {', '.join(classes)}",
            )
    missing = [name for name in classes if name not in prevalence]
    if missing:
        raise SfumatoError(f"`class_prevalence` says nothing of the class {missing[0]!r}", _REMEDY)
    return tuple(min(prevalence.values()) / prevalence[name] for name in classes)


def refuse_of_users() -> None:
    """Refuse shares where users are drawn."""
    raise SfumatoError(
        "`class_prevalence` weighs single examples, and a step draws users, who are clipped as a whole",
        "leave it out, or give `drawn=examples`",
    )


def _pieces(given: Sequence[str]) -> list[str]:
    """Texts NAME=SHARE: those that a comma divides, where each has its share."""
    found, begun = [], ""
    for piece in (piece for text in ([given] if isinstance(given, str) else given) for piece in f"{text}".split(",")):
        begun += piece
        if "=" in piece:
            found.append(begun)
            begun = ""
        else:  # a comma in a name
            begun += ","
    return [*found, *filter(None, [begun.removesuffix(",")])]


def _pair(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition("=")
    try:
        return name.strip(), float(share)
    except ValueError:
        raise SfumatoError(f"`class_prevalence` {text!r} is no class with its share", _REMEDY) from None
