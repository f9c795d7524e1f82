"""Lists of keyed codes of records, stored next to the owner's key: records that runs used as private, and records that
non-private training has seen.

Without the key the codes reveal nothing. Each list is a separate file, and the owner's store records its length.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import make_directory, regular_file, write, write_errors
from sfumato.data import Source, find_known, own_codes
from sfumato.randomness import keys, owner_key
from sfumato.runs.owner import store
from sfumato.runs.owner.lines import CodesListed
from sfumato.runs.owner.store import TRAINED_ON, USED, History

CODE_BYTES = 32


def extend(held: History, folder: str, material: str, now: np.ndarray) -> None:
    """Add codes uint8 (N, 32) to a list, creating it if necessary. The caller holds the store."""
    path = held.home / folder / f"{material}.npy"
    before = read_list(folder, material)
    if before is not None and np.array_equal(before, now):
        return
    # A list may hold a record twice, so its length does not tell which records it holds.
    new = now if before is None else now[~np.isin(_as_single_values(now), _as_single_values(before))]
    if before is not None and not len(new):
        return
    kept = new if before is None else np.concatenate([before, new])
    stored = io.BytesIO()
    np.save(stored, kept)
    with write_errors(path):
        make_directory(path.parent, private=True)
        write(path, stored.getvalue(), private=True)
    held.append(CodesListed(path=f"{folder}/{path.name}", count=len(kept)))


def read_list(folder: str, material: str, *, whole: bool = True) -> np.ndarray | None:
    """The codes uint8 (N, 32) of a list, in memory or memory-mapped; None if there is no such list."""
    path = keys.home() / folder / f"{material}.npy"
    try:
        codes = np.load(regular_file(path), mmap_mode=None if whole else "r", allow_pickle=False)
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
    """Store the codes of the records that a non-private training is about to see."""
    codes = own_codes(source.train, owner_key())
    with store.locked() as held:
        # The material covers both parts together: an earlier training may have seen a smaller part of them.
        extend(held, TRAINED_ON, source.stored_digest, codes)


def refuse_trained_on(source: Source, materials: Collection[str], *, whitening: str | None = None) -> None:
    """Refuse weights that were trained without privacy on even one record that is private here.

    Args:
        source: the private source. Its test part and the records held out for scoring count too: whatever the weights
            know of them is in every model that starts from these weights.
        materials: `Source.stored_digest` of what the weights were trained on without privacy.
        whitening: the public source by whose features those of `source` are whitened, if that is what saw them.

    Errors: `SfumatoError` with the number of such records. It is for the owner alone and appears in no statement.
    """
    if source.public:
        return
    among = [codes for material in materials if (codes := read_list(TRAINED_ON, material)) is not None]
    held = [part for part in (source.train, source.test, source.held_out) if part is not None]
    parts = [own_codes(part, owner_key()) for part in held] if among else []
    seen = sum(int(find_known(part, np.concatenate(among)).sum()) for part in parts)
    if seen or source.stored_digest in materials:
        what, other = "the pre-trained weights were trained without privacy on", "start from other weights"
        if whitening is not None:
            what, other = f"whiten_by {whitening} holds", "give another `whiten_by`"
        raise SfumatoError(
            f"{what} {f'{seen} of these {sum(map(len, parts))} private records' if seen else 'these very records'}, "
            "which are private here",
            f"leave these records out (sfumato dedup PUBLIC PRIVATE), {other}, or declare the data "
            "public (`public=True`) if they are",
        )


def unlisted_notes(source: Source, materials: Collection[str]) -> Iterator[str]:
    """A note for the owner if the records of the non-private training are not listed."""
    if not source.public and any(read_list(TRAINED_ON, material) is None for material in materials):
        yield (
            "note: the records that the pre-trained weights were trained on without privacy are not listed next to "
            "your key, so it was not checked whether some of them are private here (sfumato dedup checks it)"
        )


def disagreements(history: History | None = None) -> Iterator[str]:
    """Entries that the owner's store or the lists have lost, in words.

    **Guarantee.** A store or a list that lost entries, because it is missing or was replaced by an older copy, is named
    as long as the count or the other file still has them. If all files are restored from the same old copy, they agree,
    and the loss is not detected.

    Errors: `SfumatoError` if one of them cannot be read.
    """
    history = history or store.read()
    if not history.counted:
        yield f"their count ({store.COUNT}) is missing"
    elif history.anew:
        yield f"their count ({store.COUNT}) was missing and begun anew on {history.anew}, with what was there"
    if history.lost > bool(history.anew):
        yield f"{store.FILE} lacks {history.lost:,} of {history.entries:,} entries"
    counts = {one.path: one.count for one in history.lines if isinstance(one, CodesListed)}
    for path, count in counts.items():
        codes = read_list(*path.removesuffix(".npy").split("/"), whole=False)
        if codes is None:
            yield f"{path} is gone"
        elif len(codes) < count:
            yield f"{path} lacks {count - len(codes):,} of {count:,} entries"
    if (lacking := len(history.code_lists - counts.keys())) and not history.lost:
        yield f"{store.FILE} does not know {lacking} of the lists in {USED} and {TRAINED_ON}"
    for folder in sorted(history.home.glob(f"{store.LOST_KEY}*")):
        yield f"those of a lost key lie in {folder.name}"


def _as_single_values(codes: np.ndarray) -> np.ndarray:
    """Each row as a single value, (N,)."""
    return np.ascontiguousarray(codes).view(f"V{CODE_BYTES}")[:, 0]
