"""Options for the observers of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato.cli.options.spellings import TrackerName

if TYPE_CHECKING:
    from sfumato.observers.observer import Observer
    from sfumato.observers.progress import Progress
    from sfumato.runs.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class ObserverOptions:
    """The observers of a run while it takes its steps."""

    tensorboard: bool = False
    """Also write the figures of metrics.jsonl for TensorBoard, to tensorboard/ in the run directory. For the owner
    only."""
    track: TrackerName = None
    """Also log these figures to MLflow or Weights & Biases. On private data a remote tracker gets only epsilon and the
    learning rate; a local one gets everything, under names that begin with private."""

    def check_observers(self) -> None:
        """Refuse TensorBoard or a tracker that is not installed, before any data are read."""
        if self.tensorboard:
            from sfumato.observers.observer import TensorBoard

            TensorBoard.require_installed()
        if self.track is not None:
            from sfumato.observers.trackers import tracker

            tracker(self.track)

    def observers(self, run: RunDirectory, progress: Progress, *, public: bool) -> tuple[Observer, ...]:
        """The requested observers, in addition to the progress bar."""
        found: list[Observer] = []
        if self.tensorboard:
            from sfumato.observers.observer import TensorBoard

            if not public:
                progress.report("note: --tensorboard writes exact figures of private data, which are for you alone")
            found.append(TensorBoard(run.path / "tensorboard"))
        if self.track is not None:
            from sfumato.observers.trackers import tracker

            tracking = tracker(self.track)(run, public=public, report=progress.report)
            if tracking.note is not None:
                progress.report(tracking.note)
            found.append(tracking)
        return tuple(found)
