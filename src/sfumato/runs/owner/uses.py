"""How often the owner has used a private data set: the list on disk.

One line for each run, beside the owner's key and outside the run directories: it links runs on one data set for the
owner and for nobody else.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import held_alone, ordinary, whole_lines
from sfumato._systems import durable, open_bytes
from sfumato.privacy import PrivacyPlan, PrivateChoice, PrivateSelection
from sfumato.privacy.unit import Example
from sfumato.randomness import keys
from sfumato.runs.owner import called, standing
from sfumato.runs.owner.composition import Use, unit_of

FILE = "uses.jsonl"
FIGURES = "figures"
"""The field with what a run's published figures cost each test image."""
CHOICE = "choice"
"""The field of a line that is a choice by test images: what it cost each of them."""
AFTER = "after"
"""The field with the code of the line before: one that is lost or was cut is missed."""
USERS = "users"
BUDGET = "budget"
"""The field with the budget that a run is reserved in: a line that its file has lost is found here."""
SEEDED = "seeded"
"""The field of a run whose randomness follows from a seed: its plan counts, and it promises nothing."""
DATE, NAME = "date", "name"
"""When a line was written, in UTC, and what the run is called."""


def record(
    materials: Sequence[str],
    run: str,
    use: Use,
    directory: Path | None = None,
    *,
    places: Sequence[str] = (),
    users: str = "",
    figures: float | None = None,
    name: str = "",
    budget: str | None = None,
    seeded: bool = False,
) -> None:
    """Note that a run, or a private selection, on these data is about to take its first step.

    Args:
        materials: `Source.materials`: of what is stored, and of the pixels where these are known.
        places: `Source.places`, where they were read from.
        users: `Source.assignment`: whose record each one is, of a promise for users.
        figures: epsilon of the figures that the run is to publish of its test part; None where it publishes none.
        name: what the owner reads of it: its directory, by the last two names of the path.
        budget: the name of the budget that it is reserved in; None for none.
        seeded: whether its randomness follows from a seed, so that it promises nothing.
    """
    whose = {} if unit_of(use) == Example.name else {USERS: users}
    published = {} if figures is None else {FIGURES: figures}
    kind = "plan" if isinstance(use, PrivacyPlan) else "selection"
    named = {} if budget is None else {BUDGET: budget}
    entry = {"run": run, NAME: name, **named, SEEDED: seeded, **whose, **published, kind: use.to_dict()}
    _append(entry, materials, places, directory)


def record_choice(
    materials: Sequence[str], choice: PrivateChoice, directory: Path | None = None, *, places: Sequence[str] = ()
) -> None:
    """Note that a choice by right answers on the test part of these data is about to be made: see `record`."""
    _append({"run": secrets.token_hex(32), CHOICE: asdict(choice)}, materials, places, directory)


def _append(entry: Mapping[str, Any], materials: Sequence[str], places: Sequence[str], directory: Path | None) -> None:
    """A line of the list, with what its data are known again by and the code of the line before, safely on disk."""
    if not materials:  # whose line nobody could read again
        raise SfumatoError(
            "the source has no material, by which the list of runs knows its records again", "open it by `open_source`"
        )
    path = (directory or keys.home()) / FILE
    data = dict(zip(("data", "pixels"), materials, strict=False))
    where = {"place": places[0] if places else None, "origins": list(places[1:])}
    try:
        standing.begin(path.parent)
        descriptor = open_bytes(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "r+b") as file:
            held_alone(file.fileno(), f"the list of runs {path}")
            earlier = _whole(file.read())
            date = datetime.now(UTC).isoformat(timespec="seconds")
            line = json.dumps({DATE: date, **data, **where, **entry, AFTER: _code(earlier[-1] if earlier else b"")})
            # The line break comes first as well: a line that was cut short must not swallow this one.
            file.write(f"\n{line}\n".encode())
            file.flush()
            durable(file.fileno())  # its name, where the list may be new, with that of its count
            standing.moved(path.parent, FILE, before=len(earlier), after=len(earlier) + 1, last=_code(line.encode()))
    except OSError as error:
        raise SfumatoError(
            f"the list of runs {path} cannot be extended ({error.strerror})", "free some space or mend its permissions"
        ) from None


def places_of(record: Mapping[str, Any]) -> tuple[str, ...]:
    """`Source.places` of a run by its settings.json."""
    return tuple(record["places"])


def plans(
    materials: Sequence[str], directory: Path | None = None, *, places: Sequence[str] = (), users: str = ""
) -> list[Use]:
    """The plans of all runs so far on these data, or on what was then at one of these places, one for each run; and of
    each private selection.

    Promises for users are among them where the same records were the same users' (`Source.assignment`): what one calls
    a user may be several to another, and their losses don't compose. The others are `other_assignments`.

    The same images at another size, in another format, or their features, have a material in common; images that
    were changed are known by their place alone.

    Errors: `SfumatoError` where a line cannot be read, or where one that was written before another is gone: then what
    the runs cost together is not known.
    """
    return list(runs(materials, directory, places=places, users=users).values())


def runs(
    materials: Sequence[str], directory: Path | None = None, *, places: Sequence[str] = (), users: str = ""
) -> dict[str, Use]:
    """The same, each by the identity of its run."""
    found = _known(materials, directory, places)
    return {run: known.use for run, known in found.items() if known.use is not None and _for(known, users)}


def other_assignments(
    materials: Sequence[str], directory: Path | None = None, *, places: Sequence[str] = (), users: str = ""
) -> int:
    """How many runs on these data promised for users who were told apart otherwise: they compose with none of these."""
    return sum(not _for(known, users) for known in _known(materials, directory, places).values())


def seeded(
    materials: Sequence[str], directory: Path | None = None, *, places: Sequence[str] = (), users: str = ""
) -> int:
    """How many of these runs are by a seed: their plans count, and they promise nothing."""
    found = _known(materials, directory, places).values()
    return sum(known.seeded for known in found if known.use is not None and _for(known, users))


def figures(materials: Sequence[str], directory: Path | None = None, *, places: Sequence[str] = ()) -> list[float]:
    """What each release about test images of these data cost each of them: a run's figures, or a choice."""
    return [known.figures for known in _known(materials, directory, places).values() if known.figures is not None]


class _Known(NamedTuple):
    """A run, a private selection, or a choice by test images, of the list.

    Attributes:
        use: None for a choice, which says nothing of records that were trained on.
        users: whose records its promise for users took them for, as often as it is on the list; None for one that
            counts in every sum.
        figures: epsilon of the figures that it publishes, or of the choice.
        seeded: whether it is by a seed.
    """

    use: Use | None
    users: frozenset[str | None] | None
    figures: float | None
    seeded: bool = False


def _for(known: _Known, users: str) -> bool:
    """Whether it counts in the sum of those that took the same records for one user's."""
    return known.users is None or users in known.users


def _known(materials: Sequence[str], directory: Path | None, places: Sequence[str]) -> dict[str, _Known]:
    """The runs of `plans`, all of them, by their identities."""
    found: dict[str, _Known] = {}
    for entry, use, known in lines(materials, directory, places):
        if isinstance(use, PrivateChoice):
            found[entry["run"]] = _Known(None, None, use.epsilon)
            continue
        # Of data that were changed since, at one place, whose they are is taken to be said in one way.
        users = frozenset([entry[USERS]]) if known and unit_of(use) != Example.name else None
        before, published = found.get(entry["run"]), entry.get(FIGURES)
        if before is not None:  # it went on: what it was before counts all the same
            users = None if users is None or before.users is None else users | before.users
            published = max((one for one in (published, before.figures) if one is not None), default=None)
        found[entry["run"]] = _Known(use, users, published, entry[SEEDED])
    return found


def lines(
    materials: Sequence[str], directory: Path | None, places: Sequence[str]
) -> Iterator[tuple[dict[str, Any], Use | PrivateChoice, bool]]:
    """The lines about these data, or about what was then at one of these places; what each is about; and whether it is
    the data themselves that are known again."""
    read = _read(directory)
    same, where = called.together((entry for entry, _ in read), materials, places)
    for entry, use in read:
        own = called.materials_of(entry)
        if own & same or called.places_of(entry) & where:
            yield entry, use, bool(own & set(materials))


def under(budget: str, directory: Path | None = None) -> dict[str, tuple[dict[str, Any], Use]]:
    """The line and the plan, or the private selection, of each run that was to be reserved in this budget."""
    return {
        entry["run"]: (entry, use)
        for entry, use in _read(directory)
        if entry.get(BUDGET) == budget and not isinstance(use, PrivateChoice)
    }


def trainings(directory: Path | None = None) -> list[dict[str, Any]]:
    """The lines of all runs and private selections."""
    return [entry for entry, use in _read(directory) if not isinstance(use, PrivateChoice)]


def plan_of(run: str, directory: Path | None = None) -> Use | PrivateChoice | None:
    """What the list has of the run with this identity; None where it has nothing."""
    return next((use for entry, use in _read(directory) if entry["run"] == run), None)


def _read(directory: Path | None) -> list[tuple[dict[str, Any], Use | PrivateChoice]]:
    """All lines of the list, and what each of them is about; a run may have several, all of one plan."""
    path = (directory or keys.home()) / FILE
    all_runs: dict[str, Use | PrivateChoice] = {}
    lines = []
    before = b""
    for number, line in enumerate(_content(path).split(b"\n"), start=1):
        if not line or torn(line):
            continue
        try:
            entry = parse_json(line)
            if entry[AFTER] != _code(before):
                raise ValueError("it does not follow the line before it")
            before = line
            use = _use_of(entry)
            if all_runs.setdefault(entry["run"], use) != use:
                raise ValueError("its run has another plan above")
            hash((entry["data"], entry.get("pixels"), entry["place"], *entry["origins"]))  # for `_known`
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SfumatoError(
                f"line {number} of the list of runs {path} cannot be read ({error!r}), so what your runs cost together "
                "is not known",
                "restore the list from a copy, or go back to the version of sfumato that wrote the line",
            ) from None
        lines.append((entry, use))
    return lines


def codes(directory: Path) -> list[str]:
    """Of each line, by which its count knows it (`standing`)."""
    return [_code(line) for line in _whole(_content(directory / FILE))]


def _content(path: Path) -> bytes:
    return ordinary(path).read_bytes() if path.exists() else b""


def _whole(content: bytes) -> list[bytes]:
    """The lines whose runs had begun."""
    return [line for line in content.split(b"\n") if line and not torn(line)]


def _use_of(entry: dict[str, Any]) -> Use | PrivateChoice:
    """The plan of a line, its selection, or its choice."""
    if sum(kind in entry for kind in ("plan", "selection", CHOICE)) > 1:
        raise ValueError("it has more than one of a plan, a selection and a choice")
    if CHOICE in entry:
        return PrivateChoice(**entry[CHOICE])
    if "selection" in entry:
        return PrivateSelection.from_dict(entry["selection"])
    return PrivacyPlan.from_dict(entry["plan"])


def _code(line: bytes) -> str:
    """Of the line before; of the first there is nothing before."""
    return hashlib.sha256(line).hexdigest()[:16]


def torn(line: bytes) -> bool:
    """Whether a kill, a full disk or a power cut came before it was whole, so that its run had not begun: it breaks off
    at its end, or holds zeros in place of what was not yet on the disk."""
    if whole_lines(line + b"\n") != line + b"\n":
        return True
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string") or error.pos >= len(line) - len("null")
    except (ValueError, RecursionError):
        return False
    return False
