"""MLflow and Weights & Biases as observers: a run's figures, and of private data none that the promise does not cover.

What stands in metrics.jsonl of a private test part are exact figures, which are the owner's alone. A tracker on this
machine gets them, marked as private; one elsewhere gets none of them. A tracker that fails stops no run: what it has
missed, it gets when it answers again, at the latest when the run is finished.
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
from sfumato.runs.heading import presentable

OPEN = ("step", "epsilon", "learning_rate")
"""What follows from the plan and the settings alone, and is no secret whatever the data are."""
PRIVATE = "private."
"""What an exact figure of private data is marked by."""
SHARE = 0.05
"""Of the time, for a tracker that does not answer, at most: it is asked again the later, the longer it took."""
SENTENCE = "sentence"
"""What a finished run's sentence is called there."""
_HERE = ("", "file", "sqlite")
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Unless they are set: by default a server that is down holds up a run for minutes at each request."""
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
    """A tracker, which is told what it may know.

    Args:
        run: the run, whose last two names of the path it is called by there, with its settings and its plan.
        public: whether what is measured may be shown to others.
        exact: whether exact figures of private data are written too; None for where it is on this machine.
        report: told in a line where the tracker fails; by default it is printed on standard error.

    Errors: `SfumatoError` where the package is not installed. Whatever the tracker itself fails of is reported and
    stops no run.
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
        self._client, self._public = self.installed(), public
        self._directory = run if isinstance(run, RunDirectory) else RunDirectory(run)
        self.called = self._directory.called
        self._exact = self.here() if exact is None else exact
        self._report, self._reported = report, False
        self._waiting: list[Mapping[str, Any]] = []
        self._begun, self._reached, self._not_before = False, -1, 0.0

    @classmethod
    def installed(cls) -> Any:
        """The package, or a refusal where it is not there."""
        try:
            return importlib.import_module(cls.package)
        except ImportError:
            raise SfumatoError(f"{cls.package} is not installed", f"pip install 'sfumato[{cls.package}]'") from None

    @abstractmethod
    def here(self) -> bool:
        """Whether it writes to this machine alone."""

    @abstractmethod
    def open(self, known: str | None) -> str:
        """Begin a run there, with its settings, or go on with the one that is known by this name; its name."""

    @abstractmethod
    def reached(self) -> int:
        """After how many steps it has figures; -1 where it has none."""

    @abstractmethod
    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures after so many steps."""

    @abstractmethod
    def close(self, statement: Mapping[str, Any]) -> None:
        """Write the statement, and end the run."""

    @abstractmethod
    def leave(self) -> None:
        """Say there that it was stopped."""

    def begin(self, step: int, steps: int) -> None:
        """Open it; it gets what was measured before and it does not have."""
        self._waiting = [row for row in self._directory.rows() if row["step"] <= step]
        self._attempt(self._catch_up)

    def scored(self, row: Mapping[str, Any]) -> None:
        """Write what it may know of the row."""
        self._waiting.append(row)
        if time.monotonic() >= self._not_before:
            self._attempt(self._catch_up)

    def interrupted(self) -> None:
        """Leave it, so that whoever resumes the run finds it free."""
        if self._begun:
            self._attempt(self.leave)
            self._begun = False

    def concluded(self) -> None:
        """Write what is still missing and the statement, and close it."""
        self._attempt(self._end)

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do what may fail with the tracker, the network or the disk; a run goes on without it."""
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
                    f"note: {self.package} could not be written to ({type(error).__name__}: {first}); the run does not "
                    f"need it, and its figures are in {self._directory / METRICS}"
                )

    def _catch_up(self) -> None:
        """Open it, and write the rows that it does not have. A step that is taken again measures the same again."""
        if not self._begun:
            remembered = self._directory.read_json(TRACKED) if (self._directory / TRACKED).is_file() else {}
            known = self.open(remembered.get(self.package))
            self._directory.write_json(TRACKED, remembered | {self.package: known}, private=True)
            self._begun, self._reached = True, self.reached()
        while self._waiting:
            row = self._waiting[0]
            if row["step"] > self._reached and (figures := self.told(row)):
                self.write(figures, row["step"])
            self._reached = max(self._reached, row["step"])
            del self._waiting[0]

    def _end(self) -> None:
        self._catch_up()
        self.close(self._directory.read_json(STATEMENT))
        self._begun = False

    def told(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """The figures of a row that it is told, by their names there.

        **Guarantee.** Of private data a tracker elsewhere is told what follows from the plan and the settings alone,
        unless its user asked for exact figures; those are in no promise.
        """
        numbers = {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}
        if self._public:
            return numbers
        private = {f"{PRIVATE}{name}": value for name, value in numbers.items() if name not in OPEN}
        return {name: value for name, value in numbers.items() if name in OPEN} | (private if self._exact else {})

    @property
    def settings(self) -> dict[str, Any]:
        """What was set and planned, without paths of this machine and without the seed, and whether it is promised."""
        record = self._directory.read_json(SETTINGS)
        known = {"data": record.get("data", {}).get("kind"), **presentable(record.get("settings", {}))}
        if (self._directory / PLAN).is_file():
            plan = PrivacyPlan.from_dict(self._directory.read_json(PLAN))
            known |= {"promises": record["settings"].get("seed") is None, "plan.epsilon": plan.epsilon()}
            known |= {f"plan.{name}": value for name, value in plan.to_dict().items()}
        return {name: value for name, value in known.items() if name != "seed" and value not in (None, [], {})}

    @property
    def note(self) -> str | None:
        """What the owner should know of it."""
        if self._public:
            return None
        if self._exact:
            return f"note: {self.package} gets exact figures of private data, marked {PRIVATE}, which are yours alone"
        return f"note: {self.package} is not on this machine, and gets no figure that was measured on private data"


class MLflow(Tracker):
    """Writes to MLflow, where MLFLOW_TRACKING_URI and the active experiment say."""

    package = "mlflow"

    @classmethod
    def installed(cls) -> Any:
        """The package, which asks a server that does not answer once more."""
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        return super().installed()

    def here(self) -> bool:
        """By the tracking address: a folder, a file or a data base that is one."""
        address = urlparse(self._client.get_tracking_uri())
        return address.scheme in _HERE and address.netloc in ("", "localhost") and address.path != "databricks"

    def open(self, known: str | None) -> str:
        """Begin a run, or one within the active one; the active one stays as it is."""
        if known is None or not self._has(known):
            with self._client.start_run(run_name=self.called, nested=self._client.active_run() is not None) as begun:
                known = begun.info.run_id
        assert known is not None
        self._own, self._store = known, self._client.MlflowClient()
        self._store.update_run(known, status="RUNNING")
        self._client.log_params(self.settings, run_id=known)
        return known

    def _has(self, known: str) -> bool:
        """Whether this server has it: it may be another one than before."""
        try:
            self._client.get_run(known)
        except self._client.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def reached(self) -> int:
        """By the learning rate, which every row has."""
        return max((one.step for one in self._store.get_metric_history(self._own, "learning_rate")), default=-1)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write metrics."""
        self._client.log_metrics(dict(figures), step=step, run_id=self._own)

    def close(self, statement: Mapping[str, Any]) -> None:
        """The sentence as a tag, the statement as a file; end the run."""
        self._store.set_tag(self._own, SENTENCE, statement["sentence"])
        self._store.log_dict(self._own, dict(statement), STATEMENT)
        self._store.set_terminated(self._own)

    def leave(self) -> None:
        """It was killed."""
        self._store.set_terminated(self._own, status="KILLED")


class WandB(Tracker):
    """Writes to Weights & Biases, where its own variables and its login say.

    **Guarantee.** Of private data neither what the program prints, which holds exact figures, nor its arguments, code
    and use of the machine are captured, which Weights & Biases would do by itself.
    """

    package = "wandb"

    def here(self) -> bool:
        """Whether nothing is sent: WANDB_MODE is offline or disabled. An offline run that is synchronised later on
        sends what it holds."""
        return os.environ.get("WANDB_MODE") in _NOT_SENT

    def open(self, known: str | None) -> str:
        """Begin a run, whatever others there are."""
        identity = known or secrets.token_hex(4)
        # A session that was begun before does not look at the variable again, and would send what is meant for here.
        how = {"mode": _NOT_SENT[os.environ["WANDB_MODE"]]} if self.here() else {}
        how |= {} if self._public else {"settings": self._client.Settings(**_NOT_CAPTURED)}
        self._own = self._client.init(
            id=identity, resume="allow", name=self.called, config=self.settings, reinit="create_new", **how
        )
        return identity

    def reached(self) -> int:
        """The last step that it has."""
        return self._own.step - 1

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write a row."""
        self._own.log(dict(figures), step=step)

    def close(self, statement: Mapping[str, Any]) -> None:
        """The sentence and the statement in the summary; end the run."""
        self._own.summary.update({SENTENCE: statement["sentence"], "statement": dict(statement)})
        self._own.finish()

    def leave(self) -> None:
        """It ended with an error."""
        self._own.finish(exit_code=1)


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WandB}


def tracker(name: str) -> type[Tracker]:
    """The tracker of this name, which must be installed."""
    one_of("track", name, tuple(TRACKERS))
    TRACKERS[name].installed()
    return TRACKERS[name]
