"""How often this process has fitted on the same private records: every fit pays, and a search fits again and again."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, replace

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.data.source import own_codes
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.presented import rounded_up
from sfumato.randomness import owner_key
from sfumato.runs.owner import composition

PAID = "private"
"""A `search`: further fits on the same records are paid for."""
SEARCHES = "sklearn.model_selection"
REMEDY = (
    "fit once, and choose settings on public data (public=True), or give search='private' to pay for each fit; "
    "sfumato sweep has a search that a theorem covers"
)


@dataclass(frozen=True)
class _Fit:
    """A private fit of this process.

    Args:
        codes: of its training records, under the owner's key.
        place: by which the owner's list knows that later fits used some of the same records.
    """

    codes: frozenset[bytes]
    plan: PrivacyPlan
    place: str


_FITS: list[_Fit] = []
_LOCK = threading.Lock()


def searching() -> bool:
    """Whether this is called by a search or a validation of scikit-learn's, in whatever process: its frames are below.

    A fit by hand in a loop is not seen here, and is refused at its second record all the same (`entered`).
    """
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name == SEARCHES or name.startswith(f"{SEARCHES}."):
            return True
        frame = frame.f_back
    return False


def refuse_search(plan: PrivacyPlan) -> None:
    """Refuse what would fit on the same records several times, with what that would come to."""
    costs = {count: rounded_up(composition.together([plan] * count)[0]) for count in (1, 2, 5, 10)}
    raise SfumatoError(
        f"fit is called by {SEARCHES}, which trains on the same private records again and again: one fit costs an "
        f"example epsilon {costs[1]}, and 2, 5 and 10 fits {costs[2]}, {costs[5]} and {costs[10]}, at delta "
        f"{plan.delta!r}",
        REMEDY,
    )


def entered(source: Source, plan: PrivacyPlan, *, paid: bool) -> Source:
    """The source, once it is noted that a fit on it is about to be paid; with the places of all fits before that had
    some of its records, so that the owner's list counts them together.

    **Guarantee.** Unit: an example, or a user, of the plans. Two private fits of one process with a training record in
    common are both counted in the owner's list (`composition.together`), or the second is refused. Records are known
    again by their codes after they were made images of one size.

    Args:
        paid: whether a further fit on the same records is wanted.
    """
    codes = frozenset(map(bytes, own_codes(source.train, owner_key())))
    place = f"fit:{source.stored_digest}"
    with _LOCK:
        earlier = [fit for fit in _FITS if not codes.isdisjoint(fit.codes)]
        if earlier and not paid:
            common = max(len(codes & fit.codes) for fit in earlier)
            uses = [plan, *(fit.plan for fit in earlier)]
            alike = [use for use in uses if composition.unit_of(use) == composition.unit_of(plan)]
            epsilon, delta = composition.together(alike)
            raise SfumatoError(
                f"{len(earlier)} earlier fit{'s' if len(earlier) > 1 else ''} of this process used up to {common:,} of "
                f"these {len(codes):,} private records; together with this one they come to epsilon "
                f"{rounded_up(epsilon)} at delta {delta!r}, planned in advance",
                REMEDY,
            )
        _FITS.append(_Fit(codes, plan, place))
    places = tuple(dict.fromkeys([place, *(fit.place for fit in earlier)]))
    return replace(source, identity=replace(source.identity, places=places))
