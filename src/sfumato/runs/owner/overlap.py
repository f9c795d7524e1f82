"""Which records the owner's runs used as private: what several data sets have in common.

The list of uses knows a data set as a whole. A part of one, or one of which some records were changed, is another to
it, and no total counts runs on both. The codes of the records, which lie beside the owner's key, tell of such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sfumato.data import Source, known_again, own_codes
from sfumato.randomness import keys, owner_key
from sfumato.runs.owner import compared, uses
from sfumato.runs.owner.compared import USED_RECORDS as FOLDER
from sfumato.runs.owner.public_records import extend, listed

_NAMED = 3
"""How many runs a note names at most."""


def remember(source: Source) -> None:
    """Keep the codes of the records that a run is about to use as private: before its line on the list of uses.

    Those held out to score on are among them: what a private selection says of its scores is in its promise.
    """
    remember_codes(source.materials, _codes(source))


def remember_codes(materials: Sequence[str], codes: np.ndarray) -> None:
    """The same, of codes uint8 (N, 32) of its records; of a source without material nothing."""
    if materials:
        extend(keys.home() / FOLDER / f"{materials[0]}.npy", codes)


def notes(source: Source, *, budget: str | None = None) -> Iterator[str]:
    """What the owner should know of runs on other data sets that hold some of these records.

    Args:
        budget: that in which the coming run is reserved: what else is reserved there counts with it.
    """
    if not source.public:
        codes = _codes(source) if (keys.home() / FOLDER).is_dir() else None
        what = "training records" if source.held_out is None else "training and validation records"
        yield from notes_of_codes(source.materials, source.places, codes, budget=budget, what=what)


def notes_of_codes(
    materials: Sequence[str],
    places: Sequence[str],
    codes: np.ndarray | None,
    *,
    budget: str | None = None,
    what: str = "training records",
) -> Iterator[str]:
    """The same, of codes uint8 (N, 32) of the records, called so; None where nothing has been remembered.

    **Guarantee.** A run that the list of uses has on a data set with one of these records, by either of its codes, is
    counted by `sfumato.runs.owner.uses.plans`, or is in the note, as long as its codes have been remembered.
    """
    yield from compared.notes()
    if codes is None or not len(codes):
        return
    # Run by run: of one data set some may be counted, for their place, and others not.
    counted = {entry["run"] for entry, _, _ in uses.lines(materials, None, places)}
    common, runs = np.zeros(len(codes), bool), dict[str, str]()
    for material, found in _others(counted, budget).items():
        among = listed(keys.home() / FOLDER / f"{material}.npy")
        if among is not None and (again := known_again(codes, among)).any():
            common |= again
            runs |= found
    if runs:
        yield _words(int(common.sum()), len(codes), runs, what)


def _codes(source: Source) -> np.ndarray:
    """Codes uint8 (N, 32) of the records that are trained on, and of those that are held out to score on."""
    parts = [part for part in (source.train, source.held_out) if part is not None]
    return np.concatenate([own_codes(part, owner_key()) for part in parts])


def _others(counted: set[str], budget: str | None) -> dict[str, dict[str, str]]:
    """Of each data set: its runs that are not counted, by their identities, and what each is called."""
    found: dict[str, dict[str, str]] = {}
    for entry in uses.trainings():
        if entry["run"] not in counted and (budget is None or entry.get(uses.BUDGET) != budget):
            found.setdefault(entry["data"], {})[entry["run"]] = entry.get(uses.NAME, "")
    return found


def _words(common: int, count: int, runs: dict[str, str], what: str) -> str:
    """The note.

    >>> _words(1, 1000, {"a": "runs/a"}, "training records")[:104]
    'note: 1 of these 1,000 training records (0.1%) was used by 1 run of yours on another data set (runs/a), '
    """
    named = [*dict.fromkeys(filter(None, runs.values()))]
    shown = f" ({', '.join([*named[:_NAMED], *(['...'] if len(named) > _NAMED else [])])})" if named else ""
    share = f"{max(0.1, 100 * common / count):.3g}%"
    many, more = ("was", "were")[common > 1], len(runs) > 1
    return (
        f"note: {common:,} of these {count:,} {what} ({share}) {many} used by {len(runs)} "
        f"run{'s' if more else ''} of yours on {'other data sets' if more else 'another data set'}{shown}, which no "
        "total counts with this one: the cost of all adds up for a record that is in all; leave these records out, or "
        "give all such runs one budget (sfumato budget)"
    )
