"""Observers of a run. They see released values only, and do not change the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.observers.progress import Progress
from sfumato.runs.directory import RunDirectory


class Stop(Exception):  # noqa: N818 - a request, not an error
    """Raised by an observer to end the run early. The run is then finished with the steps taken so far.

    **Guarantee.** The statement still gives the epsilon of the whole plan. The steps so far release a part of what all
    steps of the plan would release, so that epsilon covers any stopping time chosen by looking at released values. The
    epsilon of fewer steps is not claimed: the stopping time depends on the data, and composing only the steps before it
    needs a rule fixed in advance (privacy filters: Whitehouse et al. 2023, arXiv 2203.05481). A stopping time chosen by
    looking at private records, including exact figures of a private test part, reveals something about them: the
    statement says that it does not cover this choice.
    """


class Observer:
    """Base class of observers. Its methods do nothing; subclasses override those they need.

    Every method except `on_train_end` may raise `Stop` to end the run, `on_train_begin` even before the first step.
    """

    def on_train_begin(self, step: int, steps: int) -> None:
        """Called before the first step, or on resumption after `step` steps. Rows of later steps are then void."""

    def on_step_end(self, step: int) -> None:
        """Called after each step, with the number of steps taken."""

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """Called with each row of metrics.jsonl: the step, and the test metrics of the weights to be released."""

    def on_train_end(self) -> None:
        """Called after the last step."""

    def on_interrupt(self) -> None:
        """Called if an error or the user interrupts the run, which may be resumed later."""

    def on_finish(self) -> None:
        """Called when the run is finished and its statement and model have been written."""


@dataclass(frozen=True)
class MetricsFile(Observer):
    """Writes metrics.jsonl."""

    run: RunDirectory

    def on_train_begin(self, step: int, steps: int) -> None:
        """Drops the rows after the checkpoint from which the run resumes."""
        self.run.write_rows([row for row in self.run.rows() if row["step"] <= step])

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """Appends the row."""
        self.run.append_row(dict(row))


@dataclass(frozen=True)
class ProgressObserver(Observer):
    """Updates a progress bar.

    Args:
        progress: the bar.
        what: description of the work.
    """

    progress: Progress
    what: str

    def on_train_begin(self, step: int, steps: int) -> None:
        """Shows the bar."""
        self.progress.begin(self.what, steps, step)

    def on_step_end(self, step: int) -> None:
        """Updates the bar."""
        self.progress.advance(step)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """Shows the spent epsilon and the test metric next to the bar."""
        spent = f"epsilon {row['epsilon']:.2f}, " if "epsilon" in row else ""
        figure = "accuracy" if "accuracy" in row else "recall"
        self.progress.advance(row["step"], f"{spent}test {figure} {row[figure]:.1%}")


class TensorBoard(Observer):
    """Writes the rows of metrics.jsonl to TensorBoard. On private data these are exact figures, for the owner only.

    Args:
        directory: TensorBoard's log directory.
    """

    def __init__(self, directory: Path):
        self._directory, self._make, self._writer = directory, self.require_installed(), None

    @staticmethod
    def require_installed() -> Callable[..., Any]:
        """Returns TensorBoard's `SummaryWriter`; refuses if the package is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SfumatoError("TensorBoard is not installed", "pip install 'sfumato[tensorboard]'") from None
        return SummaryWriter

    def on_train_begin(self, step: int, steps: int) -> None:
        """Opens the log, and hides the figures of later steps that an earlier process wrote."""
        self._writer = self._make(str(self._directory), purge_step=step + 1)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """Writes the values of the row."""
        assert self._writer is not None
        for name, value in row.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row["step"])

    def on_train_end(self) -> None:
        """Closes the log."""
        assert self._writer is not None
        self._writer.close()

    on_interrupt = on_train_end
