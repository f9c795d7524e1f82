"""Rules of participation that people use and no theorem here covers: why, and which rule comes nearest."""

from __future__ import annotations

from sfumato._checks import SfumatoError

UNPROVEN: dict[str, tuple[str, str]] = {
    "shuffling": (
        "epochs over a reshuffled order cost more than Poisson sampling of the same batch size, and no bound is tight",
        "take fixed-order, which keeps one order, or poisson",
    ),
    "with-replacement": ("one record may be drawn several times into one step", "take poisson"),
    "fixed-size": (
        "drawing a fixed number without replacement is proven for replacing one record, by Renyi divergences alone",
        "take truncated for steps of one shape, or poisson",
    ),
    "balls-in-bins": (
        "the same secret bin in every epoch costs more than Poisson sampling over as many epochs, and how much is "
        "known by Monte Carlo alone, which nobody could verify to the digit",
        "take fixed-order, which counts on no secret, or cyclic",
    ),
    "b-min-sep": ("how much it costs is known by Monte Carlo alone", "take cyclic, or fixed-order"),
}
"""Each by its name: the reason, and what to take instead."""

_ALSO = {
    "shuffled": "shuffling",
    "shuffle": "shuffling",
    "without-replacement": "fixed-size",
    "random-allocation": "balls-in-bins",
    "min-sep": "b-min-sep",
}


def refuse_unproven(name: object) -> None:
    """Refuse a rule's name, in any spelling, if it is one of these; all others pass.

    >>> refuse_unproven("Poisson")
    """
    spelt = name.lower().replace("_", "-") if isinstance(name, str) else ""
    if (known := _ALSO.get(spelt, spelt)) in UNPROVEN:
        why, instead = UNPROVEN[known]
        raise SfumatoError(f"no theorem here covers the participation {name!r}: {why}", instead)
