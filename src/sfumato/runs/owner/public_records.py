"""Which records training without privacy has seen, so that weights that know private records are refused.

Beside the owner's key lie the codes of the records of every public training. They are keyed: they tell nothing to
whoever lacks the key, and weights of another owner's training cannot be looked up.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import make_directory, ordinary, write, writing
from sfumato.data import Source, known_again, own_codes
from sfumato.randomness import owner_key
from sfumato.randomness.keys import home

FOLDER = "trained-on"
CODE_BYTES = 32


def remember(source: Source) -> None:
    """Keep the codes of the records that a public training is about to see."""
    # The material is that of both parts together: an earlier training may have seen a smaller part of them.
    extend(_path(source.stored_digest), own_codes(source.train, owner_key()))


def extend(path: Path, now: np.ndarray) -> None:
    """Add codes uint8 (N, 32) to a list of them, which begins with these where there is none."""
    before = listed(path)
    known = now if before is None else np.unique(np.concatenate([before, now]), axis=0)
    if before is not None and len(known) == len(before):
        return
    stored = io.BytesIO()
    np.save(stored, known)
    with writing(path):
        make_directory(path.parent, private=True)
    write(path, stored.getvalue(), private=True)


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


def listed(path: Path) -> np.ndarray | None:
    """The codes uint8 (N, 32) of a list; None where there is none."""
    try:
        with open(ordinary(path), "rb") as file:
            codes = np.load(file, allow_pickle=False)
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != CODE_BYTES:
            raise ValueError
    except FileNotFoundError:
        return None
    except SfumatoError:
        raise
    except (OSError, ValueError, EOFError, AttributeError):
        raise SfumatoError(f"the list of records {path} is damaged", "restore it from a copy") from None
    return codes


def _path(material: str) -> Path:
    return home() / FOLDER / f"{material}.npy"
