"""Lists of keyed codes of records beside the owner's key: of those that runs used as private, and of those that
training without privacy has seen.

They tell nothing to whoever lacks the key. Each list is a file of its own, whose length the owner's store knows.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import make_directory, ordinary, write, writing
from sfumato.data import Source, known_again, own_codes
from sfumato.randomness import keys, owner_key
from sfumato.runs.owner import store
from sfumato.runs.owner.lines import CodesListed
from sfumato.runs.owner.store import Store

USED, TRAINED_ON = "used-records", "trained-on"
"""The folders of both kinds of lists. A list is called by the material of its data."""
CODE_BYTES = 32


def extend(held: Store, folder: str, material: str, now: np.ndarray) -> None:
    """Add codes uint8 (N, 32) to a list of them, which begins with these where there is none; the store is held."""
    path = held.home / folder / f"{material}.npy"
    before = listed(folder, material)
    if before is not None and np.array_equal(before, now):
        return
    # A list may have a record twice, so that its length tells nothing of what is on it.
    new = now if before is None else now[~np.isin(_whole(now), _whole(before))]
    if before is not None and not len(new):
        return
    kept = new if before is None else np.concatenate([before, new])
    stored = io.BytesIO()
    np.save(stored, kept)
    with writing(path):
        make_directory(path.parent, private=True)
        write(path, stored.getvalue(), private=True)
    held.append(CodesListed(path=f"{folder}/{path.name}", count=len(kept)))


def listed(folder: str, material: str, *, whole: bool = True) -> np.ndarray | None:
    """The codes uint8 (N, 32) of a list, in memory or else mapped; None where there is none."""
    path = keys.home() / folder / f"{material}.npy"
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


def remember_public(source: Source) -> None:
    """Keep the codes of the records that a training without privacy is about to see."""
    codes = own_codes(source.train, owner_key())
    with store.held() as held:
        # The material is that of both parts together: an earlier training may have seen a smaller part of them.
        extend(held, TRAINED_ON, source.stored_digest, codes)


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
    among = [codes for material in materials if (codes := listed(TRAINED_ON, material)) is not None]
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
    if not source.public and any(listed(TRAINED_ON, material) is None for material in materials):
        yield (
            "note: the records that the pre-trained weights were trained on without privacy are not listed beside your "
            "key, so nobody has looked whether some of them are private here (sfumato dedup does)"
        )


def disagreements() -> Iterator[str]:
    """What the owner's store and the lists lack, in words.

    **Guarantee.** A store or a list that lost entries, as a whole or by an older copy, is named, as long as the count,
    or the other one, has what it lacks. All of them restored from one old copy agree, and nothing here tells.

    Errors: `SfumatoError` where one of them cannot be read.
    """
    home = keys.home()
    lists = {path.relative_to(home).as_posix() for one in (USED, TRAINED_ON) for path in (home / one).glob("*.npy")}
    found = store.read()  # after what is written before it, so that a run that begins meanwhile is no loss
    if not found.counted:
        yield f"their count ({store.COUNT}) is missing"
    elif found.anew:
        yield f"their count ({store.COUNT}) was missing and begun anew on {found.anew}, with what was there"
    if found.lost > bool(found.anew):
        yield f"{store.FILE} lacks {found.lost:,} of {found.entries:,} entries"
    counts = {one.path: one.count for one in found.lines if isinstance(one, CodesListed)}
    for path, count in counts.items():
        codes = listed(*path.removesuffix(".npy").split("/"), whole=False)
        if codes is None:
            yield f"{path} is gone"
        elif len(codes) < count:
            yield f"{path} lacks {count - len(codes):,} of {count:,} entries"
    if (lacking := len(lists - counts.keys())) and not found.lost:
        yield f"{store.FILE} does not know {lacking} of the lists in {USED} and {TRAINED_ON}"
    for folder in sorted(home.glob(f"{store.LOST_KEY}*")):
        yield f"those of a lost key lie in {folder.name}"


def _whole(codes: np.ndarray) -> np.ndarray:
    """Each row as one value, (N,)."""
    return np.ascontiguousarray(codes).view(f"V{CODE_BYTES}")[:, 0]
