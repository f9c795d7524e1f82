"""Access to the compute device, the same for CUDA, Intel XPU and other accelerators.

Also tells whether this process is one of several that torchrun started. The functions import torch
themselves, so that importing this module is fast.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from sfumato._checks import SfumatoError

if TYPE_CHECKING:
    import numpy as np
    import torch


Result = TypeVar("Result")

PRECISIONS = ("float32", "bfloat16")
"""Precisions of matrix products and convolutions in a training step."""


def check_name(name: str) -> str:
    """The device name. Refuses anything but "cpu" or an accelerator with or without a number.

    >>> check_name("cuda:1")
    'cuda:1'
    """
    kind, _, number = name.partition(":")
    if not kind.isalpha() or (":" in name and not number.isdecimal()) or (kind == "cpu" and number):
        refuse(name)
    return name


def refuse(name: str) -> NoReturn:
    """Refuse an invalid device name."""
    raise SfumatoError(f"device must be cpu, cuda or cuda:N, or as torch names it, got {name!r}", "give one of these")


def select(name: str | None) -> str:
    """The requested device. By default the accelerator that torch finds, otherwise the CPU.

    Errors: `SfumatoError` if the device is not available or does not support float64.
    """
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None:
        os.environ.setdefault(*_WORKSPACE)
    if name is None:
        return accelerator.type if accelerator is not None and _has_float64(accelerator.type) else "cpu"
    kind, _, number = check_name(name).partition(":")
    try:
        torch.device(name)
    except RuntimeError:
        refuse(name)
    if kind == "cpu":
        return name
    count = torch.accelerator.device_count() if accelerator is not None and accelerator.type == kind else 0
    if int(number or 0) >= count:
        raise SfumatoError(
            f"device {name} is not there: torch sees {count} {_DISPLAY_NAMES.get(kind, kind)} devices", _ON_CPU
        )
    if not _has_float64(kind):
        raise SfumatoError(
            f"device {name} cannot compute in float64, which is needed for norms, sums and noise", _ON_CPU
        )
    return name


def require_one_each(processes: int, name: str) -> None:
    """Refuse to run more processes on this machine than it has accelerators. Each process needs its own."""
    import torch

    kind, _, number = name.partition(":")
    if kind == "cpu" or processes == 1:
        return
    spoken, count = _DISPLAY_NAMES.get(kind, kind), 1 if number else torch.accelerator.device_count()
    if processes > count:
        available = f"device {name} is one" if number else f"torch sees {count} {spoken} device{'s' * (count != 1)}"
        raise SfumatoError(
            f"processes is {processes}, each of which needs its own {spoken} device, but {available}",
            f"start {count}, or give `device=cpu`",
        )


def set_accelerator(number: int) -> None:
    """Make accelerator `number`, modulo their count, the default of this process."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(number % torch.accelerator.device_count())


_ON_CPU = "give `device=cpu`"
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Makes matrix products the same on every stream. CUDA reads the variable at the first product of a process."""
_DISPLAY_NAMES = {"cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}


def _has_float64(kind: str) -> bool:
    import torch

    try:
        return bool(torch.ones(1, dtype=torch.float64, device=kind).add(1).cpu() == 2)
    except (RuntimeError, TypeError):
        return False


def product_name(device: torch.device | str) -> str:
    """The accelerator's product name."""
    import torch

    return torch.get_device_module(device).get_device_name()


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work, for timing."""
    import torch

    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def free_memory(device: torch.device | str) -> int:
    """The free memory of an accelerator in bytes."""
    import torch

    return torch.get_device_module(device).mem_get_info(device)[0]


def available_memory(device: torch.device) -> int:
    """Bytes available for more tensors: the accelerator's free memory, plus what torch has reserved but not used.

    Practically unlimited on the CPU.
    """
    import torch

    if device.type == "cpu":
        return 1 << 62
    module = torch.get_device_module(device)
    held = [getattr(module, name, lambda device: 0)(device) for name in ("memory_reserved", "memory_allocated")]
    return free_memory(device) + held[0] - held[1]


def has_device_forms(device: torch.device) -> bool:
    """Whether gradients use the accelerator implementations of `gradients.products`. Tests also use them on the CPU."""
    return device.type != "cpu"


def can_capture(device: torch.device) -> bool:
    """Whether kernel launches can be captured as a graph on the device."""
    return device.type == "cuda"


def run_on_side_stream(function: Callable[[], Result], device: torch.device) -> Result:
    """Run a function with its kernels on a side stream, as during capture, and return its result."""
    import torch

    usual, other = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    other.wait_stream(usual)
    with torch.cuda.stream(other):
        result = function()
    usual.wait_stream(other)
    return result


def capture_graph(
    function: Callable[[], Result], device: torch.device, *, earlier: Sequence[Any] = ()
) -> tuple[Any, Result]:
    """Capture the kernel launches of a function on a CUDA device as a graph, without running them.

    Args:
        earlier: earlier graphs. This graph shares the memory pool of the first; they must not run at the same time.

    Returns:
        the graph, whose `replay()` launches all kernels; and the function's return value, filled by each replay.
    """
    import torch

    graph, pool = torch.cuda.CUDAGraph(), earlier[0].pool() if earlier else None
    usual = torch.cuda.current_stream(device)
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = function()
    except RuntimeError as error:
        # Torch leaves the stream and the generator in their capture state.
        torch.cuda.set_stream(usual)
        generator = torch.cuda.default_generators[usual.device_index]
        generator.graphsafe_set_state(torch.Generator(device).set_state(generator.get_state()))
        raise RuntimeError(str(error.__context__ or error)) from error  # report the cause, not the failed capture
    return graph, result


def has_bfloat16(name: str) -> bool:
    """Whether an accelerator multiplies bfloat16 matrices in hardware. False on the CPU."""
    import torch

    if (device := torch.device(name)).type == "cpu":
        return False
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "is_bf16_supported"):
        return False
    with module.device(device):
        return module.is_bf16_supported(including_emulation=False)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the machine or an accelerator ran out of memory."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")  # without an import, the error is not from torch
    if isinstance(error, getattr(torch, "OutOfMemoryError", ())):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's message on the CPU


def rng_states(device: torch.device) -> list[torch.Tensor]:
    """The states of torch's global generators, on the CPU and on this device."""
    import torch

    device_states = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state(device)]
    return [torch.get_rng_state(), *device_states]


@contextmanager
def compute_mode(name: str, precision: str) -> Iterator[None]:
    """The context of training steps on a device: products in this precision, and deterministic results."""
    import torch

    kind = torch.device(name).type
    with torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16"), deterministic(name):
        yield


_NOT_DETERMINISTIC = " does not have a deterministic implementation"
_warned: set[str] = set()
"""The functions that `warn_nondeterministic` has already reported."""


@contextmanager
def deterministic(name: torch.device | str) -> Iterator[None]:
    """Make computations on this device deterministic, as far as torch has deterministic implementations.

    Convolutions and matrix products use deterministic algorithms. Attention uses matrix products and a softmax, because
    the backward passes of the fused kernels add in no fixed order.

    A function without a deterministic implementation runs unchanged, and a warning names it. Exact repetition of a step
    depends on such functions; the privacy guarantee does not.
    """
    import torch

    if torch.device(name).type == "cpu":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    filling: Any = torch.utils.deterministic
    cudnn: Any = torch.backends.cudnn
    nondeterministic, show_warning = set[str](), warnings.showwarning
    modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    were = filling.fill_uninitialized_memory, cudnn.benchmark, cudnn.deterministic

    def show(message: Any, *where: Any, **known: Any) -> None:
        what, no_form, _ = str(message).partition(_NOT_DETERMINISTIC)
        if no_form:
            nondeterministic.add(what)
        else:
            show_warning(message, *where, **known)

    try:
        os.environ.setdefault(*_WORKSPACE)
        torch.use_deterministic_algorithms(True, warn_only=True)
        filling.fill_uninitialized_memory, cudnn.benchmark, cudnn.deterministic = False, False, True
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.filterwarnings("always", message=f".*{_NOT_DETERMINISTIC}")
            warnings.showwarning = show
            yield
    finally:
        torch.use_deterministic_algorithms(modes[0], warn_only=modes[1])
        filling.fill_uninitialized_memory, cudnn.benchmark, cudnn.deterministic = were
    for what in sorted(nondeterministic):
        warn_nondeterministic(what)


def warn_nondeterministic(what: str) -> None:
    """Warn that a function is not deterministic, once per function."""
    if what not in _warned:
        _warned.add(what)
        warnings.warn(
            f"{what} is not deterministic on this device, so a repeated step may round differently",
            RuntimeWarning,
            stacklevel=2,
        )


def to_device(values: np.ndarray, device: torch.device | str) -> torch.Tensor:
    """The values on the device. The copy to a GPU is asynchronous."""
    import torch

    tensor = torch.from_numpy(values)
    return (
        tensor.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else tensor.to(device)
    )


@contextmanager
def fork_rng(*devices: torch.device | str) -> Iterator[None]:
    """Restore torch's global generators, of the CPU and of these devices, on exit."""
    import torch

    others = [device for device in map(torch.device, devices) if device.type != "cpu"]
    with torch.random.fork_rng(devices=others, device_type=others[0].type if others else "cuda"):
        yield


def used_accelerators() -> Iterable[torch.device]:
    """The accelerators that this process has used, as far as torch reports."""
    import torch

    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    begun = getattr(torch.get_device_module(kind), "is_initialized", lambda: True)()
    return [torch.device(kind, number) for number in range(torch.accelerator.device_count())] if begun else []


def is_distributed() -> bool:
    """Whether this process is one of several that torchrun started."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def is_follower() -> bool:
    """Whether this process is one of several, and not the leader (rank 0)."""
    return is_distributed() and os.environ["RANK"] != "0"


def local_world_size() -> int:
    """Number of these processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_distributed() else 1
