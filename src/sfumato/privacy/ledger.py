"""The ledger: an append-only, hash-chained record of every release. One JSON object per line.

The chain shows that the record is consistent. It cannot show that its writer was honest: whoever can write the file can
write a different one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError, parse_json, shortened
from sfumato._files import lock_exclusively, path_errors, regular_file, whole_lines
from sfumato._systems import fsync, open_bytes

if TYPE_CHECKING:
    from sfumato.privacy.plan import PrivacyPlan

ORIGIN = "0" * 64
RELEASE = "release"
"""In the body of a release entry: the SHA-256 of the values that the step releases."""
OPENING = "opening"
"""Entry kind for the start or resumption of an unseeded run: a fresh salt for the steps that are not yet paid."""
COPY = "copy"
"""Entry kind that names the steps which another copy of the run may have taken under other salts."""
LOST = "lost"
"""Entry kind that names paid steps which did not change the model."""
RECEIVED, SENT = "received", "sent"
"""Entry kinds of a round in a federation: the SHA-256 of the weights that came in before it, and went out after it."""
_DAMAGED = "the ledger was changed by hand or damaged; restore it from a copy, or discard the run"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line: its index, the kind of event, the event itself, the hash of the previous line, and its own hash."""

    index: int
    kind: str
    body: Mapping[str, Any]
    previous: str
    hash: str

    @classmethod
    def after(cls, previous: Entry | None, kind: str, body: Mapping[str, Any]) -> Entry:
        """The entry that follows `previous`; the first one if `previous` is None."""
        index, head = (0, ORIGIN) if previous is None else (previous.index + 1, previous.hash)
        return cls(index=index, kind=kind, body=dict(body), previous=head, hash=_hash(index, kind, body, head))

    def line(self) -> bytes:
        """The line as stored in the file."""
        return _canonical(vars(self)) + b"\n"


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hash(index: int, kind: str, body: Mapping[str, Any], previous: str) -> str:
    return hashlib.sha256(_canonical([index, kind, body, previous])).hexdigest()


def openings(entries: Sequence[Entry]) -> list[tuple[int, str]]:
    """The first step and the salt of each opening."""
    return [(entry.body["step"], entry.body["salt"]) for entry in entries if entry.kind == OPENING]


def lost_steps(entries: Sequence[Entry], taken: int) -> set[int]:
    """Those of the first `taken` steps that are paid but changed nothing: their releases could not be repeated.

    Takes time and memory for each entry and for each of these steps, whatever the entries say.
    """
    lost, after = set[int](), 0
    for first, last in sorted((entry.body["first"], entry.body["last"]) for entry in entries if entry.kind == LOST):
        lost.update(range(max(first, after), min(last + 1, taken)))
        after = max(after, last + 1)
    return lost


def copied_steps(entries: Sequence[Entry]) -> int:
    """The number of steps that other copies of the run may have taken."""
    return sum(len(range(entry.body["first"], entry.body["last"] + 1)) for entry in entries if entry.kind == COPY)


def read(path: str | os.PathLike[str]) -> list[Entry]:
    """All complete entries of a ledger, each checked against the one before it.

    A last line without a line break comes from a process that was killed while writing. Its event had not happened yet,
    so the line is left out. So are zeros and everything after them, which come from a power cut: nothing that was kept
    depends on these lines. Any other defect is refused, naming the line.
    """
    return list(_entries(_content(Path(path)), Path(path).name))


def _content(path: Path) -> bytes:
    remedy = "name a run directory that holds ledger.jsonl"
    with path_errors(f"the ledger {path}", remedy, remedy):
        return regular_file(path).read_bytes()


def _entries(content: bytes, name: str) -> Iterator[Entry]:
    previous: Entry | None = None
    lines = whole_lines(content).split(b"\n")
    for position, line in enumerate(lines[:-1], start=1):
        try:
            data = parse_json(line)
            previous = Entry.after(previous, str(data["kind"]), data["body"])
            follows = previous.line() == line + b"\n"  # every byte: 0.0 is not 0, and no name stands twice
        except (LookupError, TypeError, ValueError, RecursionError):
            raise SfumatoError(f"line {position} of {name} is not a ledger entry", _DAMAGED) from None
        if not follows:
            raise SfumatoError(f"line {position} of {name} does not follow from the line before it", _DAMAGED)
        yield previous


def same(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal, types included: 1, 1.0 and true all differ."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


Allowed = Callable[[Any, "Record"], bool]
"""Whether a field may have a value, given the lines before it."""


def _hex(digits: int) -> Allowed:
    form = re.compile(f"[0-9a-f]{{{digits}}}")
    return lambda value, run: type(value) is str and form.fullmatch(value) is not None


def _in(numbers: Callable[[Record], range]) -> Allowed:
    return lambda value, run: type(value) is int and value in numbers(run)


def _new_salt(value: Any, run: Record) -> bool:
    return _SALT(value, run) and value not in run.salts


_SHA256, _SALT, _SHORT = _hex(64), _hex(32), _hex(8)
_UP_TO_PAID = _in(lambda run: range(run.paid + 1))
KINDS: Mapping[str, Mapping[str, Allowed]] = {
    "begin": {
        "plan": lambda value, run: same(value, run.plan.to_dict()),
        "plan_fingerprint": lambda value, run: value == run.fingerprint,
        **dict.fromkeys(("data_commitment", "settings_commitment", "key_check", "record_commitment"), _SHA256),
        "record_fields": lambda value, run: type(value) is list and all(_SHORT(digest, run) for digest in value),
    },
    OPENING: {
        "step": _in(lambda run: range(run.paid, run.paid + (run.seeded is not True))),
        "salt": _new_salt,
    },
    COPY: {
        "first": _UP_TO_PAID,
        "last": _in(lambda run: range(run.plan.steps - 1, run.plan.steps)),
        "salt": _new_salt,
    },
    "release": {
        "step": _in(lambda run: range(run.paid, run.payable)),
        "plan": lambda value, run: value == run.fingerprint,
        RELEASE: _SHA256,
    },
    LOST: {"first": _in(lambda run: range(run.kept)), "last": _in(lambda run: range(run.paid - 1, run.paid))},
    RECEIVED: {
        "round": _in(lambda run: range(run.sent, min(run.sent + 1, run.rounds))),
        "step": _in(lambda run: range(run.sent * run.each, min(run.paid, (run.sent + 1) * run.each - 1) + 1)),
        "sha256": _SHA256,
    },
    SENT: {"round": _in(lambda run: range(run.sent, min(run.round + 1, run.paid // run.each))), "sha256": _SHA256},
    "workers": {"processes": _in(lambda run: range(2, 1 << 20)), "machines": _in(lambda run: range(1, 1 << 20))},
    "figures": {"step": _UP_TO_PAID, "table": lambda value, run: type(value) is dict and not run.bodies["figures"]},
    "end": {
        "steps_taken": _UP_TO_PAID,
        "kept": lambda value, run: (
            type(value) is dict and value != {} and all(_SHA256(digest, run) for digest in value.values())
        ),
        **dict.fromkeys(("model", "statement", "figures"), _SHA256),
    },
}
"""All kinds of lines, and the values of their fields."""
OPTIONAL = {"end": {"kept", "figures"}}
"""The fields that a kind of line may lack."""


class Record:
    """The lines of a run, each checked against the plan and the lines before it.

    It takes time and memory in proportion to the lines, whatever they say.

    Args:
        rounds: R of a federation's run, 0 for others; None to take it from the lines.
        seeded: whether the run has a seed, and so no openings; None if that is not known.

    Attributes:
        bodies: the bodies of the lines, by kind.
        paid, sent: the number of releases, and of rounds whose weights went out.
        round: the last round whose weights came in; -1 before the first.
        each: the number of steps in a round, or of all steps if there are no rounds.

    Errors: `SfumatoError` for a line that no run of this plan writes at its place, naming its fields.
    """

    def __init__(
        self, plan: PrivacyPlan, entries: Sequence[Entry], *, rounds: int | None = None, seeded: bool | None = None
    ):
        if rounds is None:  # all as long as the first
            kinds = [entry.kind for entry in entries]
            first = kinds[: kinds.index(SENT)].count("release") if SENT in kinds else plan.steps
            rounds = plan.steps // max(1, first) if RECEIVED in kinds else 0
        if rounds < 0 or (rounds and plan.steps % rounds):
            raise SfumatoError(f"{plan.steps} steps are not {rounds} rounds of equal length", _DAMAGED)
        self.plan, self.fingerprint, self.seeded = plan, plan.fingerprint, seeded
        self.rounds, self.each = rounds, plan.steps // max(1, rounds)
        self.bodies = {kind: list[Mapping[str, Any]]() for kind in KINDS}
        self.paid, self.sent, self.round, self.salts, self.opened = 0, 0, -1, set[str](), False
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        kind, body, fields = entry.kind, entry.body, KINDS.get(entry.kind, {})
        odd = fields.keys() - body.keys() - OPTIONAL.get(kind, set())
        odd |= {name for name, value in body.items() if name not in fields or not fields[name](value, self)}
        if not fields or self.bodies["end"] or (kind == "begin") == bool(self.bodies["begin"]):
            odd = {"kind"}
        if odd:
            where = f"line {entry.index + 1} of the ledger, {shortened(kind)}"
            raise SfumatoError(f"{where}, cannot stand there with its {shortened(', '.join(sorted(odd)))}", _DAMAGED)
        self.bodies[kind].append(body)
        self.paid, self.sent = len(self.bodies["release"]), len(self.bodies[SENT])
        if kind in (OPENING, COPY):
            self.salts.add(body["salt"])
            self.opened = kind == OPENING
        elif kind == RECEIVED:
            self.round, self.opened = body["round"], False

    @property
    def payable(self) -> int:
        """The number of releases after one more, which must be a step of the plan and of the round whose weights came
        in, under a salt if the run has no seed, and before any figures; without such a step, the number so far."""
        allowed = (self.opened or self.seeded is not False) and not self.bodies["figures"]
        in_round = not self.rounds or self.paid // self.each == self.round
        return min(self.paid + (allowed and in_round), self.plan.steps)

    @property
    def kept(self) -> int:
        """The number of paid steps, or of those before the lost ones if none was paid since."""
        lost = self.bodies[LOST][-1:]
        return lost[0]["first"] if lost and lost[0]["last"] == self.paid - 1 else self.paid


def moved(directory: Path) -> SfumatoError:
    """The error for a run directory that was there before."""
    return SfumatoError(
        f"the run directory {directory} was moved or deleted meanwhile",
        "move it back, or resume the run where it is: nothing was lost, and nothing is paid twice",
    )


_STEPS = ("begin", "release")


class Ledger:
    """A ledger open for writing by one process, which holds the system's file lock.

    Args:
        notify: receives a line about anything unusual.

    **Guarantee.** A line is written only while the file ends with the last line that this process knows, whose hash
    covers all lines before it. Each line goes to its own place, and `sync` looks again before the line counts: of two
    writers that looked at the same time, the one whose line was replaced is refused.

    Errors: `SfumatoError` if another process holds the lock, or if the file system has no locks.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "ledger.jsonl"
    >>> with Ledger(path) as ledger:
    ...     entry = ledger.append("release", {"step": 0})
    >>> read(path)[0].kind
    'release'
    """

    def __init__(self, path: str | os.PathLike[str], *, notify: Callable[[str], None] = lambda line: None):
        self.path, self.notify = Path(path), notify
        try:
            self._descriptor = open_bytes(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SfumatoError(
                f"the ledger {self.path} cannot be written ({error.strerror})", "choose a writable directory"
            ) from None
        try:
            self._lock()
            content = _content(self.path)
            self._entries = list(_entries(content, self.path.name))
            self._steps = [entry for entry in self._entries if entry.kind in _STEPS]
            whole = len(whole_lines(content))
            if whole != len(content):
                os.ftruncate(self._descriptor, whole)
        except BaseException:
            self.close()
            raise
        self._length = whole

    def _lock(self) -> None:
        try:
            lock_exclusively(self._descriptor, f"the run in {self.path.parent}", wait=False)
        except BlockingIOError:
            raise SfumatoError(
                f"another process is writing the run in {self.path.parent}", "wait for it to end, or stop it first"
            ) from None

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries so far."""
        return tuple(self._entries)

    def step_entry(self, steps: int) -> Entry:
        """The entry that paid for the last of the first `steps` steps; the `begin` entry if `steps` is 0."""
        return self._steps[steps]

    @property
    def paid(self) -> int:
        """The number of steps that are paid for."""
        return len(self._steps) - 1

    def append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        """Write one entry, entirely or not at all, before the event that it records happens.

        If the disk is full, the written part is removed and the error says so. Nothing is lost.
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
                "free some space and repeat the command: the run resumes where it stopped",
            ) from None
        self._length += len(line)
        self._entries.append(entry)
        if kind in _STEPS:
            self._steps.append(entry)
        return entry

    def sync(self) -> None:
        """Make sure that the appended entries survive a power cut. Call it before storing anything that needs them."""
        self._require()
        fsync(self._descriptor)

    def _require(self) -> None:
        """Refuse if another process has written here, or if the directory is gone.

        The file must end with the last line that this process knows.
        """
        if not self.path.exists():
            raise moved(self.path.parent)
        last = self._entries[-1].line() if self._entries else b""
        with open(self.path, "rb") as file:
            file.seek(self._length - len(last))
            unchanged = file.read(len(last) + 1) == last
        if not unchanged:
            raise SfumatoError(
                f"another process has written to the ledger {self.path}",
                "stop it, and repeat the command: the run resumes where it stopped",
            )

    def close(self) -> None:
        """Release the file and its lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
