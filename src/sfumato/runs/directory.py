"""The run directory: its files, how each is written atomically, and the heading of the report page."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import make_directory, read_json, regular_file, sync_directory, whole_lines, write, write_errors
from sfumato._systems import fsync, lock, open_bytes, refuse_forbidden
from sfumato.models import description
from sfumato.privacy import ledger

PLAN = "plan.json"
SETTINGS = "settings.json"
RECIPE = "run.toml"
"""The requested options, as a recipe."""
LEDGER = "ledger.jsonl"
METRICS = "metrics.jsonl"
STATEMENT = "statement.json"
REPORT = "report.html"
MODEL = "model.safetensors"
LAST_WEIGHTS = "model-last.safetensors"
CHECKPOINT = "checkpoint.safetensors"
EVALUATION = "evaluation.json"
PAGE = "page.json"
"""The owner's texts for the heading of the report page."""
FIGURES = "figures.json"
SIGNATURE = "signature.json"
"""The signature of the run."""
STEP_AUDIT = "audit-of-step.json"
RUN_KEY = "dice.key"
WORKERS = "workers.token"
"""A token by which a worker checks that it sees the leader's directory."""
OPENED = "opened.json"
"""The salt with which the run was opened last. It is written before the owner's list and the ledger hold it."""
DONE = "done"

_IDENTITY = re.compile("[0-9a-f]{64}")
_SECRETS = (RUN_KEY, CHECKPOINT, WORKERS, OPENED)
"""The files that are deleted when a run is finished."""


def verb_of(record: Mapping[str, Any]) -> str:
    """What made a run, from its settings.json: train, embed, pretrain or private_steps.

    >>> verb_of({"kind": "public", "embedding": {}}), verb_of({})
    ('embed', 'train')
    """
    if "embedding" in record:
        return "embed"
    return {None: "train", description.OWN_LOOP: "private_steps"}.get(record.get("kind"), "pretrain")


class RunDirectory:
    """A run on disk: absent, unfinished (it can be resumed) or finished.

    A run is created by a single rename. Before it there is nothing to resume, and nothing was spent.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def short_name(self) -> str:
        """The run's name on the owner's lists and trackers: the last two parts of its path."""
        return "/".join(self.path.absolute().parts[-2:])

    @property
    def exists(self) -> bool:
        """Whether there is a run here, finished or not."""
        return (self / SETTINGS).is_file()

    @property
    def finished(self) -> bool:
        """Whether the run was concluded."""
        return (self / DONE).is_file()

    @property
    def identity(self) -> str:
        """The run's secret identity: 64 hexadecimal digits, to which its key and checkpoints are bound."""
        return self.read_json(SETTINGS)["run"]

    def require(self) -> None:
        """Refuse a path without a run."""
        if not self.exists:
            what = "is no run directory" if self.path.exists() else "does not exist"
            raise SfumatoError(f"{self.path} {what}", "give a directory written by sfumato train")

    def require_finished(self) -> None:
        """Refuse a path without a finished run. Completes a run that was killed at its very end."""
        self.require()
        self.complete()
        if not self.finished:
            self.refuse_custom_loop("run its code again, which resumes it, or call `finish()` there")
            record = self.read_json(SETTINGS)
            ending = "" if "kind" in record else f" or end it at its checkpoint (sfumato finish {self.path})"
            raise SfumatoError(
                f"the run in {self.path} is not finished", f"resume it (sfumato {verb_of(record)} {self.path}){ending}"
            )

    def refuse_custom_loop(self, remedy: str) -> None:
        """Refuse the run of a custom training loop: only its own code can build the model."""
        if self.read_json(SETTINGS).get("kind") == description.OWN_LOOP:
            raise SfumatoError(f"the run in {self.path} was trained by a custom loop (private_steps)", remedy)

    def complete(self) -> bool:
        """Complete a run that was killed after its ledger had ended. Returns whether more than a cleanup was needed.

        The ledger's last line binds model and statement, so this needs neither the key nor the data.

        **Guarantee.** Any command that encounters a run whose ledger has ended deletes the run key, with which the
        noise could be subtracted (unless the files cannot be removed: then `verify` reports that the key still exists).
        """
        concluded = not self.finished and self._has_ended()
        if concluded:
            write(self / DONE, b"")
        if concluded or (self.finished and any((self / name).exists() for name in _SECRETS)):
            with contextlib.suppress(OSError):
                self.clean()
        return concluded

    def _has_ended(self) -> bool:
        """Whether the ledger ends with this model and this statement."""
        entries = ledger.read(self / LEDGER) if (self / LEDGER).is_file() else []
        if not entries or entries[-1].kind != "end":
            return False
        bound = {"model": self / MODEL, "statement": self / STATEMENT}
        return all(path.is_file() and file_hash(path) == entries[-1].body.get(key) for key, path in bound.items())

    def clean(self) -> None:
        """Delete the run key, so that nobody can subtract the noise, and the checkpoint. For runs that have ended."""
        for name in _SECRETS:
            (self / name).unlink(missing_ok=True)
        sync_directory(self.path)
        remove_temporary(self.path)

    def require_free(self) -> None:
        """Refuse a path that is occupied by something else, or at which nothing can be created."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise SfumatoError(f"{self.path} exists but holds no run of sfumato", "give an empty or a new `directory`")
        if not self.path.name:
            raise SfumatoError(
                f"a run directory needs a name, got {str(self.path)!r}", "give a `directory` such as runs/a"
            )
        refuse_forbidden(self.path)
        with write_errors(self.path):
            above = next(folder for folder in self.path.absolute().parents if os.path.lexists(folder))
            if not above.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(above, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @contextmanager
    def creating(self) -> Iterator[RunDirectory]:
        """A temporary sibling directory to prepare the run in. Moved into place at the end, or deleted on error.

        Of several processes that begin one run, one after the other gets here. Where the file system has no locks, the
        rename decides.

        Errors: `SfumatoError` if another process has begun the run.
        """
        with write_errors(self.path), contextlib.ExitStack() as stack:
            make_directory(self.path.parent)
            with contextlib.suppress(OSError):  # Windows opens no folders, and some file systems have no locks
                stack.callback(os.close, folder := open_bytes(self.path.parent, os.O_RDONLY))
                lock(folder, wait=True)
                self._sweep_strays()
            if self.exists:
                raise SfumatoError(
                    f"another process has begun the run in {self.path}",
                    "repeat the command to resume it, or give another `directory`",
                )
            self.require_free()
            prepared = RunDirectory(self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}"))
            prepared.path.mkdir()
            try:
                yield prepared
                if self.path.is_dir():
                    self.path.rmdir()
                os.rename(prepared.path, self.path)
                sync_directory(self.path.parent)
            except BaseException:
                shutil.rmtree(prepared.path, ignore_errors=True)
                raise

    def _sweep_strays(self) -> None:
        """Remove the temporary directories of processes that were killed before they created the run."""
        stray = re.compile(rf"\.{re.escape(self.path.name)}\.[0-9a-f]{{8}}")
        for path in self.path.parent.iterdir():
            if stray.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def read_json(self, name: str) -> Any:
        """The content of a JSON file of the run."""
        path = self / name
        data = read_json(path, str(path), "restore it from a copy, or start another run")
        if not isinstance(data, dict) or (name == SETTINGS and not _IDENTITY.fullmatch(str(data.get("run")))):
            raise SfumatoError(f"{path} was changed after sfumato wrote it", "restore it from a copy")
        return data

    def write_json(self, name: str, data: Any, *, private: bool = False) -> None:
        """Write a JSON file atomically."""
        text = json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        write(self / name, text.encode(), private=private)

    @contextmanager
    def format_errors(self) -> Iterator[None]:
        """For code that relies on the format of the run's files: errors from edited files become `SfumatoError`."""
        try:
            yield
        except SfumatoError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise SfumatoError(
                f"a file of the run in {self.path} was changed after sfumato wrote it ({type(error).__name__}: "
                f"{error})",
                "restore it from a copy",
            ) from error

    def rows(self, name: str = METRICS) -> list[dict[str, Any]]:
        """The complete rows of a file of JSON lines; empty if there is no such file."""
        path = self / name
        if not path.exists():
            return []
        rows, lines = [], whole_lines(regular_file(path).read_bytes()).split(b"\n")[:-1]
        try:
            rows.extend(map(parse_json, lines))
        except ValueError:
            raise SfumatoError(f"line {len(rows) + 1} of {path} is not valid JSON", "remove that line") from None
        return rows

    def append_row(self, row: Mapping[str, Any], name: str = METRICS) -> None:
        """Append a line. It is durable on disk when this returns, since a later checkpoint must not outlive it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with write_errors(self / name), os.fdopen(open_bytes(self / name, flags, 0o600), "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            fsync(file.fileno())

    def write_rows(self, rows: list[dict[str, Any]], name: str = METRICS) -> None:
        """Replace all lines."""
        write(self / name, b"".join(json.dumps(row).encode() + b"\n" for row in rows), private=True)


def remove_temporary(directory: Path) -> None:
    """Remove the temporary files of a killed process."""
    for stray in directory.rglob(".*.????????"):
        stray.unlink(missing_ok=True)


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(regular_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


LONGEST = 300
_OF = {"ema_form": "ema", "aggregate_from": "aggregate", "public_examples": "public_data"}
"""Settings that have no effect without another one."""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The heading of a run's page.

    Args:
        title: the title, on every version of the page.
        owner, contact, date, purpose, about_data: who is responsible for the data, how to reach them, a date, what the
            model is for, and what the data are. On the owner's page alone, unless they are published.
        published: the names of those lines that appear on every version of the page.
    """

    title: str | None = None
    owner: str | None = None
    contact: str | None = None
    date: str | None = None
    purpose: str | None = None
    about_data: str | None = None
    published: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            if not (isinstance(value, str) and value.strip() and len(value) <= LONGEST and value.isprintable()):
                start = value if isinstance(value, str) and len(value) <= 40 else f"{str(value)[:40]}..."
                raise SfumatoError(
                    f"{name} must be one line of 1 to {LONGEST} characters, got {start!r}",
                    'give words such as "Ward 3, chest X-rays", or leave it out',
                )

    @property
    def given(self) -> dict[str, str]:
        """The lines that were given, by name."""
        return {name: value for name, value in asdict(self).items() if name != "published" and value is not None}

    @property
    def private(self) -> dict[str, str]:
        """All lines but the title."""
        return {name: value for name, value in self.given.items() if name != "title"}

    @property
    def public(self) -> dict[str, str]:
        """The published lines."""
        return {name: value for name, value in self.private.items() if name in self.published}

    @classmethod
    def read(cls, run: RunDirectory) -> Self:
        """The heading that was written for this run so far."""
        data: Any = run.read_json(PAGE) if (run / PAGE).exists() else {}
        known = {field.name for field in fields(cls)}
        published = data.get("published", []) if isinstance(data, dict) else None
        if not isinstance(published, list) or set(data) - known or not known.issuperset(map(str, published)):
            raise SfumatoError(f"{run / PAGE} holds other fields than {', '.join(sorted(known))}", "remove that file")
        lines = {name: value for name, value in data.items() if name != "published"}
        return cls(**lines, published=tuple(published))

    def add_to(self, run: RunDirectory) -> None:
        """Store the given lines for every page of this run. Other lines stay.

        **Guarantee.** A line appears on the public page only as it was when it was published: a line that is rewritten
        for the owner's page is no longer published.
        """
        if self.given:
            before = Heading.read(run)
            published = sorted({*self.published, *before.published} - ({*self.given} - {*self.published}))
            kept = replace(before, **self.given).given | ({"published": published} if published else {})
            run.write_json(PAGE, kept, private=True)


def publishable_settings(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a page that may be published, or for a remote tracker: without paths and seeds."""
    unread = {name for name, of in _OF.items() if not choices.get(of)}
    shown = {name: value for name, value in choices.items() if value not in (None, [], ()) and name not in unread}
    if shown.get("pretrained") not in (None, "timm"):
        shown["pretrained"] = "weights from a file"
    if "public_data" in shown:
        shown["public_data"] = "a public source"
    if "seed" in shown:
        shown["seed"] = "chosen by the user"
    return shown
