"""The ledger: an append-only, hash-chained record of every release. One JSON object a line.

The chain shows that the record is consistent with itself. It cannot show that its writer was honest: whoever can write
the file can write another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import ordinary, whole_lines
from sfumato._systems import durable, lock, open_bytes
from sfumato.privacy.lease import Lease

ORIGIN = "0" * 64
LEASE = "ledger.lease"
"""Beside the ledger: whose it is to write."""
RELEASE = "release"
"""In the body of a release: the SHA-256 of what the step releases."""
OPENING = "opening"
"""The kind of a line that an unseeded run gets when it begins or goes on: a fresh salt for the steps not yet paid."""
LOST = "lost"
"""The kind of a line that says which steps, paid before, moved nothing."""
_SHA256 = re.compile("[0-9a-f]{64}")
_FIELDS = {"index", "kind", "body", "previous", "hash"}
_DAMAGED = "the ledger was changed by hand or damaged; restore it from a copy, or discard the run"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line: its place, what kind of event it records, the event, the hash of the line before, its own hash."""

    index: int
    kind: str
    body: Mapping[str, Any]
    previous: str
    hash: str

    @classmethod
    def after(cls, previous: Entry | None, kind: str, body: Mapping[str, Any]) -> Entry:
        """The entry that follows `previous` (None: the first one)."""
        index, head = (0, ORIGIN) if previous is None else (previous.index + 1, previous.hash)
        return cls(index=index, kind=kind, body=dict(body), previous=head, hash=_hash(index, kind, body, head))

    def line(self) -> bytes:
        """The line as it stands in the file."""
        return _canonical(vars(self)) + b"\n"


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hash(index: int, kind: str, body: Mapping[str, Any], previous: str) -> str:
    return hashlib.sha256(_canonical([index, kind, body, previous])).hexdigest()


def is_release(entry: Entry, step: int, plan: str) -> bool:
    """Whether a line commits to what this step of a plan with this fingerprint releases."""
    body = dict(entry.body)
    digest = body.pop(RELEASE, None)
    committed = isinstance(digest, str) and _SHA256.fullmatch(digest) is not None
    return committed and (entry.kind, body) == ("release", {"step": step, "plan": plan})


def open_with_salt(ledger: Ledger) -> str:
    """Write down a fresh salt of 128 bits for all steps that are not paid yet, safe on disk before any is taken.

    **Guarantee.** Copies of an unfinished run, restored backups among them, go on under salts of their own, so that
    they share no noise and no participants beyond the steps that were paid before they parted (`RunKey.at`).
    """
    paid = sum(entry.kind == "release" for entry in ledger.entries)
    ledger.append(OPENING, {"step": paid, "salt": (salt := secrets.token_hex(16))})
    ledger.sync()
    return salt


def openings(entries: Sequence[Entry]) -> list[tuple[int, str]]:
    """The first step and the salt of each opening; refused where a line is not where it says."""
    found, paid = [], 0
    for entry in entries:
        paid += entry.kind == "release"
        if entry.kind == OPENING:
            salt = entry.body.get("salt")
            if entry.body != {"step": paid, "salt": salt} or not re.fullmatch("[0-9a-f]{32}", str(salt)):
                raise SfumatoError(f"line {entry.index + 1} of the ledger is no opening after {paid} steps", _DAMAGED)
            found.append((paid, salt))
    return found


def lost_steps(entries: Sequence[Entry], taken: int) -> set[int]:
    """Those of so many steps that are paid and moved nothing: their releases could not be taken again."""
    ranges = (entry.body for entry in entries if entry.kind == LOST)
    return {step for body in ranges for step in range(body["first"], min(body["last"] + 1, taken))}


def read(path: str | os.PathLike[str]) -> list[Entry]:
    """All complete entries of a ledger, each checked against the one before it.

    A last line without its line break is the trace of a process that was killed while writing: its event had not
    happened yet, and it is left out. So are zeros, and what follows them: the trace of a power cut, after the last line
    on which anything that is kept depends. Any other defect is a refusal that names the line.
    """
    return list(_entries(_content(Path(path)), Path(path).name))


def _content(path: Path) -> bytes:
    try:
        return ordinary(path).read_bytes()
    except FileNotFoundError:
        raise SfumatoError(f"there is no ledger at {path}", "name a run directory that holds ledger.jsonl") from None
    except OSError as error:
        raise SfumatoError(f"the ledger {path} cannot be read ({error.strerror})", "check its permissions") from None


def _entries(content: bytes, name: str) -> Iterator[Entry]:
    previous: Entry | None = None
    lines = whole_lines(content).split(b"\n")
    for position, line in enumerate(lines[:-1], start=1):
        entry = _parse(line, f"line {position} of {name}")
        expected = Entry.after(previous, entry.kind, entry.body)
        if entry != expected:
            raise SfumatoError(f"line {position} of {name} does not follow from the line before it", _DAMAGED)
        yield entry
        previous = entry


def _parse(line: bytes, where: str) -> Entry:
    try:
        data = parse_json(line)
        if not isinstance(data, dict) or set(data) != _FIELDS or not isinstance(data["body"], dict):
            raise ValueError
        return Entry(**data)
    except (ValueError, TypeError):
        raise SfumatoError(f"{where} is not a ledger entry", _DAMAGED) from None


class Ledger:
    """A ledger open for writing, held by one process: by the system's lock, and by a lease where there is none.

    Args:
        notify: is told, in a line, where another holder must be waited for or is taken over from.

    **Guarantee.** A line is written only while the lease is this process's and nobody else has written. Each is written
    at its own place, and is a function of those before it, so what two writers write there nevertheless is one line.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "ledger.jsonl"
    >>> with Ledger(path) as ledger:
    ...     entry = ledger.append("release", {"step": 0})
    >>> read(path)[0].kind
    'release'
    """

    def __init__(self, path: str | os.PathLike[str], *, notify: Callable[[str], None] = lambda line: None):
        self.path, self.notify = Path(path), notify
        self._lease: Lease | None = None
        try:
            self._descriptor = open_bytes(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SfumatoError(
                f"the ledger {self.path} cannot be written ({error.strerror})", "choose a directory that can be written"
            ) from None
        try:
            self._lock()
            self._lease = Lease(self.path.with_name(LEASE), notify)
            content = _content(self.path)
            self._entries = list(_entries(content, self.path.name))
            whole = len(whole_lines(content))
            if whole != len(content):
                os.ftruncate(self._descriptor, whole)
        except BaseException:
            self.close()
            raise
        self._length = whole

    def _lock(self) -> None:
        try:
            lock(self._descriptor, wait=False)
        except BlockingIOError:
            raise SfumatoError(
                f"another process is writing the run in {self.path.parent}", "wait for it to end, or stop it first"
            ) from None
        except OSError:
            pass  # a system or a file system without locks: the lease decides

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries so far."""
        return tuple(self._entries)

    def after(self, steps: int) -> Entry:
        """The line by which so many steps are paid; for none of them the first one."""
        return [entry for entry in self._entries if entry.kind in ("begin", "release")][steps]

    def append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        """Write one entry, whole or not at all, before the event that it records happens.

        On a full disk the part that was written is taken back and the refusal says so; nothing is lost.
        """
        entry = Entry.after(self._entries[-1] if self._entries else None, kind, body)
        line = entry.line()
        self._require()
        try:
            os.lseek(self._descriptor, self._length, os.SEEK_SET)
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            os.ftruncate(self._descriptor, self._length)
            raise SfumatoError(
                f"the ledger {self.path} cannot be extended ({error.strerror})",
                "free some space and start the same command again: the run goes on where it stopped",
            ) from None
        self._length += len(line)
        self._entries.append(entry)
        return entry

    def sync(self) -> None:
        """Make sure that what was appended survives a power cut. Called before anything that depends on it is kept."""
        self._require()
        durable(self._descriptor)

    def _require(self) -> None:
        """Refuses where another process writes here by now."""
        if self._lease is not None:
            self._lease.require()
        if os.path.getsize(self.path) != self._length:
            raise SfumatoError(
                f"another process has written to the ledger {self.path}",
                "stop it, and start the same command again: the run goes on where it stopped",
            )

    def close(self) -> None:
        """Give the file, its lock and its lease back."""
        if self._lease is not None:
            self._lease.release()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
