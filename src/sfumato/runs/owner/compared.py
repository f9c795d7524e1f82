"""Whether the owner's lists say the same: against their count, and against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sfumato.randomness import keys
from sfumato.runs.owner import budgets, chained, public_records, standing, uses
from sfumato.runs.owner.standing import Count

USED_RECORDS = "used-records"


def notes() -> Iterator[str]:
    """What the owner should know where they disagree: in one line, before any total."""
    if found := [*disagreements()]:
        yield (
            f"note: your lists disagree: {'; '.join(found)}; what was lost is in no total, so that each is too "
            f"small, until {keys.home()} is restored from a copy"
        )


def disagreements() -> Iterator[str]:
    """What is wrong with them, in words.

    **Guarantee.** A list that lost entries, as a whole or by an older copy, is named, as long as its count stands or
    another list has what it lacks. All lists and their count restored from one old copy agree, and nothing here tells.

    Errors: `SfumatoError` where one of them cannot be read.
    """
    home = keys.home()
    records = {path.stem for path in (home / USED_RECORDS).glob("*.npy")}
    known = standing.read(home)
    yield from _against_count(home, known)
    yield from _against_each_other(home, records, {} if known is None else known.counts)
    for folder in sorted(home.glob(f"{standing.LOST}*")):
        yield f"those of a lost key lie in {folder.name}"


def _against_count(home: Path, known: standing.Standing | None) -> Iterator[str]:
    if known is None:
        if keys.lists_in(home):
            yield f"their count ({standing.FILE}) is missing"
        return
    if known.anew:
        yield f"their count ({standing.FILE}) was missing and begun anew on {known.anew}, with what was there"
    for name, count in known.counts.items():
        if lost := _lost(home / name, count):
            yield f"{name} lacks {lost:,} of {count.entries:,} entries" if (home / name).exists() else f"{name} is gone"


def _lost(path: Path, count: Count) -> int:
    """How many entries of a list are no more: those after the last one that was counted are of a kill, and none."""
    if path.suffix == ".npy":
        codes = public_records.listed(path, whole=False)
        return max(0, count.entries - (0 if codes is None else len(codes)))
    codes = uses.codes(path.parent) if path.name == uses.FILE else chained.read(path, budgets.WHAT).seals
    if count.last in codes:
        return max(0, count.entries - 1 - codes.index(count.last))
    return max(1, count.entries - len(codes))  # the last one that was counted is gone or was changed


def _against_each_other(home: Path, records: set[str], counts: Mapping[str, Count]) -> Iterator[str]:
    """Those that are written later are read first, so that a run that begins meanwhile is no loss."""
    reserved = {name: {one.run for one in budgets.read_budget(name).reservations} for name in budgets.names()}
    trainings = uses.trainings()
    runs, data = {entry["run"] for entry in trainings}, {entry["data"] for entry in trainings}
    for name, own in reserved.items():
        if lacking := len(own - runs):
            yield f"{uses.FILE} lacks {lacking} of the runs in {budgets.FOLDER}/{name}.jsonl"
    # What the count has, and the list has not, is of a run that was cut before its line.
    if lacking := sum(f"{USED_RECORDS}/{one}.npy" not in counts for one in records - data):
        yield f"{uses.FILE} has no run on {lacking} of the data sets in {USED_RECORDS}"
    if lacking := sum(not (home / USED_RECORDS / f"{one}.npy").exists() for one in data):
        yield f"{USED_RECORDS} lacks {lacking} of the data sets in {uses.FILE}"
