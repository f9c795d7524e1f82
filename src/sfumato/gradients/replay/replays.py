"""Which calls are recorded, when, and whether a recording still holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from sfumato.gradients.recordable import CannotReplay
from sfumato.gradients.replay.recording import Recording, bits, recorded
from sfumato.gradients.replay.standing import Standing, standing, still
from sfumato.gradients.use import unit_roundoff

# A recording costs up to ten seconds, and saves a tenth of a call on a CPU, and most of it on a device.
_WORTH_SECONDS, _WORTH_CALLS = 20.0, 2
# Recordings of an object, and how often one kind of call is recorded, and fails to hold, before it no longer is.
_MOST, _MOST_TIMES, _MOST_FAILURES = 8, 3, 8
# Operations on weights alone from which on their results are kept until the weights change.
_MANY = 100

# Which kernel attention takes is decided before its operations are recorded.
_ATTENTION = (
    *(torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.mem_efficient_sdp_enabled),
    *(torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.cudnn_sdp_enabled),
    torch.backends.mha.get_fastpath_enabled,
)


@dataclass(eq=False)
class _Kind:
    """What is known of one kind of call."""

    seconds: float = 0.0
    calls: int = 0
    times: int = 0
    failures: int = 0
    refused: str | None = None
    recording: Recording | None = None
    before: Standing = field(default_factory=dict)
    given: list[Tensor] = field(default_factory=list)
    fixed: _Fixed | None = None

    def forget(self) -> None:
        """Drops the recording; it may be made anew."""
        self.seconds, self.calls, self.recording, self.before, self.given, self.fixed = 0.0, 0, None, {}, [], None


@dataclass(frozen=True, eq=False)
class _Fixed:
    """What a recording made of weights, and these as they were."""

    values: list[Any]
    versions: list[int]
    copies: list[tuple[Tensor, Tensor]]

    def same(self) -> Tensor:
        """() bool: whether the weights are the same, bit by bit, also where torch counted no write."""
        return torch.stack([(bits(now) == bits(then)).all() for now, then in self.copies]).all()


class Replays:
    """The recordings of one object's calls.

    Args:
        model, loss: whose calls they are.

    **Guarantee.** A call is replayed only where all that `standing` sees is what it was when it was recorded, and its
    result is to be used only where the recording says that it holds (`Recording`). It has then the bits of the call
    computed in the ordinary way.
    """

    def __init__(self, model: nn.Module, loss: Any):
        self._model, self._loss = model, loss
        self._kinds: dict[tuple, _Kind] = {}
        self._now: Standing | None = None

    def refusals(self) -> dict[tuple, str]:
        """Why kinds of calls are not recorded."""
        return {kind: known.refused for kind, known in self._kinds.items() if known.refused is not None}

    def begin(self) -> None:
        """A call begins, during which model and loss stay what they are."""
        self._now = None

    def run(self, kind: tuple, batch: Sequence[Tensor]) -> tuple[Any, Tensor] | None:
        """A call's result, and () bool: whether it is to be used; None where there is no recording that holds.

        Args:
            kind: what makes calls alike, `state` of the batch included.
            batch: the tensors that are different in each call.
        """
        known = self._kinds.get(kind)
        if known is None or known.recording is None or is_watched():
            return None
        try:
            self._now = standing(self._model, self._loss) if self._now is None else self._now
        except CannotReplay:
            self._now = {}
        if not still(known.before, self._now):
            known.forget()
            return None
        fixed = known.fixed
        versions = [tensor._version for tensor in known.given]
        if fixed is None or fixed.versions != versions:
            fixed = self._fixed(known, versions)
        found, holds = known.recording.run(known.given, batch, fixed.values)
        return found, holds & fixed.same() if fixed.copies else holds

    def _fixed(self, known: _Kind, versions: list[int]) -> _Fixed:
        assert known.recording is not None
        values, many = known.recording.fixed(known.given), known.recording.size_of_fixed >= _MANY
        copies = [(t, t.detach().clone()) for t in known.given] if many else []
        fixed = _Fixed(values, versions, copies)
        known.fixed = fixed if many else None
        return fixed

    def failed(self, kind: tuple) -> None:
        """A recording's result was not to be used."""
        known = self._kinds[kind]
        known.failures, known.fixed = known.failures + 1, None
        if known.failures >= _MOST_FAILURES:
            known.forget()
            known.refused = "its questions are answered in many ways"

    def ran(self, kind: tuple, batch: Sequence[Tensor], seconds: float, once: Callable[[], Any]) -> None:
        """Notes a call that was computed in the ordinary way, and records one where that is worth its time.

        Args:
            seconds: that the call took.
            once: computes it again, from `batch`, the model and the loss.
        """
        known = self._kinds.setdefault(kind, _Kind())
        known.seconds, known.calls = known.seconds + seconds, known.calls + 1
        worth = known.seconds >= _WORTH_SECONDS if batch[0].device.type == "cpu" else known.calls >= _WORTH_CALLS
        if known.refused is not None or known.recording is not None or not worth or is_watched():
            return
        if known.times == _MOST_TIMES:
            known.refused = "what it depends on keeps changing"
            return
        known.times += 1
        try:
            known.before = standing(self._model, self._loss)
            found = {id(value): value for value in known.before.values() if isinstance(value, Tensor)}
            known.given = list(found.values())
            known.recording = recorded(once, known.given, batch)
        except CannotReplay as reason:
            known.forget()
            known.refused = str(reason)
        with_recordings = [one for one in self._kinds.values() if one.recording is not None]
        for one in with_recordings[:-_MOST]:
            one.forget()


def state(batch: Sequence[Tensor]) -> tuple:
    """What else decides which operations a call consists of, and how they round."""
    device = batch[0].device.type
    return (
        tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in batch),
        torch.get_num_threads(),
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
        torch.are_deterministic_algorithms_enabled(),
        unit_roundoff(batch[0].new_empty(0, dtype=torch.float32)),
        torch.get_default_dtype(),
        *(enabled() for enabled in _ATTENTION),
    )


def is_watched() -> bool:
    """Whether a mode around the call might change what Python calls, which a recording leaves out."""
    return bool(_get_current_function_mode_stack())
