"""Which records training without privacy has seen, so that weights that know private records are refused.

Beside the owner's key lie the codes of the records of every public training. They are keyed: they tell nothing to
whoever lacks the key, and weights of another owner's training cannot be looked up.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import held_alone, make_directory, ordinary, write, writing
from sfumato._systems import open_bytes
from sfumato.data import Source, known_again, own_codes
from sfumato.randomness import owner_key
from sfumato.randomness.keys import home
from sfumato.runs.owner import standing

FOLDER = "trained-on"
CODE_BYTES = 32
LOCK = ".lock"


def remember(source: Source) -> None:
    """Keep the codes of the records that a public training is about to see."""
    # The material is that of both parts together: an earlier training may have seen a smaller part of them.
    extend(_path(source.stored_digest), own_codes(source.train, owner_key()))


def extend(path: Path, now: np.ndarray) -> None:
    """Add codes uint8 (N, 32) to a list of them, which begins with these where there is none.

    **Guarantee.** After it all of them are on the list, whatever other processes add to it at the same time.
    """
    with writing(path):
        standing.begin(path.parents[1])
        make_directory(path.parent, private=True)
        descriptor = open_bytes(path.parent / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    with open(descriptor, "r+b") as lock:
        held_alone(lock.fileno(), f"the list of records {path}")
        before = listed(path)
        if before is not None and np.array_equal(before, now):
            return
        # A list may have a record twice, so that its length tells nothing of what is on it.
        new = now if before is None else now[~np.isin(_whole(now), _whole(before))]
        if before is not None and not len(new):
            return
        stored = io.BytesIO()
        np.save(stored, new if before is None else np.concatenate([before, new]))
        write(path, stored.getvalue(), private=True)
        known = 0 if before is None else len(before)
        name = f"{path.parent.name}/{path.name}"
        standing.moved(path.parents[1], name, before=known, after=known + len(new))


def refuse_trained_on(source: Source, materials: Collection[str]) -> None:
    """Refuse weights that were trained without privacy on records that are private here, be it on a single one.

    Args:
        source: its records, those of its test part and those held out to score on included: what weights know of them
            is in every model that begins with them.
        materials: `Source.stored_digest` of what the weights were trained on without privacy.

    Errors: `SfumatoError` with the number of such records, which is the owner's to see and stands in no statement.
    """
    if source.public:
        return
    among = [codes for codes in map(_codes, materials) if codes is not None]
    held = [part for part in (source.train, source.test, source.held_out) if part is not None]
    parts = [own_codes(part, owner_key()) for part in held] if among else []
    seen = sum(int(known_again(part, np.concatenate(among)).sum()) for part in parts)
    if seen or source.stored_digest in materials:
        raise SfumatoError(
            "the pre-trained weights were trained without privacy on "
            + (f"{seen} of these {sum(map(len, parts))} private records" if seen else "these very records")
            + ", which are private here",
            "leave these records out (sfumato dedup PUBLIC PRIVATE), begin with other weights, or declare the data "
            "public (`public=True`) if they are",
        )


def unlisted(source: Source, materials: Collection[str]) -> Iterator[str]:
    """What to tell the owner where records of public training are not known."""
    lost = sum(_codes(material) is None for material in materials)
    if lost and not source.public:
        yield (
            "note: the records that the pre-trained weights were trained on without privacy are not listed beside your "
            "key, so nobody has looked whether some of them are private here (sfumato dedup does)"
        )


def _codes(material: str) -> np.ndarray | None:
    """Codes uint8 (N, 32) of a public training's records; None where they are not listed."""
    return listed(_path(material))


def listed(path: Path, *, whole: bool = True) -> np.ndarray | None:
    """The codes uint8 (N, 32) of a list, in memory or else mapped; None where there is none."""
    try:
        codes = np.load(ordinary(path), mmap_mode=None if whole else "r", allow_pickle=False)
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != CODE_BYTES:
            raise ValueError
    except FileNotFoundError:
        return None
    except SfumatoError:
        raise
    except (OSError, ValueError, EOFError, AttributeError):
        raise SfumatoError(f"the list of records {path} is damaged", "restore it from a copy") from None
    return codes


def _whole(codes: np.ndarray) -> np.ndarray:
    """Each row as one value, (N,)."""
    return np.ascontiguousarray(codes).view(f"V{CODE_BYTES}")[:, 0]


def _path(material: str) -> Path:
    return home() / FOLDER / f"{material}.npy"
