"""A CPU that records what is launched on it, as a CUDA device does for a graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from sfumato import _devices
from sfumato.gradients.batch_runner import BatchRunner

NO_QUESTION = "operation not permitted when stream is capturing"


class Recorder(TorchDispatchMode):
    """What operations a function does, to be done again on the same tensors; no question about a number is answered."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError(NO_QUESTION)
        given = _as_they_are((args, kwargs or {}))
        found = func(*args, **(kwargs or {}))
        self.done.append((func, *given, _as_they_are(found)))
        return found

    @torch.no_grad()
    @torch.autocast("cpu", enabled=False)
    def replay(self) -> None:
        """Do them again."""
        for func, args, kwargs, found in self.done:
            given = {one.untyped_storage()._cdata for one in _tensors((args, kwargs))}
            for old, new in zip(_tensors(found), _tensors(func(*args, **kwargs)), strict=True):
                if old.untyped_storage()._cdata not in given:
                    old.copy_(new)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def _as_they_are(tree: Any) -> Any:
    """The same memory in tensors whose shapes stay."""
    return tree_map_only(torch.Tensor, torch.Tensor.detach, tree)


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> Iterator[list[Any]]:
    """Within, sums are recorded, on a CPU by recorders; what was is in the list."""
    found, record = [], _devices.capture_graph

    def emulated(function, device, earlier):
        found.append(Recorder())
        with found[-1]:
            outputs = function()
        return found[-1], outputs

    def counted(function, device, earlier):
        found.append(None)
        return record(function, device, earlier=earlier)

    monkeypatch.setattr(_devices, "capture_graph", counted if device == "cuda" else emulated)
    if device != "cuda":
        monkeypatch.setattr(_devices, "has_device_forms", lambda device: True)
        monkeypatch.setattr(_devices, "can_capture", lambda device: True)
        monkeypatch.setattr(_devices, "run_on_side_stream", lambda function, device: function())
        monkeypatch.setattr(BatchRunner, "_asynchronous", lambda self, batch: True)
    with _devices.deterministic(device):
        yield found
