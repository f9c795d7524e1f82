"""A device on a machine that has none: it computes on the CPU, and counts what a GPU would be asked.

Its tensors say that they are on `counting:0` and hold CPU values. Within `counting_device`, an operation on tensors of
two devices is refused in CUDA's words, and so is what CUDA would refuse (`numpy()`); `counted` says how many kernels a
device would have been given, where the host would have waited for it (a stop), and what was copied. It rests on
PyTorch's Python backend for PrivateUse1 (`torch.utils.backend_registration`), wrapper subclasses and one dispatch mode,
so autograd and `torch.func` run on it as on any device. Inference mode is `no_grad` there.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.fx.experimental import proxy_tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "counting"
aten = torch.ops.aten
_MIXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
"""Operations whose index tensors may stay on the CPU."""
_COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default, aten._copy_from.default}
_STOPS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.masked_select.default}
_UNIQUE = ("aten::_unique", "aten::unique")
_NO_KERNEL = {
    *("aten::detach", "prim::device", "aten::promote_types", "aten::_unsafe_view"),
    *("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"),
}
"""Operations that a GPU does without a kernel: questions, views, and memory that nothing is written to."""


@dataclass
class Counts:
    """What a device would have been asked.

    Attributes:
        kernels: operations that compute, copies of one device among them.
        stops: places where the host waits for a value, by operation and the two lines that led there.
        there, back: copies from the host, and to it.
    """

    kernels: int = 0
    stops: Counter[tuple[str, ...]] = field(default_factory=Counter)
    there: int = 0
    back: int = 0

    def to_dict(self) -> dict[str, int]:
        """As JSON-ready data."""
        return {"kernels": self.kernels, "stops": self.stops.total(), "there": self.there, "back": self.back}


class Counted(Tensor):
    """A tensor of the device; `held` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Counted:
        known = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        tensor = Tensor._make_wrapper_subclass(cls, held.size(), device=f"{NAME}:0", **known)
        tensor.held = held
        return tensor

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return _run(function, arguments, keywords or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def __deepcopy__(self, seen: dict[int, Any]) -> Any:
        if id(self) not in seen:
            copied = Counted(self.held.detach().clone()).requires_grad_(self.requires_grad)
            parameter = getattr(self, "_is_param", False)
            seen[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if parameter else copied
        return seen[id(self)]

    def __repr__(self, **_: Any) -> str:
        return f"Counted({self.held})"


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        recorder = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
        if recorder is None:
            return _run(function, arguments, keywords or {})
        # `make_fx` comes after all other modes; here it is to see the device's tensors, not what they hold.
        with proxy_tensor.disable_proxy_modes_tracing(), self:
            return proxy_tensor.proxy_call(recorder, function, False, arguments, keywords or {})


_open: list[Counts] = []


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """What the device is asked within."""
    counts = Counts()
    _open.append(counts)
    try:
        yield counts
    finally:
        _open.remove(counts)


def of_a_step(command: str) -> dict[str, int]:
    """What a whole step of a training command asks: draw, inputs, sum, noise, optimizer and ledger.

    Args:
        command: as a shell has it after `sfumato`, of a run that doesn't look at the test part in every step. The least
            of each count between two steps is given, so what comes with some steps only is left out.
    """
    from sfumato.cli import main
    from sfumato.training import loop

    seen: list[dict[str, int]] = []
    descend = loop.descend
    with counting_device(), counted() as counts:

        def noted(*arguments: Any) -> Any:
            seen.append(counts.to_dict())
            return descend(*arguments)

        with mock.patch.object(loop, "descend", noted):
            if main(command.split()):
                raise RuntimeError(f"the command failed: sfumato {command}")
    between = [{name: after[name] - before[name] for name in after} for before, after in pairwise(seen)]
    return {name: min(counts[name] for counts in between) for name in between[0]}


@contextlib.contextmanager
def counting_device() -> Iterator[None]:
    """Within, `counting:0` is a device.

    Enter it once before a process's first backward pass, when autograd makes a queue for each device that there is.
    """
    if not _kept:
        _register()
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)

    def inference(mode: Any = True) -> Any:  # a wrapper has no version counter of its own
        return torch.no_grad()(mode) if callable(mode) else torch.set_grad_enabled(not mode)

    try:
        with (
            mock.patch.object(torch, "inference_mode", inference),
            mock.patch.object(proxy_tensor, "HANDLED_TYPES", (*proxy_tensor.HANDLED_TYPES, Counted)),
            _Mode(),
        ):
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _run(function: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
    given = [value for value in tree_flatten((arguments, keywords))[0] if isinstance(value, Tensor)]
    ours = [tensor for tensor in given if isinstance(tensor, Counted)]
    device = keywords.get("device")
    wanted = None if device is None else torch.device(device).type
    stays = bool(ours) if wanted is None else wanted == NAME
    if ours and function not in _COPIES | _MIXED:
        _refuse_others(function, given)
    if wanted is not None:
        keywords = keywords | {"device": torch.device("cpu")}
        if "pin_memory" in keywords:
            keywords["pin_memory"] = False
    out = function(*tree_map(_held, arguments), **tree_map(_held, keywords))
    if ours or stays:
        for counts in _open:
            _count(counts, function, given, stays)
    if function is aten.copy_.default:
        return arguments[0]
    own = {id(_held(tensor)): tensor for tensor in given}
    return tree_map(lambda value: _wrapped(own.get(id(value), value), stays), out)


def _refuse_others(function: Any, given: list[Tensor]) -> None:
    """As CUDA does; a number alone may come from the CPU."""
    for tensor in given:
        if not isinstance(tensor, Counted) and tensor.dim() and tensor.device.type != "meta":
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and "
                f"{tensor.device}! ({function}, {tuple(tensor.shape)})"
            )


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Counted) else value


def _wrapped(value: Any, stays: bool) -> Any:
    return Counted(value) if stays and isinstance(value, Tensor) and not isinstance(value, Counted) else value


def _count(counts: Counts, function: Any, given: list[Tensor], stays: bool) -> None:
    name = function._schema.name
    if function in _COPIES and given:
        source = given[-1] if function is aten.copy_.default else given[0]
        counts.there += stays and not isinstance(source, Counted)
        counts.back += not stays
    if function in _STOPS or name.startswith(_UNIQUE):
        frames = [one for one in traceback.extract_stack()[:-3] if "/torch/" not in one.filename]
        lines = [one for one in frames if one.filename != __file__][-2:]
        places = ("/".join(one.filename.split("/")[-2:]) + f":{one.lineno}" for one in lines)
        counts.stops[str(function), *places] += 1
    elif name not in _NO_KERNEL and not function.is_view:
        counts.kernels += 1


class _Backend:
    """What PyTorch and a program ask of a device's module, such as `torch.cuda`."""

    _ANSWERS = {  # noqa: RUF012
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "_is_in_bad_fork": False,
        "get_device_name": "a counting device",
        "mem_get_info": (8 << 30, 16 << 30),
        "max_memory_allocated": 1 << 30,
        "get_amp_supported_dtype": [torch.float16, torch.bfloat16],
    }
    _NOTHING = (
        *("synchronize", "empty_cache", "manual_seed_all", "set_rng_state", "_lazy_init"),
        "reset_peak_memory_stats",
    )

    def __getattr__(self, name: str) -> Any:
        if name == "get_rng_state":
            return lambda *_: torch.get_rng_state()
        if name not in self._ANSWERS and name not in self._NOTHING:
            raise AttributeError(name)
        return lambda *_: self._ANSWERS.get(name)


_kept: list[Any] = []


def _register() -> None:
    """Once for a process; PyTorch has room for one such backend."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())  # type: ignore[arg-type]
    everything = torch.library.Library("_", "IMPL")
    some = torch.library.Library("aten", "IMPL")
    everything.fallback(lambda function, *a, **k: _run(function, a, k), "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # which then casts nothing

    # Asked for from C++ below any mode, by indexing with a list among others.
    def empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Tensor:
        return Counted(torch.empty_strided(size, stride, dtype=dtype))

    def empty(size: Any, dtype: Any = None, **_: Any) -> Tensor:
        return Counted(torch.empty(size, dtype=dtype))

    def copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        _held(target).copy_(_held(source))
        return target

    some.impl("empty_strided", empty_strided, "PrivateUse1")
    some.impl("empty.memory_format", empty, "PrivateUse1")
    some.impl("_copy_from", copy, "PrivateUse1")
    _kept.extend((everything, some))
