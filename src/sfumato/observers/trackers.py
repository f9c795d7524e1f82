"""MLflow and Weights & Biases as observers of a run.

With a private test part, metrics.jsonl holds exact figures, which the promise does not cover and which are for the
owner only. By default, a tracker on this machine receives them, marked as private, and a remote tracker does not. A
tracker that fails does not stop the run. It receives the missing rows once it responds again, or when the run is
finished.
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlparse

from sfumato._checks import SfumatoError, one_of
from sfumato.observers.observer import Observer
from sfumato.privacy import PrivacyPlan
from sfumato.runs.directory import METRICS, PLAN, SETTINGS, STATEMENT, TRACKED, RunDirectory
from sfumato.runs.heading import publishable_settings

OPEN = ("step", "epsilon", "learning_rate")
"""Values that follow from the plan and the settings alone, so they are not secret."""
PRIVATE = "private."
"""Name prefix of exact figures of private data."""
SHARE = 0.05
"""Largest fraction of the run's time that a failing tracker may take. The wait before a retry is set accordingly."""
SENTENCE = "sentence"
"""Name of the statement's sentence in the tracker."""
_HERE = ("", "file", "sqlite")
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Defaults for MLflow's own variables. With MLflow's defaults, an unreachable server blocks a run for minutes."""
_NOT_SENT = {"offline": "offline", "disabled": "disabled", "dryrun": "offline"}
_NOT_CAPTURED = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def _print(line: str) -> None:
    print(line, file=sys.stderr)


class Tracker(Observer):
    """Base class of trackers. A tracker receives only figures that it may hold.

    Args:
        run: the run; its name in the tracker is the last two components of its path.
        public: whether the measured figures may be shown to others.
        exact: whether exact figures of private data are written as well; None writes them if the tracker is local.
        report: receives a line if the tracker fails; by default it is printed on standard error.

    A failure of the tracker itself is reported and does not stop the run.

    Raises:
        SfumatoError: the package is not installed.
    """

    package: str

    def __init__(
        self,
        run: RunDirectory | str | os.PathLike[str],
        *,
        public: bool,
        exact: bool | None = None,
        report: Callable[[str], None] = _print,
    ) -> None:
        self._client, self._public = self.require_installed(), public
        self._directory = run if isinstance(run, RunDirectory) else RunDirectory(run)
        self.called = self._directory.short_name
        self._exact = self.is_local() if exact is None else exact
        self._report, self._reported = report, False
        self._waiting: list[Mapping[str, Any]] = []
        self._opened, self._reached, self._not_before = False, -1, 0.0

    @classmethod
    def require_installed(cls) -> Any:
        """Returns the package; refuses if it is not installed."""
        try:
            return importlib.import_module(cls.package)
        except ImportError:
            raise SfumatoError(f"{cls.package} is not installed", f"pip install 'sfumato[{cls.package}]'") from None

    @abstractmethod
    def is_local(self) -> bool:
        """Whether the tracker writes to this machine only."""

    @abstractmethod
    def open(self, run_id: str | None) -> str:
        """Starts a run with its settings, or continues the run `run_id`. Returns the run's identifier."""

    @abstractmethod
    def last_step(self) -> int:
        """The last step for which the tracker has figures; -1 if it has none."""

    @abstractmethod
    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Writes the figures after `step` steps."""

    @abstractmethod
    def close(self, statement: Mapping[str, Any]) -> None:
        """Writes the statement, and ends the run."""

    @abstractmethod
    def mark_stopped(self) -> None:
        """Marks the run as stopped."""

    def on_train_begin(self, step: int, steps: int) -> None:
        """Opens the tracker, and writes earlier rows that it lacks."""
        self._waiting = [row for row in self._directory.rows() if row["step"] <= step]
        self._attempt(self._catch_up)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """Writes the row, as far as the tracker may receive it."""
        self._waiting.append(row)
        if time.monotonic() >= self._not_before:
            self._attempt(self._catch_up)

    def on_interrupt(self) -> None:
        """Releases the tracker's run, so that a resumed run can continue it."""
        if self._opened:
            self._attempt(self.mark_stopped)
            self._opened = False

    def on_finish(self) -> None:
        """Writes the missing rows and the statement, and closes the tracker."""
        self._attempt(self._end)

    def _attempt(self, work: Callable[[], None]) -> None:
        """Runs work that depends on the tracker, the network or the disk. A failure does not stop the run."""
        began = time.monotonic()
        try:
            work()
        except Exception as error:
            now = time.monotonic()
            self._not_before = now + (now - began) / SHARE
            if not self._reported or work == self._end:
                self._reported = True
                first = next(iter(str(error).splitlines()), "")[:200]
                self._report(
                    f"note: could not write to {self.package} ({type(error).__name__}: {first}); the run continues "
                    f"without it, and its figures are in {self._directory / METRICS}"
                )

    def _catch_up(self) -> None:
        """Opens the tracker, and writes the rows that it lacks. A repeated step gives the same row again."""
        if not self._opened:
            recorded = self._directory.read_json(TRACKED) if (self._directory / TRACKED).is_file() else {}
            run_id = self.open(recorded.get(self.package))
            self._directory.write_json(TRACKED, recorded | {self.package: run_id}, private=True)
            self._opened, self._reached = True, self.last_step()
        while self._waiting:
            row = self._waiting[0]
            if row["step"] > self._reached and (figures := self.visible(row)):
                self.write(figures, row["step"])
            self._reached = max(self._reached, row["step"])
            del self._waiting[0]

    def _end(self) -> None:
        self._catch_up()
        self.close(self._directory.read_json(STATEMENT))
        self._opened = False

    def visible(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """The figures of a row that the tracker receives, by their names in the tracker.

        **Guarantee.** For private data, a remote tracker receives only values that follow from the plan and the
        settings, unless exact figures were requested (`exact`). No promise covers exact figures.
        """
        numbers = {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}
        if self._public:
            return numbers
        private = {f"{PRIVATE}{name}": value for name, value in numbers.items() if name not in OPEN}
        return {name: value for name, value in numbers.items() if name in OPEN} | (private if self._exact else {})

    @property
    def settings(self) -> dict[str, Any]:
        """Settings and plan, and whether the run has a promise. Paths of this machine and the seed are left out."""
        record = self._directory.read_json(SETTINGS)
        values = {"data": record.get("data", {}).get("kind"), **publishable_settings(record.get("settings", {}))}
        if (self._directory / PLAN).is_file():
            plan = PrivacyPlan.from_dict(self._directory.read_json(PLAN))
            values |= {"promises": record["settings"].get("seed") is None, "plan.epsilon": plan.epsilon()}
            values |= {f"plan.{name}": value for name, value in plan.to_dict().items()}
        return {name: value for name, value in values.items() if name != "seed" and value not in (None, [], {})}

    @property
    def note(self) -> str | None:
        """A note for the owner about private figures; None for public data."""
        if self._public:
            return None
        if self._exact:
            return f"note: {self.package} receives exact figures of private data, marked {PRIVATE}: for your eyes only"
        return f"note: {self.package} is not on this machine, and receives no figure measured on private data"


class MLflow(Tracker):
    """Writes to MLflow, as configured by MLFLOW_TRACKING_URI and the active experiment."""

    package = "mlflow"

    @classmethod
    def require_installed(cls) -> Any:
        """Returns the package, configured to retry an unreachable server once."""
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        return super().require_installed()

    def is_local(self) -> bool:
        """Whether the tracking URI is a folder, a file or an SQLite database."""
        address = urlparse(self._client.get_tracking_uri())
        return address.scheme in _HERE and address.netloc in ("", "localhost") and address.path != "databricks"

    def open(self, run_id: str | None) -> str:
        """Starts a run, nested within any active run, or continues `run_id`. The active run stays active."""
        if run_id is None or not self._has(run_id):
            with self._client.start_run(run_name=self.called, nested=self._client.active_run() is not None) as started:
                run_id = started.info.run_id
        assert run_id is not None
        self._run, self._store = run_id, self._client.MlflowClient()
        self._store.update_run(run_id, status="RUNNING")
        self._client.log_params(self.settings, run_id=run_id)
        return run_id

    def _has(self, run_id: str) -> bool:
        """Whether the tracking server has the run. It may be another server than the one that recorded it."""
        try:
            self._client.get_run(run_id)
        except self._client.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def last_step(self) -> int:
        """The last step with a learning rate, which every row has."""
        return max((one.step for one in self._store.get_metric_history(self._run, "learning_rate")), default=-1)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Writes metrics."""
        self._client.log_metrics(dict(figures), step=step, run_id=self._run)

    def close(self, statement: Mapping[str, Any]) -> None:
        """Writes the sentence as a tag and the statement as a file, and ends the run."""
        self._store.set_tag(self._run, SENTENCE, statement["sentence"])
        self._store.log_dict(self._run, dict(statement), STATEMENT)
        self._store.set_terminated(self._run)

    def mark_stopped(self) -> None:
        """Marks the run as killed."""
        self._store.set_terminated(self._run, status="KILLED")


class WandB(Tracker):
    """Writes to Weights & Biases, as configured by its variables and login.

    **Guarantee.** For private data, Weights & Biases does not capture the program's output, which holds exact figures,
    nor its arguments, its code or its use of the machine. By default it captures all of these.
    """

    package = "wandb"

    def is_local(self) -> bool:
        """Whether WANDB_MODE is offline or disabled, so that nothing is sent.

        If an offline run is synchronised later, its figures are sent.
        """
        return os.environ.get("WANDB_MODE") in _NOT_SENT

    def open(self, run_id: str | None) -> str:
        """Starts a separate run, or continues the run `run_id`."""
        identity = run_id or secrets.token_hex(4)
        # An existing W&B session does not read WANDB_MODE again and would send local figures, so pass the mode.
        how = {"mode": _NOT_SENT[os.environ["WANDB_MODE"]]} if self.is_local() else {}
        how |= {} if self._public else {"settings": self._client.Settings(**_NOT_CAPTURED)}
        self._run = self._client.init(
            id=identity, resume="allow", name=self.called, config=self.settings, reinit="create_new", **how
        )
        return identity

    def last_step(self) -> int:
        """The last step of the run in Weights & Biases."""
        return self._run.step - 1

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Writes a row."""
        self._run.log(dict(figures), step=step)

    def close(self, statement: Mapping[str, Any]) -> None:
        """Writes the sentence and the statement to the summary, and ends the run."""
        self._run.summary.update({SENTENCE: statement["sentence"], "statement": dict(statement)})
        self._run.finish()

    def mark_stopped(self) -> None:
        """Ends the run with an error."""
        self._run.finish(exit_code=1)


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WandB}


def tracker(name: str) -> type[Tracker]:
    """Returns the tracker of this name; refuses if its package is not installed."""
    one_of("track", name, tuple(TRACKERS))
    TRACKERS[name].require_installed()
    return TRACKERS[name]
