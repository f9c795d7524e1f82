"""How a run starts, or goes on: where it is computed, what it has pinned already, and what it is part of. And a step
for which memory was not enough: taken again in smaller pieces, before anything of it has left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato._choices import OfParts
from sfumato.experiment.settings import SECURE, Performance
from sfumato.privacy import Search
from sfumato.randomness import NoiseState, RunKey
from sfumato.runs import directory as names
from sfumato.runs.commitment import MICRO_BATCH_AT_FIRST
from sfumato.runs.directory import RunDirectory
from sfumato.training.parts.part import Steps

Gradient = Mapping[str, Tensor | None]


def taken(
    take: Callable[[int, NoiseState], tuple[Gradient, NoiseState]],
    step: int,
    state: NoiseState,
    *,
    steps: Steps,
    alone: bool,
    run: RunDirectory,
    save: Callable[[int, NoiseState], None],
) -> tuple[Gradient, NoiseState]:
    """What a step gives; where memory is not enough for its sum, that of the same step in pieces of half the size.

    Args:
        take: takes it.
        steps: whose `halved`, where there is one, makes the pieces of this step and of all later ones smaller.
        alone: whether no other worker has begun the step.
        save: writes a checkpoint of the state before the step, safe on disk when it returns.

    **Guarantee.** Sums of other pieces are rounded otherwise, and noise that two such sums share is gone from their
    difference. So no step leaves with both sizes: what is taken again has not left, since an error of memory comes
    before the noisy sum is returned; earlier steps are not taken again, since the checkpoint lies just before this one
    before the new size is written down. Participants and noise are those of the step's key; it is paid once. Noise that
    remembers earlier steps has used its memory up, and then the run ends with a refusal.

    Errors: `SfumatoError` where the pieces cannot be smaller; any error that is not one of memory, as it is.
    """
    while True:
        remembers = bool(state.tensors)
        try:
            return take(step, state)
        except (MemoryError, RuntimeError) as error:
            if not _devices.exhausted(error):
                raise
        size = getattr(steps, "halved", lambda: None)() if alone and not remembers else None
        if size is None:
            raise SfumatoError(
                f"memory was not enough for step {step}, and its pieces cannot be made smaller here",
                "free some and give the same command again, which loses nothing and pays nothing twice; or begin "
                "another run with a smaller `micro_batch`",
            )
        save(step, state)
        _pin(run, size)


def begun_with(run: RunDirectory) -> int | None:
    """The size that a run's micro-batches had at first, where they are smaller by now."""
    return run.read_json(names.SETTINGS).get(MICRO_BATCH_AT_FIRST) if run.exists else None


def _pin(run: RunDirectory, size: int) -> None:
    """Write down that from the run's checkpoint on micro-batches have this size."""
    settings = run.read_json(names.SETTINGS)
    settings.setdefault(MICRO_BATCH_AT_FIRST, settings["performance"]["micro_batch"])
    settings["performance"]["micro_batch"] = size
    run.write_json(names.SETTINGS, settings, private=True)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a run is computed. None takes what is recorded, else a rule's choice.

    Args:
        device: "cpu", or an accelerator as torch names it: "cuda", "cuda:N", "xpu".
        threads: CPU threads of torch.
        micro_batch: the most examples in memory at once.
        precision: "float32", or "bfloat16" for the matrix products and convolutions of a step. The rule is that of
            `with_precision`, for named networks; others take float32.
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
        if start.machine.micro_batch in (None, begun_with(run)):
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
