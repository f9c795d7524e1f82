"""How a run starts, or goes on: where it is computed, what it has pinned already, and what it is part of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._choices import OfParts
from sfumato.experiment.budget import SECURE
from sfumato.experiment.settings import Performance
from sfumato.privacy import Search
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.training.preparation import exhausted


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a run is computed. None takes what is recorded, else a rule's choice.

    Args:
        device: "cpu", or an accelerator as torch names it: "cuda", "cuda:N", "xpu".
        threads: CPU threads of torch.
        micro_batch: the most examples in memory at once.
        precision: "float32", or "bfloat16" for the matrix products and convolutions of a step. The rule is that of
            `preparation.precision`, for named networks; others take float32.
    """

    device: str | None = None
    threads: int | None = None
    micro_batch: int | None = None
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """What an unfinished run has already; nothing of a new one.

    Args:
        recorded: the performance settings that it has pinned.
        key: its key; without one a new key is drawn, or derived from the seed and all that the run is.
    """

    recorded: Performance | None = None
    key: RunKey | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a run is part of.

    Args:
        request: what the user asked for, for the record.
        search: the search that the run is part of, where no promise covers it.
        candidate: the run's number among the candidates of a private selection; None for all other runs.
        origins: of the initial weights of all candidates: the choice among them depends on each.
    """

    request: Mapping[str, Any] = field(default_factory=dict)
    search: Search | None = None
    candidate: int | None = None
    origins: Collection[str] = ()


@dataclass(frozen=True, kw_only=True, init=False)
class Start(OfParts):
    """All of this; given flat, or by its parts."""

    machine: Machine
    unfinished: Unfinished
    context: Context

    @classmethod
    def given(cls, start: Start | None, others: Mapping[str, Any]) -> Start:
        """One that was given, with other choices in their places."""
        return cls(**others) if start is None else replace(start, **others)

    @classmethod
    def of(cls, run: RunDirectory, **others: Any) -> Start:
        """How a run in this directory starts, or goes on: with micro-batches that were made smaller since, where those
        are asked for that it began with."""
        start = cls(recorded=recorded_performance(run), key=recorded_key(run), **others)
        if start.machine.micro_batch in (None, exhausted.begun_with(run)):
            return replace(start, machine=replace(start.machine, micro_batch=None))
        return start


def recorded_performance(run: RunDirectory) -> Performance | None:
    """What an unfinished run has pinned; None where there is no run."""
    return Performance.from_dict(run.read_json(names.SETTINGS)["performance"]) if run.exists else None


def known_micro_batch(start: Start, noise: str) -> int | None:
    """The most examples at once: as asked for, as pinned, or one where noise is secure, so that sums are exact; None
    where it is to be measured."""
    if start.machine.micro_batch is not None:
        return start.machine.micro_batch
    if start.unfinished.recorded is not None:
        return start.unfinished.recorded.micro_batch
    return 1 if noise == SECURE else None


def recorded_key(run: RunDirectory) -> RunKey | None:
    """The run key of an unfinished run; None where it is lost: more steps are then refused, an early end is not."""
    try:
        return RunKey.load(run / names.RUN_KEY)
    except SfumatoError:
        return None
