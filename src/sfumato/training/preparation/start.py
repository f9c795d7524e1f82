"""How a run starts or resumes: its machine, its pinned facts and its context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._choices import NestedChoices
from sfumato.experiment.settings import SECURE, Performance
from sfumato.privacy import Search
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.releases import MICRO_BATCH_AT_FIRST


def original_micro_batch(run: RunDirectory) -> int | None:
    """The original micro-batch size of a run that has halved it; else None."""
    return run.read_json(names.SETTINGS).get(MICRO_BATCH_AT_FIRST) if run.exists else None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine settings of a run. None for the recorded value, else the default.

    Args:
        device: "cpu", or an accelerator as torch names it: "cuda", "cuda:N", "xpu".
        threads: CPU threads of torch.
        micro_batch: largest number of examples in memory at once.
        precision: "float32", or "bfloat16" for the matrix products and convolutions of a step. The default is that of
            `with_precision` for named networks, and float32 for others.
    """

    device: str | None = None
    threads: int | None = None
    micro_batch: int | None = None
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """Facts pinned by an unfinished run; empty for a new one.

    Args:
        recorded: its performance settings.
        key: its key; without one, a new key is drawn, or derived from the seed and the run's choices.
    """

    recorded: Performance | None = None
    key: RunKey | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Context:
    """The context of a run.

    Args:
        request: the user's request, for the record.
        search: the search that the run is part of, if the search has no guarantee.
    """

    request: Mapping[str, Any] = field(default_factory=dict)
    search: Search | None = None


@dataclass(frozen=True, kw_only=True, init=False)
class Start(NestedChoices):
    """Machine, pinned facts and context of a run; given flat or by its parts."""

    machine: Machine
    unfinished: Unfinished
    context: Context

    @classmethod
    def given(cls, start: Start | None, others: Mapping[str, Any]) -> Start:
        """The given start with these fields replaced, or a new one."""
        return cls(**others) if start is None else replace(start, **others)

    @classmethod
    def for_run(cls, run: RunDirectory, **others: Any) -> Start:
        """The start of the run in this directory, new or resumed.

        If the run has halved its micro-batches, a request for the original size keeps the current one.
        """
        start = cls(recorded=recorded_performance(run), key=recorded_key(run), **others)
        if start.machine.micro_batch in (None, original_micro_batch(run)):
            return replace(start, machine=replace(start.machine, micro_batch=None))
        return start


def recorded_performance(run: RunDirectory) -> Performance | None:
    """The performance settings of an unfinished run; None if there is no run."""
    return Performance.from_dict(run.read_json(names.SETTINGS)["performance"]) if run.exists else None


def known_micro_batch(start: Start, noise: str) -> int | None:
    """The micro-batch size: as requested, as recorded, or 1 for secure noise, so that sums are exact; None if it has to
    be measured."""
    if start.machine.micro_batch is not None:
        return start.machine.micro_batch
    if start.unfinished.recorded is not None:
        return start.unfinished.recorded.micro_batch
    return 1 if noise == SECURE else None


def recorded_key(run: RunDirectory) -> RunKey | None:
    """The key of an unfinished run; None if it is lost, which refuses more steps but allows an early end."""
    try:
        return RunKey.load(run / names.RUN_KEY)
    except SfumatoError:
        return None
