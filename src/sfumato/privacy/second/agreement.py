"""Whether the second accountant bears out what a statement says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.privacy.second.accountant import bounds

_LARGER = 1.01


@dataclass(frozen=True)
class Agreement:
    """What the second accountant says, and whether the statement claims no less than that."""

    holds: bool
    words: str


def agreement(statement: Mapping[str, Any]) -> Agreement:
    """Of a statement's plain data.

    **Guarantee.** It holds only where the statement's epsilon is at least the second accountant's lower bound, or where
    that speaks of no such plan, which the words then say.
    """
    stated = statement.get("planned", statement)
    found = None if "selection" in statement else bounds(statement["plan"], stated["delta"])
    if found is None:
        return Agreement(True, "no second accountant speaks of this plan")
    claimed, between = stated["epsilon"], f"between {found.lower:.4f} and {found.upper:.4f}"
    if found.upper == math.inf and claimed >= found.lower:
        return Agreement(True, f"a second accountant does not resolve delta {stated['delta']:g}: epsilon at least "
                         f"{found.lower:.4f}, {claimed:.4f} stated")  # fmt: skip
    if claimed < found.lower:
        return Agreement(False, f"epsilon is {between} by a second accountant, more than the {claimed:.4f} stated")
    if claimed > _LARGER * found.upper:
        return Agreement(True, f"a second accountant has epsilon {between}, less than the {claimed:.4f} stated")
    return Agreement(True, f"a second accountant agrees: epsilon {between}, {claimed:.4f} stated")
