"""A step for which memory was not enough: taken again in smaller pieces, before anything of it has left."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.randomness import NoiseState
from sfumato.runs import directory as names
from sfumato.runs.commitment import MICRO_BATCH_AT_FIRST
from sfumato.runs.directory import RunDirectory
from sfumato.training.kind import Steps

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
