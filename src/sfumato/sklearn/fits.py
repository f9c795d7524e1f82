"""Tracks private fits of this process on the same records. Each fit spends budget, and a search calls fit often."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, replace

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.data.source import own_codes
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.display import rounded_up
from sfumato.randomness import owner_key
from sfumato.runs.owner import budgets

PAID = "private"
"""The value of `search` that allows further fits on the same records. Each of them spends budget."""
SEARCHES = "sklearn.model_selection"
REMEDY = (
    "fit once, and choose settings on public data (public=True), or give search='private' to pay for each fit; "
    "sfumato sweep has a search with a guarantee"
)


@dataclass(frozen=True)
class _Fit:
    """A private fit of this process.

    Args:
        codes: keyed hashes of its training records, under the owner's key.
        place: identifier under which the owner's list counts later fits on some of the same records.
    """

    codes: frozenset[bytes]
    plan: PrivacyPlan
    place: str


_FITS: list[_Fit] = []
_LOCK = threading.Lock()


def is_searching() -> bool:
    """Whether scikit-learn's `model_selection` is on the call stack, in this process or a worker.

    A manual loop of fits is not detected here; `register_fit` refuses its second fit on the same records.
    """
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name == SEARCHES or name.startswith(f"{SEARCHES}."):
            return True
        frame = frame.f_back
    return False


def refuse_search(plan: PrivacyPlan) -> None:
    """Refuses a search on private records, and names its cost."""
    costs = {count: rounded_up(budgets.joint_cost([plan] * count)[0]) for count in (1, 2, 5, 10)}
    raise SfumatoError(
        f"fit is called by {SEARCHES}, which trains on the same private records repeatedly: one fit costs epsilon "
        f"{costs[1]} for each example, and 2, 5 and 10 fits cost {costs[2]}, {costs[5]} and {costs[10]}, at delta "
        f"{plan.delta!r}",
        REMEDY,
    )


def register_fit(source: Source, plan: PrivacyPlan, *, paid: bool) -> Source:
    """Registers a private fit. Returns the source with the places of all earlier fits that share a record with it.

    The owner's list uses the places to count these fits together.

    **Guarantee.** Unit: an example, or a user, of the plans. If two private fits of one process share a training
    record, both are counted in the owner's list (`budgets.joint_cost`), or the second is refused. Records are
    recognised by their codes, computed after conversion to images of one size.

    Args:
        paid: whether further fits on the same records are allowed.
    """
    codes = frozenset(map(bytes, own_codes(source.train, owner_key())))
    place = f"fit:{source.stored_digest}"
    with _LOCK:
        earlier = [fit for fit in _FITS if not codes.isdisjoint(fit.codes)]
        if earlier and not paid:
            common = max(len(codes & fit.codes) for fit in earlier)
            uses = [plan, *(fit.plan for fit in earlier)]
            same_unit = [use for use in uses if use.unit.name == plan.unit.name]
            epsilon, delta = budgets.joint_cost(same_unit)
            raise SfumatoError(
                f"{len(earlier)} earlier fit{'s' if len(earlier) > 1 else ''} of this process used up to {common:,} of "
                f"these {len(codes):,} private records; with this fit the total would be epsilon "
                f"{rounded_up(epsilon)} at delta {delta!r}, if planned in advance",
                REMEDY,
            )
        _FITS.append(_Fit(codes, plan, place))
    places = tuple(dict.fromkeys([place, *(fit.place for fit in earlier)]))
    return replace(source, places=places)
