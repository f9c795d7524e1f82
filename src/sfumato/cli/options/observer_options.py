"""Options for the observers of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato._checks import one_of
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
    """Also log these figures to MLflow or Weights & Biases. On private data only epsilon and the learning rate."""

    def check_observers(self) -> None:
        """Refuse TensorBoard or a tracker that is not installed, before any data are read."""
        if self.tensorboard:
            from sfumato.observers.observer import TensorBoard

            TensorBoard.require_installed()
        if self.track is not None:
            from sfumato.observers.trackers import TRACKERS

            one_of("track", self.track, tuple(TRACKERS))
            TRACKERS[self.track].require_installed()

    def observers(self, run: RunDirectory, progress: Progress, *, public: bool) -> tuple[Observer, ...]:
        """The requested observers, in addition to the progress bar."""
        found: list[Observer] = []
        if self.tensorboard:
            from sfumato.observers.observer import TensorBoard

            if not public:
                progress.report("note: --tensorboard writes exact figures of private data, which are for you alone")
            found.append(TensorBoard(run.path / "tensorboard"))
        if self.track is not None:
            from sfumato.observers.trackers import TRACKERS

            found.append(TRACKERS[self.track](run.path, public=public, report=progress.report))
        return tuple(found)
