"""Questions to the device that computes, put so that CUDA, Intel's XPU and any other accelerator take one road; and
whether this process is one of several, as torchrun and `--processes` start them.

Torch is imported within the functions, so that files which only name a device don't wait for it.
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


Found = TypeVar("Found")

PRECISIONS = ("float32", "bfloat16")
"""What the matrix products and convolutions of a training step may be computed in."""


def checked(name: str) -> str:
    """A device's name, after checking its form: "cpu", or an accelerator's, with a number or without.

    >>> checked("cuda:1")
    'cuda:1'
    """
    kind, _, number = name.partition(":")
    if not kind.isalpha() or (":" in name and not number.isdecimal()) or (kind == "cpu" and number):
        refuse(name)
    return name


def refuse(name: str) -> NoReturn:
    """Refuses what is no device's name."""
    raise SfumatoError(f"device must be cpu, cuda or cuda:N, or as torch names it, got {name!r}", "give one of these")


def chosen(name: str | None) -> str:
    """The device asked for, or the accelerator that torch sees, else the CPU.

    Errors: `SfumatoError` for one that is not there, or that cannot compute in float64.
    """
    import torch

    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if there is not None:
        os.environ.setdefault(*_WORKSPACE)
    if name is None:
        return there.type if there is not None and _has_float64(there.type) else "cpu"
    kind, _, number = checked(name).partition(":")
    try:
        torch.device(name)
    except RuntimeError:
        refuse(name)
    if kind == "cpu":
        return name
    count = torch.accelerator.device_count() if there is not None and there.type == kind else 0
    if int(number or 0) >= count:
        raise SfumatoError(f"device {name} is not there: torch sees {count} {_SPOKEN.get(kind, kind)} devices", _ON_CPU)
    if not _has_float64(kind):
        raise SfumatoError(
            f"device {name} computes nothing in float64, in which norms, sums and noise are formed", _ON_CPU
        )
    return name


def one_each(processes: int, name: str) -> None:
    """Refuse more processes on this machine than there are accelerators, of which each needs one of its own."""
    import torch

    kind, _, number = name.partition(":")
    if kind == "cpu" or processes == 1:
        return
    spoken, count = _SPOKEN.get(kind, kind), 1 if number else torch.accelerator.device_count()
    if processes > count:
        there = f"device {name} is one" if number else f"torch sees {count} {spoken} device{'s' * (count != 1)}"
        raise SfumatoError(
            f"processes is {processes}, each of which needs a {spoken} device of its own, and {there}",
            f"give `processes={count}`, or `device=cpu`",
        )


def take_turn(number: int) -> None:
    """Compute on the accelerator of this number, counted round, in a process that names none."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(number % torch.accelerator.device_count())


_ON_CPU = "give `device=cpu`"
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Without it products of matrices differ by stream; CUDA reads it at the first product of a process."""
_SPOKEN = {"cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}


def _has_float64(kind: str) -> bool:
    import torch

    try:
        return bool(torch.ones(1, dtype=torch.float64, device=kind).add(1).cpu() == 2)
    except (RuntimeError, TypeError):
        return False


def of(device: torch.device | str) -> str:
    """An accelerator's name in words."""
    import torch

    return torch.get_device_module(device).get_device_name()


def wait_for(device: torch.device) -> None:
    """Returns when the device has done what it was given, so that a clock may be read."""
    import torch

    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def free_memory(device: torch.device | str) -> int:
    """Bytes that an accelerator has free."""
    import torch

    return torch.get_device_module(device).mem_get_info(device)[0]


def room(device: torch.device) -> int:
    """Bytes that tensors may still take: what an accelerator has free, and what torch holds of it without using it; a
    great many on the CPU."""
    import torch

    if device.type == "cpu":
        return 1 << 62
    module = torch.get_device_module(device)
    held = [getattr(module, name, lambda device: 0)(device) for name in ("memory_reserved", "memory_allocated")]
    return free_memory(device) + held[0] - held[1]


def has_own_forms(device: torch.device) -> bool:
    """Whether gradients take the forms of devices there (`gradients.products`); tests ask for them on a CPU as well."""
    return device.type != "cpu"


def can_capture(device: torch.device) -> bool:
    """Whether what is launched there can be recorded as a graph."""
    return device.type == "cuda"


def on_another_stream(function: Callable[[], Found], device: torch.device) -> Found:
    """What a function gives whose kernels run beside the usual stream, as those do that are recorded."""
    import torch

    usual, other = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    other.wait_stream(usual)
    with torch.cuda.stream(other):
        found = function()
    usual.wait_stream(other)
    return found


def captured(function: Callable[[], Found], device: torch.device, *, beside: Sequence[Any] = ()) -> tuple[Any, Found]:
    """Record what a function launches on a CUDA device, without running it.

    Args:
        beside: earlier recordings, whose working memory this one shares: they may not run at the same time.

    Returns:
        the recording, whose `replay()` launches all of it; and what the function returned, whose tensors hold its
        results after that.
    """
    import torch

    graph, pool = torch.cuda.CUDAGraph(), beside[0].pool() if beside else None
    usual = torch.cuda.current_stream(device)
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            found = function()
    except RuntimeError as error:
        # Torch leaves its stream and its generator as they were while it recorded.
        torch.cuda.set_stream(usual)
        generator = torch.cuda.default_generators[usual.device_index]
        generator.graphsafe_set_state(torch.Generator(device).set_state(generator.get_state()))
        raise RuntimeError(str(error.__context__ or error)) from error  # the first, not that the recording is void
    return graph, found


def has_bfloat16(name: str) -> bool:
    """Whether an accelerator multiplies matrices of bfloat16 in hardware. The CPU is not asked: see docs/engine.md."""
    import torch

    if (device := torch.device(name)).type == "cpu":
        return False
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "is_bf16_supported"):
        return False
    with module.device(device):
        return module.is_bf16_supported(including_emulation=False)


def exhausted(error: BaseException) -> bool:
    """Whether an error says that memory, the machine's or an accelerator's, was not enough."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")  # an error before it is imported, or while it is, is none of torch's
    if isinstance(error, getattr(torch, "OutOfMemoryError", ())):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # as torch says it on the CPU


def random_states(device: torch.device) -> list[torch.Tensor]:
    """Those of torch's global generators, on the CPU and on this device."""
    import torch

    own = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state(device)]
    return [torch.get_rng_state(), *own]


@contextmanager
def computing(name: str, precision: str) -> Iterator[None]:
    """Around training steps on this device: products in this precision, and the same bits each time (`repeatable`)."""
    import torch

    kind = torch.device(name).type
    with torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16"), repeatable(name):
        yield


_NO_FORM = " does not have a deterministic implementation"
_rounding: set[str] = set()
"""What this process has already been told of (`warn_of_rounding`)."""


@contextmanager
def repeatable(name: torch.device | str) -> Iterator[None]:
    """Within, the same computation on this device gives the same bits, where it has such a form: convolutions and
    products by algorithms that are deterministic, attention by products and a softmax (the backward passes of the
    fused forms add in any order).

    Functions without such a form run as they do, and are named by one warning: the promise does not hang on it, a
    repetition does.
    """
    import torch

    if torch.device(name).type == "cpu":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    filling: Any = torch.utils.deterministic
    cudnn: Any = torch.backends.cudnn
    found, shown = set[str](), warnings.showwarning
    modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    were = filling.fill_uninitialized_memory, cudnn.benchmark, cudnn.deterministic

    def show(message: Any, *where: Any, **known: Any) -> None:
        what, no_form, _ = str(message).partition(_NO_FORM)
        if no_form:
            found.add(what)
        else:
            shown(message, *where, **known)

    try:
        os.environ.setdefault(*_WORKSPACE)
        torch.use_deterministic_algorithms(True, warn_only=True)
        filling.fill_uninitialized_memory, cudnn.benchmark, cudnn.deterministic = False, False, True
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.filterwarnings("always", message=f".*{_NO_FORM}")
            warnings.showwarning = show
            yield
    finally:
        torch.use_deterministic_algorithms(modes[0], warn_only=modes[1])
        filling.fill_uninitialized_memory, cudnn.benchmark, cudnn.deterministic = were
    for what in sorted(found):
        warn_of_rounding(what)


def warn_of_rounding(what: str) -> None:
    """Tell once of what cannot be computed with the same bits each time."""
    if what not in _rounding:
        _rounding.add(what)
        warnings.warn(
            f"{what} is not deterministic on this device, so a step that is taken again may round otherwise",
            RuntimeWarning,
            stacklevel=2,
        )


def sent(values: np.ndarray, device: torch.device | str) -> torch.Tensor:
    """The values on the device; a GPU gets them while the host goes on."""
    import torch

    there = torch.from_numpy(values)
    return there.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else there.to(device)


@contextmanager
def own_randomness(*devices: torch.device | str) -> Iterator[None]:
    """What is drawn within, on the CPU or on these devices, leaves torch's global generators as they were."""
    import torch

    others = [device for device in map(torch.device, devices) if device.type != "cpu"]
    with torch.random.fork_rng(devices=others, device_type=others[0].type if others else "cuda"):
        yield


def all_begun() -> Iterable[torch.device]:
    """The accelerators that this process has used, as far as torch tells."""
    import torch

    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    begun = getattr(torch.get_device_module(kind), "is_initialized", lambda: True)()
    return [torch.device(kind, number) for number in range(torch.accelerator.device_count())] if begun else []


STORE = "SFUMATO_STORE"
"""Where the environment of what `--processes` has started has the file by which these processes find each other."""


def one_of_several() -> bool:
    """Whether it was."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def silent() -> bool:
    """Whether another process speaks for this one."""
    return one_of_several() and os.environ["RANK"] != "0"


def local_count() -> int:
    """How many of them there are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if one_of_several() else 1
