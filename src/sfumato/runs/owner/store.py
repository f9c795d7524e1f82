"""The owner's store: a file with a line for every use of private data, and lists of keyed codes of records.

No line may be lost or changed. The store lies next to the owner's key, outside the run directories, so deleting a run
directory gives no budget back. Each line carries a seal: a code under the owner's key over the line and the previous
seal. A sealed count in a second file holds the number of lines written so far. It detects a file that lost its end or
was restored from an old copy.

The lists of codes, one file each, hold records that runs used as private and records that non-private training has
seen. Without the key the codes reveal nothing. The store records the length of each list.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import lock_exclusively, make_directory, regular_file, sync_directory, write, write_errors
from sfumato._systems import fsync, open_bytes
from sfumato.data import Source, find_known, own_codes
from sfumato.randomness import keys, owner_key
from sfumato.runs.owner.lines import CodesListed, DataUse, Line, Release, from_dict, now, to_dict

L = TypeVar("L", bound=Line)
FILE, COUNT = "uses.jsonl", "lists.json"
USED, TRAINED_ON = "used-records", "trained-on"
"""The folders of both kinds of lists of record codes. A list is named after the material of its data."""
SEAL = "seal"
CODE_BYTES = 32
LOST_KEY = "lost-key-"
"""The prefix, before the date, of a folder with the lists of a lost key."""


class Count(NamedTuple):
    """The length of the file after the last append.

    Attributes:
        entries: the number of lines ever written.
        last: the seal of the last line.
        anew: the date on which the count was restarted although there were lines; else "".
    """

    entries: int
    last: str
    anew: str = ""


class History:
    """The lines of the file, as they were when it was read. They can be added to while the file is locked (`locked`).

    Args:
        home: the owner's folder.
        count: the count, read before the file; None if there is none.
        content: the file's bytes.
        code_lists: the paths of the lists of record codes, found before the file was read.

    Attributes:
        lines: all lines in order.
        lost: the number of lines that are no longer in the file; at least 1 if the count was lost.
        anew: see `Count`.

    **Guarantee.** A line that was changed, does not follow the one before it, or was sealed by another key is refused.
    A line that is not valid JSON is skipped: if it was once a whole line, then the next one does not follow, or the
    count reveals the loss.
    """

    def __init__(self, home: Path, count: Count | None, content: bytes, code_lists: frozenset[str]):
        self.home, self.lines, self._seals, self.code_lists = home, list[Line](), list[str](), code_lists
        self._file: BinaryIO | None = None
        self._plans: dict[str, Release] = {}
        if content:
            self._key  # noqa: B018 - reports a lost key as such, instead of blaming the first line
        for number, text in enumerate(content.split(b"\n"), start=1):
            try:
                entry = parse_json(text)
            except ValueError:  # truncated: its run had not started; after a once whole line the next seal fails
                continue
            try:
                self._read(entry)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise SfumatoError(
                    f"line {number} of the list of runs {home / FILE} cannot be read ({error}), so what your runs cost "
                    "together is not known",
                    "restore the list and the owner's key from a copy, or use the version of sfumato that wrote the "
                    "line; to start over after losing the key, run sfumato doctor --new-key",
                ) from None
        self.counted = count is not None or not self.lines
        self.anew = (now()[:10] if self.lines else "") if count is None else count.anew
        self.lost = _count_lost(self._seals, count)

    @property
    def entries(self) -> int:
        """The number of lines ever written."""
        return len(self.lines) + self.lost

    def of(self, kind: type[L]) -> list[L]:
        """The lines of one kind, in order."""
        return [line for line in self.lines if isinstance(line, kind)]

    def append(self, line: Line) -> None:
        """Append a line. It is durable on disk when this returns."""
        assert self._file is not None, "a line is appended only while the file is locked"
        entry = to_dict(line)
        seal = self._sealed(entry)
        # Starts with a line break too, so that a previous line that was truncated does not swallow this one.
        self._file.write(f"\n{json.dumps({**entry, SEAL: seal})}\n".encode())
        self._file.flush()
        fsync(self._file.fileno())  # a new file's directory entry is made durable with that of its count
        self.lines.append(line)
        self._seals.append(seal)
        self.write_count()

    def write_count(self) -> None:
        """Write the number of lines so far to the count file.

        **Guarantee.** The count never decreases, whatever was lost since.
        """
        content = Count(self.entries, self._seals[-1] if self._seals else "", self.anew)._asdict()
        write(self.home / COUNT, json.dumps({**content, SEAL: _code(self._key, content)}).encode(), private=True)

    def _read(self, entry: dict[str, Any]) -> None:
        seal = entry.pop(SEAL)
        if not hmac.compare_digest(seal, self._sealed(entry)):
            raise ValueError(
                "it was changed, does not follow the previous line, or was sealed with another owner's key"
            )
        line = from_dict(entry)
        if isinstance(line, DataUse) and self._plans.setdefault(line.run, line.use) != line.use:
            raise ValueError("an earlier line of its run has another plan")
        self.lines.append(line)
        self._seals.append(seal)

    def _sealed(self, entry: Mapping[str, Any]) -> str:
        """The seal of an entry that follows the last line."""
        return _code(self._key, [self._seals[-1] if self._seals else "", entry])

    @cached_property
    def _key(self) -> bytes:
        return keys.owner_key(self.home)


def read() -> History:
    """The owner's list as it is now; empty if there is no file. A run reads it once and passes it on."""
    home = keys.home()
    # In this order, so that a line or a list that is added meanwhile is no loss.
    code_lists, count, path = _code_lists(home), _read_count(home), home / FILE
    return History(home, count, regular_file(path).read_bytes() if path.exists() else b"", code_lists)


@contextmanager
def locked() -> Iterator[History]:
    """The owner's list, locked against other writers until the context ends; created if there is none.

    **Guarantee.** No process adds a line without having read the lines of all others.

    Errors: `SfumatoError` if the list cannot be written, or if the file system does not support locks.
    """
    home = keys.home()
    path = home / FILE
    try:
        keys.owner_key(home)
        with open(open_bytes(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            lock_exclusively(file.fileno(), f"the list of runs {path}")
            count, content = _read_count(home), file.read()
            history = History(home, count, content, _code_lists(home))
            if count is None and not history.lines:
                history.write_count()  # before the first line, so that a kill never leaves a line without a count
            history._file = file
            yield history
            history._file = None
    except OSError as error:
        raise SfumatoError(
            f"the list of runs {path} cannot be locked and extended ({error.strerror or error})",
            "free some space, fix its permissions, or keep it on a file system that supports locks",
        ) from None


def _code_lists(home: Path) -> frozenset[str]:
    return frozenset(
        path.relative_to(home).as_posix() for folder in (USED, TRAINED_ON) for path in (home / folder).glob("*.npy")
    )


def new_key() -> Path:
    """Create a new owner's key after the old one was lost, and move the old lists to a folder. Returns that folder.

    Errors: `SfumatoError` if there are no lists of a lost key.
    """
    home = keys.home()
    lists = {path.relative_to(home).parts[0] for path in keys.lists_in(home)}
    if not lists or ((home / keys.OWNER_KEY).exists() and _is_ours(home)):
        raise SfumatoError(
            f"there are no lists of a lost owner's key in {home}", "leave out --new-key: a key is created at first use"
        )
    aside = home / f"{LOST_KEY}{now()[:19].replace('T', '-').replace(':', '')}"
    make_directory(aside, private=True)
    for name in sorted(lists):
        os.rename(home / name, aside / name)
    sync_directory(home)
    keys.owner_key(home)
    return aside


def _count_lost(seals: list[str], count: Count | None) -> int:
    """The number of lost lines. Lines after the last counted one were written just before a kill and are not lost."""
    if count is None:
        return min(1, len(seals))
    if not count.entries:
        return 0
    if count.last in seals:
        return count.entries - 1 - seals.index(count.last)
    return max(1, count.entries - len(seals))  # the last counted line is gone


def _read_count(home: Path) -> Count | None:
    """The count; None if there is none.

    Errors: `SfumatoError` if it was changed, or sealed with another owner's key.
    """
    path = home / COUNT
    try:
        content = parse_json(regular_file(path).read_bytes())
        seal = content.pop(SEAL)
        if not hmac.compare_digest(seal, _code(keys.owner_key(home), content)):
            raise ValueError("it was changed, or sealed with another owner's key")
        return Count(**content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, SfumatoError):
            raise
        raise SfumatoError(
            f"the count of your lists {path} cannot be read ({error})",
            "restore the lists and the owner's key from a copy, or, after losing the key, start over with sfumato "
            "doctor --new-key",
        ) from None


def _is_ours(home: Path) -> bool:
    try:
        return _read_count(home) is not None
    except SfumatoError:
        return False


def _code(key: bytes, content: object) -> str:
    return hmac.new(key, b"lists " + json.dumps(content, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def add_codes(held: History, folder: str, material: str, now: np.ndarray) -> None:
    """Add codes uint8 (N, 32) to a list, creating it if necessary. The caller holds the store."""
    path = held.home / folder / f"{material}.npy"
    before = read_codes(folder, material)
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


def read_codes(folder: str, material: str, *, whole: bool = True) -> np.ndarray | None:
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
    with locked() as held:
        # The material covers both parts together: an earlier training may have seen a smaller part of them.
        add_codes(held, TRAINED_ON, source.stored_digest, codes)


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
    among = [codes for material in materials if (codes := read_codes(TRAINED_ON, material)) is not None]
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
    if not source.public and any(read_codes(TRAINED_ON, material) is None for material in materials):
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
    history = history or read()
    if not history.counted:
        yield f"their count ({COUNT}) is missing"
    elif history.anew:
        yield f"their count ({COUNT}) was missing and begun anew on {history.anew}, with what was there"
    if history.lost > bool(history.anew):
        yield f"{FILE} lacks {history.lost:,} of {history.entries:,} entries"
    counts = {one.path: one.count for one in history.of(CodesListed)}
    for path, count in counts.items():
        codes = read_codes(*path.removesuffix(".npy").split("/"), whole=False)
        if codes is None:
            yield f"{path} is gone"
        elif len(codes) < count:
            yield f"{path} lacks {count - len(codes):,} of {count:,} entries"
    if (lacking := len(history.code_lists - counts.keys())) and not history.lost:
        yield f"{FILE} does not know {lacking} of the lists in {USED} and {TRAINED_ON}"
    for folder in sorted(history.home.glob(f"{LOST_KEY}*")):
        yield f"those of a lost key lie in {folder.name}"


def _as_single_values(codes: np.ndarray) -> np.ndarray:
    """Each row as a single value, (N,)."""
    return np.ascontiguousarray(codes).view(f"V{CODE_BYTES}")[:, 0]
