"""MLflow and Weights & Biases as observers: a run's figures, and of private data none that the promise does not cover.

What stands in metrics.jsonl of a private test part are exact figures, which are the owner's alone. A tracker on this
machine gets them, marked as private; one elsewhere gets none of them.
"""

from __future__ import annotations

import importlib
import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlparse

from sfumato._checks import SfumatoError, one_of
from sfumato.observers.observer import Observer
from sfumato.runs.directory import SETTINGS, RunDirectory

OPEN = ("step", "epsilon", "learning_rate")
"""What follows from the plan and the settings alone, and is no secret whatever the data are."""
PRIVATE = "private."
"""What an exact figure of private data is marked by."""
_HERE = ("", "file", "sqlite")


class Tracker(Observer):
    """A tracker, which is told what it may know.

    Args:
        run: the run, whose last two names of the path it is called by there, with its settings.
        public: whether what is measured may be shown to others.
        exact: whether exact figures of private data are written too; None for where it is on this machine.

    Errors: `SfumatoError` where the package is not installed.
    """

    package: str

    def __init__(self, run: RunDirectory | str | os.PathLike[str], *, public: bool, exact: bool | None = None) -> None:
        self._client, self._public = self.installed(), public
        self._directory = run if isinstance(run, RunDirectory) else RunDirectory(run)
        self._run = self._directory.called
        self._exact = self.here() if exact is None else exact
        self._begun = False

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
    def open(self) -> None:
        """Begin a run there, with its settings."""

    @abstractmethod
    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures after so many steps."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def begin(self, step: int, steps: int) -> None:
        """Open it; of steps that are taken again it gets the figures again."""
        if not self._begun:
            self.open()
            self._begun = True

    def scored(self, row: Mapping[str, Any]) -> None:
        """Write what it may know of the row."""
        if figures := self.told(row):
            self.write(figures, row["step"])

    def ended(self) -> None:
        """Close it."""
        if self._begun:
            self.close()
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
        """What was set, without the seed, which would undo the promise for whoever knows it."""
        record = self._directory.read_json(SETTINGS)
        known = {"data": record.get("data", {}).get("kind"), **record.get("settings", {})}
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

    def here(self) -> bool:
        """By the tracking address: a folder, a file or a data base that is one."""
        address = self._client.get_tracking_uri()
        return not address.startswith("databricks") and urlparse(address).scheme in _HERE

    def open(self) -> None:
        """Begin a run, or one within the active one."""
        self._client.start_run(run_name=self._run, nested=self._client.active_run() is not None)
        self._client.log_params(self.settings)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write metrics."""
        self._client.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        """End the run."""
        self._client.end_run()


class WandB(Tracker):
    """Writes to Weights & Biases, where its own variables and its login say."""

    package = "wandb"

    def here(self) -> bool:
        """Whether nothing is sent: WANDB_MODE is offline or disabled. An offline run that is synchronised later on
        sends what it holds."""
        return os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")

    def open(self) -> None:
        """Begin a run."""
        self._own = self._client.init(name=self._run, config=self.settings)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write a row."""
        self._own.log(dict(figures), step=step)

    def close(self) -> None:
        """End the run."""
        self._own.finish()


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WandB}


def tracker(name: str) -> type[Tracker]:
    """The tracker of this name, which must be installed."""
    one_of("track", name, tuple(TRACKERS))
    TRACKERS[name].installed()
    return TRACKERS[name]
