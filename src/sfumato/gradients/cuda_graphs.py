"""Clipped sums as CUDA graphs: the kernels of a micro-batch are recorded once, and then launched together.

If the host cannot launch kernels as fast as the device runs them, launching takes most of the time of a step. A graph
reads and writes the same memory each time: the batch is copied into static tensors, and the weights are the model's
own, which its optimizer updates in place. Whatever Python decides along the way is decided once, while recording.
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
from sfumato.gradients.checks.synthetic import Examples, repeat_first
from sfumato.gradients.examples import tree_map, tree_tensors
from sfumato.gradients.sums import ClippedSum
from sfumato.gradients.walk import named_tensors

FIRST_CALLS = 3
"""Calls of a kind before it is recorded; by then, everything about the model has been found out."""
MOST_GRAPHS = 16
"""The most graphs of one object; the micro-batches of a training have at most nine sizes."""

_ROUNDING = 1e-2
"""Largest relative difference of two sums whose products round differently; 1e-3 has been measured."""

Sums = tuple[ClippedSum, Tensor, Any]
"""The result of `fast_sum`: a clipped sum, the examples that it lacks, and () bool, whether there are any."""


@dataclass(eq=False)
class Captures:
    """The graphs of one `ClippedGradient`, by kind of batch, each recorded at the fourth call of its kind.

    The graphs share their working memory: they run one after the other, and each one's results are copied immediately.

    Args:
        model: the model whose parameters and buffers the graph reads.
        forget: discards what was found out about the values of parameters, so that a call finds it out again.

    **Guarantee.** A graph performs the same operations as the call from which it was recorded, on the current batch and
    weights: norms, factors and sum come from the same kernels, so its terms obey the bound C if those of the call do. A
    graph is used only if, on synthetic examples, it gives the same bits as a call without it (or, unless torch is set
    to be deterministic, the same numbers up to rounding); and only while batches have the same shapes and types, the
    model the same modes, and parameters and buffers the same addresses. Any other memory that a graph reads is kept
    alive as long as the graph. It cannot notice that a model or a loss computes something else because of a changed
    number or branch in Python: it continues as recorded.
    """

    model: nn.Module
    forget: Callable[[], None]
    _graphs: dict[tuple, _Graph] = field(default_factory=dict)
    _calls: Counter[tuple] = field(default_factory=Counter)
    _known_addresses: tuple[int, ...] = ()
    _failed: bool = False

    def sums(
        self,
        kind: tuple,
        batch: Examples,
        weights: Tensor | None,
        synthetic: Examples,
        compute: Callable[[Examples, Tensor | None], Sums],
    ) -> Sums:
        """Returns the result of `compute` for the batch, by a graph if there is one for its kind.

        Args:
            kind: everything except numbers on which the computation depends.
            synthetic: a synthetic example, (1, ...).
            compute: computes the sums without waiting for the device.
        """
        first = tree_tensors(batch)[0]
        if not _devices.can_capture(first.device):
            return compute(batch, weights)
        kind = (kind, len(first), weights is None, _modes(first.device))
        if (addresses := self._addresses()) != self._known_addresses:  # existing graphs would read stale memory
            self._known_addresses = addresses
            self._graphs.clear()
        if kind not in self._graphs and not self._failed:
            self._calls[kind] += 1
            if self._calls[kind] > FIRST_CALLS and len(self._graphs) < MOST_GRAPHS:
                weights_like = None if weights is None else torch.ones_like(weights)
                self._record(kind, (repeat_first(synthetic, len(first)), weights_like), compute, first.device)
        graph = self._graphs.get(kind)
        return compute(batch, weights) if graph is None else graph(batch, weights)

    def _record(
        self,
        kind: tuple,
        static: tuple[Examples, Tensor | None],
        compute: Callable[[Examples, Tensor | None], Sums],
        device: torch.device,
    ) -> None:
        """Records the graph for batches of this kind; warns if that is not possible.

        Args:
            static: a synthetic batch and its weights, whose tensors become the inputs of the graph.
        """
        reads = _ExternalReads()

        def recorded() -> Sums:
            self.forget()
            with reads:
                return compute(*static)

        def eager() -> Sums:
            self.forget()
            return _copied(compute(*static))

        try:
            with self._same_randomness(device):
                expected = _devices.run_on_side_stream(eager, device)
            others = [graph.recording for graph in self._graphs.values()]
            recording, outputs = _devices.capture_graph(recorded, device, earlier=others)
            graph = _Graph(*static, outputs, recording, tuple(reads.read.values()))
            with self._same_randomness(device):
                replayed = graph(*static)
            reason = _difference(replayed, expected)
            if not reason:
                self._graphs[kind] = graph
        except RuntimeError as error:  # anything that a device refuses while recording, memory included
            reason = str(error).strip().partition("\n")[0]
        finally:
            self.forget()
        if reason:
            self._failed = True
            warnings.warn(
                f"clipped sums are not recorded as a CUDA graph ({reason}): training continues, and launches kernels "
                "one by one",
                RuntimeWarning,
                stacklevel=2,
            )

    @contextmanager
    def _same_randomness(self, device: torch.device) -> Iterator[None]:
        """Within the context, a model that draws from torch's generators draws the same numbers each time."""
        with _devices.fork_rng(device):
            torch.manual_seed(0)
            yield

    def _addresses(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for _, tensor in named_tensors(self.model))


@dataclass(eq=False)
class _Graph:
    """A recorded computation.

    Attributes:
        batch, weights: the tensors that it reads.
        outputs: the tensors that it writes.
        recording: the recording, which a device can replay.
        external: all other tensors that it reads, which must live as long as the graph.
    """

    batch: Examples
    weights: Tensor | None
    outputs: Sums
    recording: Any
    external: tuple[Tensor, ...]

    def __call__(self, batch: Examples, weights: Tensor | None) -> Sums:
        """Returns the outputs for another batch; the next call does not overwrite them."""
        tree_map(torch.Tensor.copy_, self.batch, batch)
        if self.weights is not None and weights is not None:
            self.weights.copy_(weights)
        self.recording.replay()
        return _copied(self.outputs)


class _ExternalReads(TorchDispatchMode):
    """Records the tensors that operations within the context read but did not create."""

    def __init__(self):
        super().__init__()
        self.read: dict[int, Tensor] = {}
        self._created: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for tensor in _tensors(args, kwargs):
            place = tensor.untyped_storage()._cdata
            if place not in self._created:
                self.read.setdefault(place, tensor.detach())
        outputs = func(*args, **(kwargs or {}))
        self._created.update({one.untyped_storage()._cdata for one in _tensors(outputs)} - self.read.keys())
        return outputs


def _tensors(*trees: Any) -> list[Tensor]:
    return [one for one in tree_leaves(trees) if isinstance(one, Tensor)]


def _copied(sums: Sums) -> Sums:
    total, doubtful, some = sums
    gradients = {name: value.clone() for name, value in total.gradients.items()}
    total = replace(total, gradients=gradients, norms=total.norms.clone(), losses=total.losses.clone())
    return total, doubtful.clone(), some.clone()


def _difference(sums: Sums, expected: Sums) -> str:
    """Describes how a replayed sum differs from the expected one; empty if it does not.

    If torch is set to be deterministic, no bit may differ; otherwise, differences explained by rounding are accepted.
    """
    for one, other in zip(_numbers(sums), _numbers(expected), strict=True):
        one, other = one.nan_to_num().double(), other.nan_to_num().double()
        if torch.are_deterministic_algorithms_enabled():
            if not torch.equal(one, other):
                return "it does not give the same bits"
        elif (one - other).norm() > _ROUNDING * other.norm():
            return "it gives another sum"
    return ""


def _numbers(sums: Sums) -> list[Tensor]:
    total, doubtful, some = sums
    return [*total.gradients.values(), total.norms, total.losses, doubtful.to(torch.uint8), some.to(torch.uint8)]


def _modes(device: torch.device) -> tuple:
    """The settings of torch that affect products on the device."""
    return (
        torch.is_autocast_enabled(device.type),
        torch.get_autocast_dtype(device.type),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )
