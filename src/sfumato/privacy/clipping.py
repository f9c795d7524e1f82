"""The norm to which each unit's contribution is clipped."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import positive


@dataclass(frozen=True)
class Fixed:
    """One clipping norm for the whole run.

    Args:
        max_norm: C, the L2 norm that no unit's contribution to a step exceeds.
    """

    max_norm: float = 1.0

    def __post_init__(self) -> None:
        positive("max_norm", self.max_norm, remedy="give the clipping norm, 1.0 where nothing speaks against it")


Clipping = Fixed
