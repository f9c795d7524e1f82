"""How long the owner's lists have grown: a keyed count beside them, by which one that lost its end is missed.

It moves with every entry and never back, so that a list restored from an old copy is missed too, and one that goes on
after a loss. Each entry of the file is one fact that must not be lost, under a name of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import held_alone, make_directory, ordinary, sync_directory, write
from sfumato._systems import open_bytes
from sfumato.randomness import keys

FILE = "lists.json"
SEAL = "seal"
LOST = "lost-key-"
"""How folders with lists of a lost key are called, before their date."""
_LOCK = ".lists.lock"


class Count(NamedTuple):
    """How long a list was when it was last added to.

    Attributes:
        entries: all that were ever added.
        last: the code of the last one; empty where entries have none.
    """

    entries: int
    last: str


@dataclass(frozen=True)
class Standing:
    """The file.

    Args:
        counts: of each list, by its path in the owner's folder.
        anew: the date on which it was begun although lists were there, so that it knows no loss from before; else "".
        openings: the salt of the latest opening of each run without a seed, by the run's identity.
    """

    counts: Mapping[str, Count] = field(default_factory=dict)
    anew: str = ""
    openings: Mapping[str, str] = field(default_factory=dict)


def read(home: Path) -> Standing | None:
    """What the file says; None where there is none.

    Errors: `SfumatoError` where it was changed, or is of another owner's key.
    """
    path = home / FILE
    try:
        said = parse_json(ordinary(path).read_bytes())
        seal = said.pop(SEAL)
        if not hmac.compare_digest(seal, _sealed(home, said)):
            raise ValueError("it was changed, or made under another owner's key")
        counts = {name: Count(*one) for name, one in said["counts"].items()}
        return Standing(counts=counts, anew=said["anew"], openings=said["openings"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SfumatoError(
            f"the count of your lists {path} cannot be read ({error})",
            "restore the lists, and the owner's key beside them, from a copy, or lay lists of another key aside "
            "(sfumato doctor --new-key)",
        ) from None


def begin(home: Path) -> None:
    """See that there is a count, and that it is of this key: before a list is added to, so that a kill leaves none
    without."""
    with _held(home):
        if read(home) is None:
            today = datetime.now(UTC).date().isoformat()
            _write(home, Standing(anew=today if keys.lists_in(home) else ""))


def moved(home: Path, name: str, *, before: int, after: int, last: str = "") -> None:
    """Count what was added to a list, which is held and had so many entries before, and after.

    **Guarantee.** The count is at least the number of entries that were added under it, whatever was lost since.
    """
    with _held(home):
        standing = read(home) or Standing()
        known = standing.counts.get(name, Count(0, "")).entries
        count = Count(max(known, before) + after - before, last)
        _write(home, replace(standing, counts={**standing.counts, name: count}))


def opened(home: Path, run: str, before: str | None, salt: str) -> bool:
    """Write down the latest opening of a run; whether this is the one that it goes on from.

    Args:
        before: the salt of the opening before, as this copy of the run has it; None for none.

    **Guarantee.** Where two copies of an unfinished run go on, the second one is told so: each of them spends the whole
    plan on its own, and only one is on the owner's list.
    """
    with _held(home):
        standing = read(home) or Standing()
        latest = standing.openings.get(run, before)
        _write(home, replace(standing, openings={**standing.openings, run: salt}))
    return latest == before


def new_key() -> Path:
    """Make another owner's key where the old one is lost, and lay the lists of the lost one aside; their new folder.

    Errors: `SfumatoError` where there are no such lists.
    """
    home = keys.home()
    lists = {path.relative_to(home).parts[0] for path in keys.lists_in(home)}
    if not lists or ((home / keys.OWNER_KEY).exists() and _is_ours(home)):
        raise SfumatoError(
            f"there are no lists of a lost owner's key in {home}", "leave --new-key out: a key is made at first use"
        )
    with _held(home):
        aside = home / f"{LOST}{datetime.now(UTC):%Y-%m-%d-%H%M%S}"
        make_directory(aside, private=True)
        for name in sorted(lists):
            os.rename(home / name, aside / name)
        sync_directory(home)
    keys.owner_key(home)
    return aside


def _is_ours(home: Path) -> bool:
    try:
        return read(home) is not None
    except SfumatoError:
        return False


@contextmanager
def _held(home: Path) -> Iterator[None]:
    make_directory(home, private=True)
    with open(open_bytes(home / _LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as lock:
        held_alone(lock.fileno(), f"the count of your lists {home / FILE}")
        yield


def _write(home: Path, standing: Standing) -> None:
    said = json.loads(json.dumps(asdict(standing)))
    write(home / FILE, json.dumps({**said, SEAL: _sealed(home, said)}).encode(), private=True)


def _sealed(home: Path, said: object) -> str:
    text = json.dumps(said, sort_keys=True)
    return hmac.new(keys.owner_key(home), b"lists " + text.encode(), hashlib.sha256).hexdigest()
