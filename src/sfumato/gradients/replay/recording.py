"""A call's tensor operations, recorded by torch's own `make_fx`, and run again with other numbers.

Autograd, vmap and taps lead to a plain sequence of tensor operations, which is the same in every call of a shape. To
run that sequence is to do what the call did, bit for bit, without the Python that found out about it. What was true of
the recorded call and might not be of the next is an output too: whether every question (`recordable`) would be answered
as it was.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sfumato.gradients.recordable import CannotReplay, assuming, is_permanent
from sfumato.gradients.replay.split import Parts, in_parts

# What leaves tensors without an operation that could be recorded; what asks for a number fails by itself.
_PAST_TENSORS = (Tensor.numpy, Tensor.__array__, Tensor.untyped_storage, Tensor.data_ptr, Tensor.__dlpack__)


@dataclass(frozen=True, eq=False)
class Recording:
    """A sequence of operations.

    **Guarantee.** What `run` gives is what the recorded function would give for these tensors, bit by bit, where `run`
    also says that all questions would be answered as they were; the function must depend on nothing else that changes.
    Random numbers, writes to what was given, and tensors that came from elsewhere are refused when it is made.

    Attributes:
        parts: of the graph.
    """

    parts: Parts

    @property
    def size_of_fixed(self) -> int:
        """How many operations `fixed` runs, without those that are called as methods, most of which are views."""
        return sum(node.op == "call_function" for node in self.parts.fixed.graph.nodes)

    def fixed(self, given: Sequence[Tensor]) -> list[Any]:
        """What follows from the given tensors alone."""
        with torch.no_grad():
            return self.parts.fixed(*given)

    def run(self, given: Sequence[Tensor], batch: Sequence[Tensor], fixed: Sequence[Any]) -> tuple[Any, Tensor]:
        """The function's result, and () bool: whether it holds.

        Args:
            given, batch: as `recorded` took them.
            fixed: what `fixed` gave for them.
        """
        with torch.no_grad():
            return self.parts.each(*given, *batch, *fixed)


def recorded(function: Callable[[], Any], given: Sequence[Tensor], batch: Sequence[Tensor]) -> Recording:
    """The operations of a function of these tensors, which it refers to by itself.

    Args:
        given: those that are the same for many batches.
        batch: the others. A recording holds for tensors of the same shapes, types and strides.

    Raises:
        CannotReplay: the function does what a recording could not do again.
    """
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    result: list[Any] = []

    def traced(*tensors: Tensor) -> tuple[Any, Tensor]:
        with _AsTensors(), assuming() as assumed:
            found = function()
        on = batch[0].device
        holds = torch.stack(assumed).all() if assumed else torch.ones((), dtype=torch.bool, device=on)
        result.append(found)
        return found, holds

    # What make_fx notes of each operation's result: without it, it would look at the whole stack of calls for each.
    notes = TracingContext(FakeTensorMode(allow_fallback_kernels=True))
    try:
        with tracing(notes):
            graph = make_fx(traced)(*given, *batch)
    except CannotReplay:
        raise
    except Exception as error:
        raise CannotReplay(f"{type(error).__name__}: {error}") from error
    _refuse_strangers(graph)
    recording = Recording(in_parts(graph, len(given)))
    del graph
    gc.collect()  # the recorder is full of cycles, and refers to the model's tensors
    again, holds = recording.run(given, batch, recording.fixed(given))
    if not bool(holds) or not _same(again, result[0]):
        raise CannotReplay("what was recorded gives other numbers")
    return recording


class _AsTensors(TorchFunctionMode):
    """Refuses what turns a tensor into something whose numbers a recording would keep."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PAST_TENSORS:
            raise CannotReplay(f"it calls {func.__name__} of a tensor")
        return func(*args, **(kwargs or {}))


def _refuse_strangers(graph: fx.GraphModule) -> None:
    """Refuses tensors that are neither the function's own, made of Python's numbers, nor permanent."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            made = all(user.target is torch.ops.aten.lift_fresh_copy.default for user in node.users)
            if not made and not is_permanent(getattr(graph, node.target)):
                raise CannotReplay("it uses a tensor that is neither its input nor held by the model")


def _same(first: Any, second: Any) -> bool:
    """Whether two results have the same bits."""
    one, other = (tree_leaves(tree) for tree in (first, second))
    same_types = [tensor.dtype for tensor in one] == [tensor.dtype for tensor in other]
    return same_types and all(map(torch.equal, map(bits, one), map(bits, other)))


def bits(tensor: Tensor) -> Tensor:
    """What a tensor holds, flat, as whole numbers: equal where it is the same, -0 and not-a-number included."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(tensor.element_size(), torch.int64)
    return tensor.detach().contiguous().view(-1).view(width)
