"""The run directory: which files there are, and how each is written whole or not at all."""

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
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import make_directory, ordinary, sync_directory, whole_lines, write, writing
from sfumato._systems import durable, open_bytes, refuse_forbidden
from sfumato.models.weights import about
from sfumato.privacy import ledger

PLAN = "plan.json"
SETTINGS = "settings.json"
RECIPE = "run.toml"
"""What was asked for, as a recipe."""
LEDGER = "ledger.jsonl"
METRICS = "metrics.jsonl"
STATEMENT = "statement.json"
REPORT = "report.html"
MODEL = "model.safetensors"
LAST_WEIGHTS = "model-last.safetensors"
CHECKPOINT = "checkpoint.safetensors"
EVALUATION = "evaluation.json"
PAGE = "page.json"
"""What the owner has written for the head of the page."""
FIGURES = "figures.json"
SIGNATURE = "signature.json"
"""Who vouches for the run."""
AUDIT = "audit.json"
STEP_AUDIT = "audit-of-step.json"
TRACKED = "tracked.json"
"""What the run is called by each tracker, so that one that is resumed goes on there."""
RUN_KEY = "dice.key"
WORKERS = "workers.token"
"""By which a worker knows that it sees the leader's directory."""
LEASE = ledger.LEASE
DONE = "done"

_IDENTITY = re.compile("[0-9a-f]{64}")
_SECRETS = (RUN_KEY, CHECKPOINT, WORKERS, LEASE)
"""What a finished run has no more of."""


class RunDirectory:
    """One run on disk: absent, unfinished (it can be resumed) or finished.

    A run comes into being in one rename: before it there is nothing to resume, and nothing was spent.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def called(self) -> str:
        """What its owner's lists and trackers call it: the last two parts of its path."""
        return "/".join(self.path.absolute().parts[-2:])

    @property
    def exists(self) -> bool:
        """Whether a run stands here, finished or not."""
        return (self / SETTINGS).is_file()

    @property
    def finished(self) -> bool:
        """Whether the run was concluded."""
        return (self / DONE).is_file()

    @property
    def identity(self) -> str:
        """The run's secret name, 64 hexadecimal digits, to which its key and its checkpoints are bound."""
        return self.read_json(SETTINGS)["run"]

    def require(self) -> None:
        """Refuse a path that holds no run."""
        if not self.exists:
            what = "is no run directory" if self.path.exists() else "does not exist"
            raise SfumatoError(f"{self.path} {what}", "name a directory that sfumato train has written")

    def require_finished(self) -> None:
        """Refuse a path that holds no finished run; one that was cut at its very end is completed."""
        self.require()
        self.complete()
        if not self.finished:
            self.refuse_own_loop("run its code again, which goes on, or call `finish()` there")
            verb = "embed" if "embedding" in self.read_json(SETTINGS) else "train"
            raise SfumatoError(
                f"the run in {self.path} is not finished",
                f"resume it (sfumato {verb} {self.path}) or end it with what it has (sfumato finish {self.path})",
            )

    def refuse_own_loop(self, remedy: str) -> None:
        """Refuse a run whose steps were taken by a loop of one's own, which alone can build its model."""
        if self.read_json(SETTINGS).get("kind") == about.OWN_LOOP:
            raise SfumatoError(
                f"the run in {self.path} is that of a training loop of one's own (private_steps)", remedy
            )

    def complete(self) -> bool:
        """Do what a kill has left undone of a run that had ended; whether that was more than to clean up.

        The ledger's last line binds model and statement, so neither the key nor the data are needed for it.

        **Guarantee.** Whatever command meets a run whose ledger has ended leaves no key behind, by which the noise
        could be subtracted again (unless the files may not be removed: then `verify` says that the key still stands).
        """
        concluded = not self.finished and self._has_ended()
        if concluded:
            write(self / DONE, b"")
        if concluded or (self.finished and any((self / name).exists() for name in _SECRETS)):
            with contextlib.suppress(OSError):
                self.clean()
        return concluded

    def _has_ended(self) -> bool:
        """Whether the ledger ends with the model and the statement that lie here."""
        entries = ledger.read(self / LEDGER) if (self / LEDGER).is_file() else []
        if not entries or entries[-1].kind != "end":
            return False
        bound = {"model": self / MODEL, "statement": self / STATEMENT}
        return all(path.is_file() and file_hash(path) == entries[-1].body.get(key) for key, path in bound.items())

    def clean(self) -> None:
        """After the end: delete the run key, so that nobody can subtract the noise again, and the checkpoint."""
        for name in _SECRETS:
            (self / name).unlink(missing_ok=True)
        sync_directory(self.path)
        sweep(self.path)

    def require_free(self) -> None:
        """Refuse a path at which no run can begin: something else stands there, or nothing can be made there."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise SfumatoError(f"{self.path} exists and holds no run of sfumato", "let `directory` be empty or new")
        if not self.path.name:
            raise SfumatoError(
                f"a run directory needs a name, got {str(self.path)!r}", "let `directory` have one, such as runs/a"
            )
        refuse_forbidden(self.path)
        with writing(self.path):
            above = next(folder for folder in self.path.absolute().parents if os.path.lexists(folder))
            if not above.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(above, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @contextmanager
    def creating(self) -> Iterator[RunDirectory]:
        """A neighbour to prepare the run in, moved into place at the end, discarded on any error."""
        self.require_free()
        prepared = RunDirectory(self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}"))
        with writing(self.path):
            make_directory(self.path.parent)
            self._sweep_strays()
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
        """Remove what processes left that were killed before their run here had come into being."""
        stray = re.compile(rf"\.{re.escape(self.path.name)}\.[0-9a-f]{{8}}")
        for path in self.path.parent.iterdir():
            if stray.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def read_json(self, name: str) -> Any:
        """A JSON file of the run, or a refusal that names it."""
        path = self / name
        try:
            data = parse_json(ordinary(path).read_text("utf-8"))
            if not isinstance(data, dict) or (name == SETTINGS and not _IDENTITY.fullmatch(str(data.get("run")))):
                raise SfumatoError(f"{path} is not as sfumato has written it", "restore it from a copy")
            return data
        except FileNotFoundError:
            raise SfumatoError(f"{path} is missing", "restore it from a copy, or start another run") from None
        except OSError as error:
            raise SfumatoError(f"{path} cannot be read ({error.strerror})", "check its permissions") from None
        except SfumatoError:
            raise
        except ValueError:
            raise SfumatoError(f"{path} is not valid JSON", "restore it from a copy, or start another run") from None

    def write_json(self, name: str, data: Any, *, private: bool = False) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        write(self / name, text.encode(), private=private)

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """Around what takes the run's files for what sfumato writes: what a changed one leads to is a refusal."""
        try:
            yield
        except SfumatoError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise SfumatoError(
                f"a file of the run in {self.path} is not as sfumato has written it ({type(error).__name__}: {error})",
                "restore it from a copy",
            ) from error

    def rows(self, name: str = METRICS) -> list[dict[str, Any]]:
        """The complete rows of a file of JSON lines; none where there is no such file."""
        path = self / name
        if not path.exists():
            return []
        rows, lines = [], whole_lines(ordinary(path).read_bytes()).split(b"\n")[:-1]
        try:
            rows.extend(map(parse_json, lines))
        except ValueError:
            raise SfumatoError(f"line {len(rows) + 1} of {path} is not valid JSON", "remove that line") from None
        return rows

    def append_row(self, row: Mapping[str, Any], name: str = METRICS) -> None:
        """Add one line, safe on disk when this returns: a checkpoint that comes after it must not outlive it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with writing(self / name), os.fdopen(open_bytes(self / name, flags, 0o600), "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            durable(file.fileno())

    def write_rows(self, rows: list[dict[str, Any]], name: str = METRICS) -> None:
        """Replace all lines."""
        write(self / name, b"".join(json.dumps(row).encode() + b"\n" for row in rows), private=True)


def sweep(directory: Path) -> None:
    """Remove what a killed process left of files that it had not finished writing."""
    for stray in directory.rglob(".*.????????"):
        stray.unlink(missing_ok=True)


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(ordinary(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
