"""Lookup tables of DICOM files: modality, values of interest, palettes. A value is looked up at its own place, whatever
the entries' width.

`pydicom` counts places in the type of the entries, so that a table of 8-bit entries repeats itself after 256 of them,
and believes a descriptor that declares the entries' storage in place of their range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.data.paths import UnreadableError

MOST_ENTRIES = 2**16
"""Entries of a table whose descriptor says 0, which 16 bits cannot count."""
FEWEST_BITS = 8
"""Bits of the narrowest entries."""
SPARE_BITS = 2
"""How many declared bits no entry uses where the declaration is not believed: an image of a quarter of its range."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A lookup table: values up to `first` take its first entry, and values beyond its end the last one.

    Args:
        first: the value that the first entry is for.
        entries: uint16 (E,).
        bits: how many bits an entry has, as declared.

    >>> ramp = Table(first=-100, entries=np.arange(300, dtype=np.uint16), bits=16)
    >>> ramp.applied(np.array([-500, -100, 199, 900])).tolist(), ramp.bits_used
    ([0, 0, 299, 299], 9)
    """

    first: int
    entries: np.ndarray
    bits: int

    @property
    def bits_used(self) -> int:
        """How many bits the largest entry needs, at least 8."""
        return max(FEWEST_BITS, int(self.entries.max()).bit_length())

    def applied(self, values: np.ndarray) -> np.ndarray:
        """The entries, uint16, of values in any shape."""
        places = np.rint(values).astype(np.int64) - self.first
        return self.entries[places.clip(0, len(self.entries) - 1)]

    def range_bits(self) -> int | None:
        """The bits of the range that the entries lie in; None where declaration and entries contradict each other.

        Of 16 declared bits those that are used: several makers of scanners declare the storage of an entry there, and
        12 bits in it. Another width is meant as it is declared, and has to fit the entries.
        """
        if self.bits == 16:
            return self.bits_used
        return self.bits if 0 <= self.bits - self.bits_used < SPARE_BITS else None


def table(descriptor: Sequence[int], data: bytes | int | Sequence[int], name: str, *, little_endian: bool) -> Table:
    """A table from a file's descriptor and data.

    Entries are stored in words of 16 bits, or in bytes; which, is told by how many there are. Source: DICOM PS3.3,
    C.11.1.1.1 and C.11.2.1.1.

    Args:
        descriptor: the number of entries (0 for 65536), the first value that is mapped, and bits for each entry.
        data: bytes as they are stored, or words that have been read already.
        name: what to call the image in a refusal.
        little_endian: how the file stores words.

    Errors: `UnreadableError` where the data has another number of entries than the descriptor says, or signed ones
    below 0, which may be meant so or as large ones.

    >>> table([3, 5, 8], bytes([1, 2, 3, 0]), "image", little_endian=True).entries.tolist()
    [1, 2, 3]
    """
    count, first, bits = (int(one) for one in descriptor)
    count = count or MOST_ENTRIES
    if isinstance(data, bytes):
        words = np.frombuffer(data[: len(data) // 2 * 2], "<u2" if little_endian else ">u2")
    else:
        given = np.atleast_1d(np.asarray(data, np.int64))
        if given.min(initial=0) < 0:
            raise UnreadableError(f"{name} has a lookup table with entries below 0", "replace the file, or take it out")
        words = (given & 0xFFFF).astype("<u2")
    if len(words) == count:
        entries = words.astype(np.uint16)
    elif isinstance(data, bytes) and len(data) == count and count % 2:  # without the byte that fills the last word up
        entries = np.frombuffer(data, np.uint8).astype(np.uint16)
    elif len(words) == -(-count // 2):  # the lower byte of a word comes first, in either order of bytes
        entries = np.frombuffer(words.astype("<u2").tobytes(), np.uint8)[:count].astype(np.uint16)
    else:
        raise UnreadableError(
            f"{name} has a lookup table whose descriptor says {count} entries of {bits} bits, which its data has not",
            "replace the file, or take it out",
        )
    return Table(first=first, entries=entries, bits=bits)
