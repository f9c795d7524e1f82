"""What a run makes, besides classifiers: the same loop takes its steps, and the same record is kept of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sfumato.observers.progress import Progress
from sfumato.randomness import RunKey
from sfumato.training.loop import Steps
from sfumato.training.measure import Measure


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a run makes: which steps its job takes, and by what they are measured.

    Args:
        steps: of a job and the run key.
        scorer: of a job.
    """

    steps: Callable[[Any, RunKey, Progress], Steps]
    scorer: Callable[[Any, Progress], Measure]
