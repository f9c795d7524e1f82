"""Who looks on while a run takes its steps: they see released values only, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.observers.progress import Progress
from sfumato.runs.directory import RunDirectory


class Stop(Exception):  # noqa: N818 - it is asked for, and no error
    """Raised by an observer to end the run, which is then finished with the steps that it has taken.

    **Guarantee.** The statement gives the epsilon of the whole plan all the same. What the steps so far release is a
    part of what all of the plan's steps would, so a moment that is chosen by looking at released values is covered by
    that epsilon, whatever it is chosen by. The epsilon of fewer steps is not claimed: when a run ends depends on its
    data, and adding up only the steps until then needs a rule that is fixed in advance (privacy filters: Whitehouse et
    al. 2023, arXiv 2203.05481). A moment chosen by looking at private records, the exact figures of a private test
    part among them, tells of these: the statement says that it does not cover the choice.
    """


class Observer:
    """Somebody who looks on. This one does nothing: others say what they want to be told.

    Each of its methods but `ended` may end the run by raising `Stop`, `begin` before another step is taken.
    """

    def begin(self, step: int, steps: int) -> None:
        """So many steps were taken before; whatever was noted of later ones is void."""

    def stepped(self, step: int) -> None:
        """So many steps have been taken."""

    def scored(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl: after which step, and how the weights to release do on the test split."""

    def ended(self) -> None:
        """The last step was taken."""

    def interrupted(self) -> None:
        """An error or somebody has stopped its steps; the run may go on later."""

    def concluded(self) -> None:
        """The run is finished: its statement and its model are written."""


@dataclass(frozen=True)
class Rows(Observer):
    """Writes metrics.jsonl."""

    run: RunDirectory

    def begin(self, step: int, steps: int) -> None:
        """Drop what was measured after the checkpoint that the run goes on from."""
        self.run.write_rows([row for row in self.run.rows() if row["step"] <= step])

    def scored(self, row: Mapping[str, Any]) -> None:
        """Append the row."""
        self.run.append_row(dict(row))


@dataclass(frozen=True)
class Shown(Observer):
    """Moves a progress bar.

    Args:
        progress: the bar.
        what: is going on.
    """

    progress: Progress
    what: str

    def begin(self, step: int, steps: int) -> None:
        """Show the bar."""
        self.progress.begin(self.what, steps, step)

    def stepped(self, step: int) -> None:
        """Move it."""
        self.progress.advance(step)

    def scored(self, row: Mapping[str, Any]) -> None:
        """Say how it stands."""
        spent = f"epsilon {row['epsilon']:.2f}, " if "epsilon" in row else ""
        figure = "accuracy" if "accuracy" in row else "recall"
        self.progress.advance(row["step"], f"{spent}test {figure} {row[figure]:.1%}")


class TensorBoard(Observer):
    """Writes what metrics.jsonl holds for TensorBoard: of private data, exact figures that are the owner's alone.

    Args:
        directory: where TensorBoard looks.
    """

    def __init__(self, directory: Path):
        self._directory, self._make, self._writer = directory, self.installed(), None

    @staticmethod
    def installed() -> Callable[..., Any]:
        """What writes its files, or a refusal where the package is not there."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SfumatoError("TensorBoard is not installed", "pip install 'sfumato[tensorboard]'") from None
        return SummaryWriter

    def begin(self, step: int, steps: int) -> None:
        """Open the log; what an earlier process wrote of later steps is hidden."""
        self._writer = self._make(str(self._directory), purge_step=step + 1)

    def scored(self, row: Mapping[str, Any]) -> None:
        """Write the row's numbers."""
        assert self._writer is not None
        for name, value in row.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row["step"])

    def ended(self) -> None:
        """Close the log."""
        assert self._writer is not None
        self._writer.close()

    def interrupted(self) -> None:
        """Close it with what it has."""
        self.ended()
