"""MLflow and Weights & Biases as observers of a run."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.observers.observer import Observer
from sfumato.privacy import PrivacyPlan
from sfumato.runs.directory import METRICS, PLAN, SETTINGS, STATEMENT, RunDirectory, publishable_settings


class Tracker(Observer):
    """Writes settings, figures and statement of a run to a tracker. A run that resumes is another run there.

    **Guarantee.** If `public` is False, the tracker receives only values that follow from the plan and the settings.

    Args:
        run: the run; its name in the tracker is the last two components of its path.
        public: whether all who see the tracker may see exact figures of the data, which no guarantee covers.
        report: receives a line if the tracker fails; a logger by default. Missing rows are written at the run's end.
    """

    def __init__(self, run: str | os.PathLike[str], *, public: bool, report: Callable[[str], None] | None = None):
        self._client, self._public = self.require_installed(), public
        self._report = report or logging.getLogger(__name__).warning
        self._directory = RunDirectory(run)
        self.called, self._written, self._failed = self._directory.short_name, 0, False
        self._run: Any = None
        self._log: Callable[..., Any] | None = None

    @classmethod
    def require_installed(cls) -> Any:
        """Returns the package; refuses if it is not installed."""
        try:
            return importlib.import_module(name := cls.__name__.lower())
        except ImportError:
            raise SfumatoError(f"{name} is not installed", f"pip install 'sfumato[{name}]'") from None

    def _open(self) -> Callable[..., Any]: ...
    def _close(self, statement: dict[str, Any] | None) -> None: ...

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        if not self._failed:
            self._attempt(self._catch_up)

    def on_interrupt(self) -> None:
        self._attempt(lambda: self._log and self._close(None))

    def on_finish(self) -> None:
        self._attempt(lambda: (self._catch_up(), self._close(self._directory.read_json(STATEMENT))))

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._failed, why = True, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            place = self._directory / METRICS
            self._report(f"note: {type(self).__name__} failed ({why}); the run continues, with its figures in {place}")

    def _catch_up(self) -> None:
        self._log = self._log or self._open()
        for row in self._directory.rows()[self._written :]:
            shown = row if self._public else {name: row.get(name) for name in ("step", "epsilon", "learning_rate")}
            figures = {name: value for name, value in shown.items() if value is not None}
            self._log(figures, step=figures.pop("step"))
            self._written += 1

    @property
    def settings(self) -> dict[str, Any]:
        """Settings and plan. Paths of this machine and the seed are left out."""
        values = publishable_settings(self._directory.read_json(SETTINGS).get("settings", {}))
        if (self._directory / PLAN).is_file():
            plan = PrivacyPlan.from_dict(self._directory.read_json(PLAN))
            values |= {f"plan.{name}": value for name, value in {**plan.to_dict(), "epsilon": plan.epsilon()}.items()}
        return {name: value for name, value in values.items() if name != "seed" and value not in (None, [], {})}


class MLflow(Tracker):
    """Writes to MLflow, as configured by MLFLOW_TRACKING_URI and the active experiment."""

    def _open(self) -> Callable[..., Any]:
        for name, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "20")):  # else an unreachable server blocks for minutes
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
        with self._client.start_run(run_name=self.called, nested=self._client.active_run() is not None) as started:
            self._client.log_params(self.settings)
        self._run = started.info.run_id
        self._client.MlflowClient().update_run(self._run, status="RUNNING")
        return partial(self._client.log_metrics, run_id=self._run)

    def _close(self, statement: dict[str, Any] | None) -> None:
        store = self._client.MlflowClient()
        if statement is not None:
            store.set_tag(self._run, "sentence", statement["sentence"])
            store.log_dict(self._run, statement, STATEMENT)
        store.set_terminated(self._run, status="KILLED" if statement is None else "FINISHED")


class WandB(Tracker):
    """Writes to Weights & Biases, which captures no output, arguments, code or use of the machine."""

    def _open(self) -> Callable[..., Any]:
        off = ("disable_code", "disable_git", "disable_job_creation", "x_disable_meta", "x_disable_stats")
        settings = self._client.Settings(console="off", x_save_requirements=False, **dict.fromkeys(off, True))
        self._run = self._client.init(name=self.called, config=self.settings, reinit="create_new", settings=settings)
        return self._run.log

    def _close(self, statement: dict[str, Any] | None) -> None:
        if statement is not None:
            self._run.summary.update({"sentence": statement["sentence"], "statement": statement})
        self._run.finish(exit_code=int(statement is None))


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WandB}
