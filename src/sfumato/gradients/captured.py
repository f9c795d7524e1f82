"""Clipped sums as CUDA graphs: what a micro-batch launches on a device is recorded once and then launched at once.

Where the host cannot launch kernels as fast as a device runs them, this is most of the time of a step. A graph reads
and writes the same memory each time: the batch is copied into tensors of its own, weights are those of the model,
written in place by its optimizer. What Python decides on the way is decided once.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sfumato import _devices
from sfumato.gradients.checks.synthetic import Examples, repeated
from sfumato.gradients.examples import each, tensors
from sfumato.gradients.sums import ClippedSum
from sfumato.gradients.walk import named_tensors

FIRST_CALLS = 3
"""Calls of a kind before it is recorded: what is found out about a model is so by then."""
MOST_GRAPHS = 16
"""Of one object: the micro-batches of a training have nine sizes at most."""

_ROUNDING = 1e-2
"""How far sums differ whose products round otherwise, relative to their norms: 1e-3 has been seen."""

Sums = tuple[ClippedSum, Tensor, Any]
"""A clipped sum, which examples it lacks, and () bool, whether there are any: as `first_sum` gives them."""


@dataclass(eq=False)
class Captures:
    """The graphs of one `ClippedGradient`, by kind of batch, recorded at the fourth call of each.

    They share the memory that they work in: one runs after the other, and what each leaves is copied at once.

    Args:
        model: whose parameters and buffers the graph reads.
        forget: forgets what was found out about the values of parameters, so that a call finds it out anew.

    **Guarantee.** A graph does the same operations as the call it was recorded from, on the batch and the weights of
    now: norms, factors and sum come from the same kernels, so its terms obey the bound C if those of the call do. It
    is used only if, on made-up examples, it gives the same bits as a call without it (where torch is not told to be
    deterministic: the same numbers but for rounding); and only while batches have the same shapes and types, the model
    the same modes, and parameters and buffers the same addresses. Memory from elsewhere that it reads is kept as long
    as it is. What it cannot notice is a model or a loss that comes to compute something else through a number or a
    branch of Python: it goes on as it was recorded.
    """

    model: nn.Module
    forget: Callable[[], None]
    _graphs: dict[tuple, _Graph] = field(default_factory=dict)
    _calls: Counter[tuple] = field(default_factory=Counter)
    _places: tuple[int, ...] = ()
    _failed: bool = False

    def sums(
        self,
        kind: tuple,
        batch: Examples,
        weights: Tensor | None,
        made_up: Examples,
        compute: Callable[[Examples, Tensor | None], Sums],
    ) -> Sums:
        """What `compute` gives for the batch, by a graph where there is one for its kind.

        Args:
            kind: all that a computation depends on besides numbers.
            made_up: an example, (1, ...).
            compute: without a question to the device.
        """
        first = tensors(batch)[0]
        if not _devices.can_capture(first.device):
            return compute(batch, weights)
        kind = (kind, len(first), weights is None, _modes(first.device))
        if (places := self._addresses()) != self._places:  # what graphs read is the model's no longer
            self._places = places
            self._graphs.clear()
        if kind not in self._graphs and not self._failed:
            self._calls[kind] += 1
            if self._calls[kind] > FIRST_CALLS and len(self._graphs) < MOST_GRAPHS:
                own = repeated(made_up, len(first)), None if weights is None else torch.ones_like(weights)
                self._record(kind, own, compute, first.device)
        graph = self._graphs.get(kind)
        return compute(batch, weights) if graph is None else graph(batch, weights)

    def _record(
        self,
        kind: tuple,
        own: tuple[Examples, Tensor | None],
        compute: Callable[[Examples, Tensor | None], Sums],
        device: torch.device,
    ) -> None:
        """The graph for such a batch; a warning where there can be none.

        Args:
            own: a made-up batch and its weights, whose tensors the graph reads from then on.
        """
        outside = _Outside()

        def recorded() -> Sums:
            self.forget()
            with outside:
                return compute(*own)

        def apart() -> Sums:
            self.forget()
            return _copied(compute(*own))

        try:
            with self._same_randomness(device):
                expected = _devices.on_another_stream(apart, device)
            others = [graph.recording for graph in self._graphs.values()]
            recording, outputs = _devices.captured(recorded, device, beside=others)
            graph = _Graph(*own, outputs, recording, tuple(outside.read.values()))
            with self._same_randomness(device):
                found = graph(*own)
            reason = _difference(found, expected)
            if not reason:
                self._graphs[kind] = graph
        except RuntimeError as error:  # whatever a device refuses while it records, memory included
            reason = str(error).strip().partition("\n")[0]
        finally:
            self.forget()
        if reason:
            self._failed = True
            warnings.warn(
                f"clipped sums are not recorded as a CUDA graph ({reason}): training goes on, and each kernel is "
                "launched by itself",
                RuntimeWarning,
                stacklevel=2,
            )

    @contextmanager
    def _same_randomness(self, device: torch.device) -> Iterator[None]:
        """Within, a model that draws from torch's generators draws the same numbers each time."""
        with _devices.own_randomness(device):
            torch.manual_seed(0)
            yield

    def _addresses(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for _, tensor in named_tensors(self.model))


@dataclass(eq=False)
class _Graph:
    """A recorded computation.

    Attributes:
        batch, weights: the tensors that it reads.
        outputs: those that it writes.
        recording: which a device can replay.
        outside: whatever else it reads, which must live as long.
    """

    batch: Examples
    weights: Tensor | None
    outputs: Sums
    recording: Any
    outside: tuple[Tensor, ...]

    def __call__(self, batch: Examples, weights: Tensor | None) -> Sums:
        """The outputs for another batch, which the next call leaves alone."""
        each(torch.Tensor.copy_, self.batch, batch)
        if self.weights is not None and weights is not None:
            self.weights.copy_(weights)
        self.recording.replay()
        return _copied(self.outputs)


class _Outside(TorchDispatchMode):
    """Notes the tensors that operations within read and did not make."""

    def __init__(self):
        super().__init__()
        self.read: dict[int, Tensor] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for tensor in _of(args, kwargs):
            place = tensor.untyped_storage()._cdata
            if place not in self._made:
                self.read.setdefault(place, tensor.detach())
        found = func(*args, **(kwargs or {}))
        self._made.update({one.untyped_storage()._cdata for one in _of(found)} - self.read.keys())
        return found


def _of(*trees: Any) -> list[Tensor]:
    return [one for one in tree_leaves(trees) if isinstance(one, Tensor)]


def _copied(sums: Sums) -> Sums:
    total, others, some = sums
    gradients = {name: value.clone() for name, value in total.gradients.items()}
    total = replace(total, gradients=gradients, norms=total.norms.clone(), losses=total.losses.clone())
    return total, others.clone(), some.clone()


def _difference(found: Sums, expected: Sums) -> str:
    """How the numbers of a recorded sum differ from those that it should have: not in one bit where torch was told to
    compute the same bits each time, else by no more than rounding explains; empty where that is so."""
    for one, other in zip(_numbers(found), _numbers(expected), strict=True):
        one, other = one.nan_to_num().double(), other.nan_to_num().double()
        if torch.are_deterministic_algorithms_enabled():
            if not torch.equal(one, other):
                return "it does not give the same bits"
        elif (one - other).norm() > _ROUNDING * other.norm():
            return "it gives another sum"
    return ""


def _numbers(sums: Sums) -> list[Tensor]:
    total, others, some = sums
    return [*total.gradients.values(), total.norms, total.losses, others.to(torch.uint8), some.to(torch.uint8)]


def _modes(device: torch.device) -> tuple:
    """What torch's own switches say of products there."""
    return (
        torch.is_autocast_enabled(device.type),
        torch.get_autocast_dtype(device.type),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )
