"""Files from which no image can be read, and those too large to be unpacked."""

from __future__ import annotations

from sfumato._checks import SfumatoError

LARGEST_IMAGE = 80_000_000
"""Pixels: a file that would unpack to more is refused, since a small file can claim any size."""


class UnreadableError(SfumatoError):
    """A file from which no image can be read, whatever is declared: it may be left out, by the owner's choice."""


def refuse_too_large(pixels: int, name: str) -> None:
    """Refuse an image of more pixels than `LARGEST_IMAGE`."""
    if pixels > LARGEST_IMAGE:
        raise too_large(name)


def too_large(name: str) -> SfumatoError:
    """The refusal of an image by the number of its pixels."""
    return SfumatoError(
        f"{name} would unpack to more than {LARGEST_IMAGE:,} pixels",
        "make it smaller, or take it out",
    )
