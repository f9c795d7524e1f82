"""Noise for counts: two-sided geometric, from whole numbers and random bits alone."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from sfumato._checks import SfumatoError
from sfumato.privacy.noisy_table import NoisyTable
from sfumato.randomness.choice import Bits
from sfumato.randomness.keys import RunKey


def noisy_counts(table: NoisyTable, counts: Sequence[int], key: RunKey) -> list[int]:
    """The counts with the table's noise; some come out negative.

    Args:
        table: the cells and their noise.
        counts: of each cell, in the order of a flattened array of its shape. Private.
        key: a secret of this release alone.

    **Guarantee.** The law of `NoisyTable` exactly: epsilon is the fraction that it says, and no exponential is rounded.
    Sensitivity 1: counts are whole numbers, one for each cell, or refused. Two tables with one key would have the same
    noise, and their difference none.
    """
    if len(counts) != table.cells:
        raise SfumatoError(f"there are {len(counts)} counts for {table.cells} cells", "give one for each cell")
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise SfumatoError(f"a count must be a number of records, got {count!r}", "count them; a mean is no count")
    bits = Bits(key)
    return [count + two_sided_geometric(bits, table.noise_epsilon) for count in counts]


def two_sided_geometric(bits: Bits, epsilon: Fraction) -> int:
    """A whole number k with probability proportional to e^(-epsilon |k|) (Canonne, Kamath and Steinke 2020,
    arXiv 2004.00010, algorithm 2).

    With epsilon = s/t: U + t V is geometric with e^(-1/t), where U below t is kept with probability e^(-U/t) and V is
    how many coins of e^-1 show heads in a row; in units of s it is geometric with e^(-s/t). A minus
    zero is drawn again.
    """
    s, t = epsilon.numerator, epsilon.denominator
    while True:
        within = bits.below(t)
        if not bits.coin_exp(Fraction(within, t)):
            continue
        heads = 0
        while bits.coin_exp(Fraction(1)):
            heads += 1
        size = (within + t * heads) // s
        negative = bits.below(2)
        if size or not negative:
            return -size if negative else size
