"""Options of verbs about a finished run, and of those that train one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sfumato._checks import one_of, positive_integer
from sfumato.cli.parser import argument, option

if TYPE_CHECKING:
    from sfumato.observers.observer import Observer, TensorBoard
    from sfumato.observers.progress import Progress, ProgressBars
    from sfumato.runs.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class PrintsJson:
    """The option of a verb that has one result."""

    json: bool = False
    """End with one JSON object on standard output."""


@dataclass(frozen=True, kw_only=True)
class EndsWithJson:
    """The same option for a verb that also reports its progress."""

    json: bool = False
    """End with one JSON object on standard output."""

    def progress_bars(self, **keywords: Any) -> ProgressBars:
        """Progress on standard error, in which options replace the names of arguments."""
        from sfumato.cli.running import with_option_names
        from sfumato.observers.progress import ProgressBars

        return ProgressBars(spelt=partial(with_option_names, verb=self), **keywords)


@dataclass(frozen=True, kw_only=True)
class RunArgument(PrintsJson):
    """Options of a verb about one run."""

    run_directory: str = argument("RUN")
    """The run directory."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(RunArgument):
    """Options of a verb that uses a run's model."""

    model: str | None = option("package:function")
    """The function that builds a model of your own (package:function)."""


@dataclass(frozen=True, kw_only=True)
class ThreadsOption:
    """The option of a verb that computes on the CPU."""

    threads: int | None = None
    """Number of CPU threads. (default: as many as the process may use)"""

    def set_threads(self) -> None:
        """Make torch use this many threads."""
        import torch

        from sfumato.training.preparation.prepare import default_threads

        count = default_threads() if self.threads is None else positive_integer(threads=self.threads)
        torch.set_num_threads(count)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(ThreadsOption):
    """The options of a verb that computes on one device."""

    device: str | None = option("cpu|cuda|cuda:N", "an accelerator, if there is one")
    """Device to compute on, as torch names it: cpu, cuda, cuda:1, xpu."""


@dataclass(frozen=True, kw_only=True)
class ObserverOptions:
    """The observers of a run while it takes its steps."""

    tensorboard: bool = False
    """Also write the figures of metrics.jsonl for TensorBoard, to tensorboard/ in the run directory. For the owner
    only."""
    track: str | None = option("mlflow|wandb")
    """Also log these figures to MLflow or Weights & Biases. On private data only epsilon and the learning rate."""

    def check_observers(self) -> None:
        """Refuse TensorBoard or a tracker that is not installed, before any data are read."""
        for kind in (*self._tensorboard, *self._tracker):
            kind.require_installed()

    def observers(self, run: RunDirectory, progress: Progress, *, public: bool) -> tuple[Observer, ...]:
        """The requested observers, in addition to the progress bar."""
        if self.tensorboard and not public:
            progress.report("note: --tensorboard writes exact figures of private data, which are for you alone")
        boards = [kind(run.path / "tensorboard") for kind in self._tensorboard]
        return *boards, *(kind(run.path, public=public, report=progress.report) for kind in self._tracker)

    @property
    def _tensorboard(self) -> list[type[TensorBoard]]:
        if not self.tensorboard:
            return []
        from sfumato.observers.observer import TensorBoard

        return [TensorBoard]

    @property
    def _tracker(self) -> list[Any]:
        if self.track is None:
            return []
        from sfumato.observers.trackers import TRACKERS

        return [TRACKERS[one_of(tuple(TRACKERS), track=self.track)]]
