"""MLflow and Weights & Biases as observers of a run.

With a private test part, metrics.jsonl holds exact figures, which the promise does not cover and which are for the
owner only. By default, a tracker on this machine receives them, marked as private, and a remote tracker does not. A
tracker that fails does not stop the run; it receives the missing rows when the run is finished.
"""

from __future__ import annotations

import importlib
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlparse

from sfumato._checks import SfumatoError, one_of
from sfumato.observers.observer import Observer
from sfumato.privacy import PrivacyPlan
from sfumato.runs.directory import METRICS, PLAN, SETTINGS, STATEMENT, RunDirectory
from sfumato.runs.heading import publishable_settings

OPEN = ("step", "epsilon", "learning_rate")
"""Values that follow from the plan and the settings alone, so they are not secret."""
PRIVATE = "private."
"""Name prefix of exact figures of private data."""
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Defaults for MLflow's own variables. With MLflow's defaults, an unreachable server blocks a run for minutes."""
_NOT_SENT = {"offline": "offline", "disabled": "disabled", "dryrun": "offline"}
_NOT_CAPTURED = {"console": "off", "x_save_requirements": False} | dict.fromkeys(
    ("disable_code", "disable_git", "disable_job_creation", "x_disable_meta", "x_disable_stats"), True
)


class Tracker(Observer):
    """Base class of trackers. A run that resumes is another run in the tracker, with the figures of all its steps.

    Args:
        run: the run; its name in the tracker is the last two components of its path.
        public: whether the measured figures may be shown to others.
        exact: whether exact figures of private data are written as well; None writes them if the tracker is local.
        report: receives a line if the tracker fails; by default it is printed on standard error.

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
        report: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        self._client, self._public, self._report = self.require_installed(), public, report
        self._directory = run if isinstance(run, RunDirectory) else RunDirectory(run)
        self.called = self._directory.short_name
        self._exact = self.is_local() if exact is None else exact
        self._waiting: list[Mapping[str, Any]] = []
        self._opened = self._failed = False

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
    def open(self) -> None:
        """Starts a run with its settings."""

    @abstractmethod
    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Writes the figures after `step` steps."""

    @abstractmethod
    def close(self, statement: Mapping[str, Any] | None) -> None:
        """Ends the run, with its statement if it is finished."""

    def on_train_begin(self, step: int, steps: int) -> None:
        """Opens the tracker, and writes the rows of earlier steps."""
        self._waiting = [row for row in self._directory.rows() if row["step"] <= step]
        self._attempt(self._catch_up)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """Writes the row, as far as the tracker may receive it."""
        self._waiting.append(row)
        if not self._failed:
            self._attempt(self._catch_up)

    def on_interrupt(self) -> None:
        """Ends the tracker's run as one that was stopped."""
        if self._opened:
            self._attempt(lambda: self.close(None))

    def on_finish(self) -> None:
        """Writes the missing rows and the statement, and closes the tracker."""
        self._attempt(lambda: (self._catch_up(), self.close(self._directory.read_json(STATEMENT))))

    def _attempt(self, work: Callable[[], object]) -> None:
        """Runs work that depends on the tracker, the network or the disk. A failure does not stop the run."""
        try:
            work()
        except Exception as error:
            self._failed = True
            first = next(iter(str(error).splitlines()), "")[:200]
            self._report(
                f"note: could not write to {self.package} ({type(error).__name__}: {first}); the run continues "
                f"without it, and its figures are in {self._directory / METRICS}"
            )

    def _catch_up(self) -> None:
        if not self._opened:
            self.open()
            self._opened = True
        while self._waiting:
            if figures := self.visible(self._waiting[0]):
                self.write(figures, self._waiting[0]["step"])
            del self._waiting[0]

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
        local = address.scheme in ("", "file", "sqlite") and address.netloc in ("", "localhost")
        return local and address.path != "databricks"

    def open(self) -> None:
        """Starts a run, nested within any active run, which stays active."""
        with self._client.start_run(run_name=self.called, nested=self._client.active_run() is not None) as started:
            self._run, self._store = started.info.run_id, self._client.MlflowClient()
        self._store.update_run(self._run, status="RUNNING")
        self._client.log_params(self.settings, run_id=self._run)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Writes metrics."""
        self._client.log_metrics(dict(figures), step=step, run_id=self._run)

    def close(self, statement: Mapping[str, Any] | None) -> None:
        """Writes the sentence as a tag and the statement as a file, and ends the run."""
        if statement is not None:
            self._store.set_tag(self._run, "sentence", statement["sentence"])
            self._store.log_dict(self._run, dict(statement), STATEMENT)
        self._store.set_terminated(self._run, status="KILLED" if statement is None else "FINISHED")


class WandB(Tracker):
    """Writes to Weights & Biases, as configured by its variables and login.

    **Guarantee.** For private data, Weights & Biases does not capture the program's output, which holds exact figures,
    nor its arguments, its code or its use of the machine. By default it captures all of these.
    """

    package = "wandb"

    def is_local(self) -> bool:
        """Whether WANDB_MODE is offline or disabled. If an offline run is synchronised later, its figures are sent."""
        return os.environ.get("WANDB_MODE") in _NOT_SENT

    def open(self) -> None:
        """Starts a separate run."""
        # An existing W&B session does not read WANDB_MODE again and would send local figures, so pass the mode.
        how = {"mode": _NOT_SENT[os.environ["WANDB_MODE"]]} if self.is_local() else {}
        how |= {} if self._public else {"settings": self._client.Settings(**_NOT_CAPTURED)}
        self._run = self._client.init(name=self.called, config=self.settings, reinit="create_new", **how)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Writes a row."""
        self._run.log(dict(figures), step=step)

    def close(self, statement: Mapping[str, Any] | None) -> None:
        """Writes the sentence and the statement to the summary, and ends the run."""
        if statement is not None:
            self._run.summary.update({"sentence": statement["sentence"], "statement": dict(statement)})
        self._run.finish(exit_code=int(statement is None))


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WandB}


def tracker(name: str) -> type[Tracker]:
    """Returns the tracker of this name; refuses if its package is not installed."""
    one_of("track", name, tuple(TRACKERS))
    TRACKERS[name].require_installed()
    return TRACKERS[name]
