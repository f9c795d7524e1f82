"""Pins: everything besides the plan that decides the bytes of a run. A resumed run is compared with them.

Two processors with the same instruction set may round sums differently, so the processor's model is a pin.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _devices
from sfumato._checks import SfumatoError, nested_differences, shortened
from sfumato.models import reset_moments
from sfumato.models.weights.description import OWN_LOOP
from sfumato.runs.commitment import WENT_ON

LIBRARIES = ("sfumato", "torch", "numpy", "timm")
VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that change how the libraries below torch compute on the same processor."""
PROCESSOR = "processor's model"
"""Vendor and model."""
DRAWS = "version of numpy"
"""numpy draws participants and noise from the key, so a run can be resumed only with the same version."""
FREE = ("device", "threads")
"""The performance settings that may change when a run is resumed."""


def environment() -> dict[str, str]:
    """Library versions, and the properties of the machine that affect rounding."""
    pins = {f"version of {name}": version(name) for name in LIBRARIES}
    pins["version of python"] = ".".join(platform.python_version_tuple()[:2])
    pins["processor"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    pins[PROCESSOR] = processor_model()
    pins |= {f"variable {name}": os.environ[name] for name in VARIABLES if name in os.environ}
    if (device := _devices.select(None)) != "cpu":
        runtime = f"CUDA {torch.version.cuda}" if device == "cuda" else device
        pins["accelerator"] = f"{_devices.product_name(device)}, {runtime}"
    return pins


def model_digest(module: nn.Module, synthetic: Tensor, *, training: bool = False) -> str:
    """SHA-256 of the model's outputs for synthetic inputs and synthetic parameters: equal for the same function.

    The moments of public examples are reset, since they depend on the parameters.

    Args:
        module: any model. A copy is evaluated on the CPU.
        synthetic: inputs (n, ...) from `Form.synthetic`.
        training: use training mode, including dropout, instead of evaluation mode.
    """
    copied = copy.deepcopy(module).cpu().train(training)
    digest = hashlib.sha256(type(module).__qualname__.encode())
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        digest.update(set_synthetic_parameters(copied))
        reset_moments(copied)
        digest.update(copied(synthetic).double().contiguous().numpy().tobytes())
    return digest.hexdigest()


def set_synthetic_parameters(module: nn.Module) -> bytes:
    """Overwrite a model's parameters with waves that depend only on their shapes. Returns the names and shapes."""
    described = []
    for name, parameter in module.named_parameters():
        width = max(1, parameter[0].numel()) if parameter.dim() else 1
        waves = torch.linspace(1, parameter.numel(), parameter.numel()).sin() / width**0.5
        parameter.copy_(waves.reshape(parameter.shape))
        described.append(f"{name} {tuple(parameter.shape)} {parameter.requires_grad}")
    return "".join(described).encode()


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors and their names."""
    code = hashlib.sha256()
    for name, value in sorted(weights.items()):
        code.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        code.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return code.hexdigest()


def require_same(
    kind: str, recorded: Mapping[str, Any], present: Mapping[str, Any], *, remedy: str, where: str
) -> None:
    """Refuse to resume under other conditions. The error names each difference and where the run began."""
    if differences := _differences(recorded, present):
        raise SfumatoError(f"the run in {where} differs in its {kind}: {', '.join(differences)}", remedy)


def changes_since(record: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """The differences, in words, that affect how a run's sums are computed, since it was last resumed
    (`report_environment`).

    They concern the environment, the device, the threads, and the digests of model, loss and optimizer.

    Args:
        record, present: the run's whole record, and the record that it would have here.
    """
    return _differences(compute_record(record), compute_record(present), written=str)


def compute_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a record that describes how the last steps were computed."""
    if WENT_ON in record:
        return {name: value for name, value in record[WENT_ON][-1].items() if name != "step"}
    functions = {} if record.get("kind") == OWN_LOOP else record["model"]
    digests = {f"digest of {name}": one[:16] for name, one in functions.items()}
    return {**record["environment"], **{name: record["performance"][name] for name in FREE}, **digests}


def _differences(
    recorded: Mapping[str, Any], present: Mapping[str, Any], *, written: Callable[[Any], str] = shortened
) -> list[str]:
    """The differences in words. `written` formats values: environments in full, since a processor's number is at the
    end of its name."""

    def shown(value: Any) -> str:
        return "absent" if value is None else written(value)

    return [
        f"{' '.join(names)} was {shown(one)} and is {shown(two)}"
        for names, one, two in nested_differences(recorded, present)
    ]


LISTING = Path("/proc/cpuinfo")
_SYSCTL = "/usr/sbin/sysctl"


@functools.cache
def processor_model() -> str:
    """The processor's name, vendor and model, from the operating system.

    Linux: /proc/cpuinfo. macOS: sysctl. Other systems: Python's `platform`.
    """
    with contextlib.suppress(OSError):
        if found := from_listing(LISTING.read_text("utf-8", errors="replace")):
            return found
    if platform.system() == "Darwin" and (found := from_sysctl()):
        return found
    return platform.processor() or platform.machine() or "unknown"


def from_listing(text: str) -> str:
    r"""The first processor in /proc/cpuinfo; empty if there is none.

    >>> from_listing("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n")
    'AMD EPYC (AuthenticAMD, family 25, model 17)'
    >>> from_listing("processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n")
    'implementer 0x41, variant 0x3, part 0xd0c'
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    named = fields.get("model name") or fields.get("cpu model") or fields.get("cpu", "")
    numbers = {"family": "cpu family", "model": "model"}
    numbers |= {name: f"CPU {name}" for name in ("implementer", "variant", "part")}  # ARM gives these alone
    return _device_name(
        named, fields.get("vendor_id", ""), {name: fields.get(field) for name, field in numbers.items()}
    )


def _device_name(name: str, vendor: str, numbers: Mapping[str, str | None]) -> str:
    further = ", ".join(filter(None, [vendor, *(f"{what} {value}" for what, value in numbers.items() if value)]))
    return f"{name} ({further})" if name and further else name or further


def from_sysctl() -> str:
    """The processor by macOS's sysctl: the brand alone for Apple's, with vendor, family and model for Intel's."""
    answers: dict[str, str] = {}
    for name in ("brand_string", "vendor", "family", "model"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = [_SYSCTL, "-n", f"machdep.cpu.{name}"]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            answers[name] = re.sub(r"\s+", " ", answer.stdout).strip()
    numbers = {name: answers.get(name) for name in ("family", "model")}
    return _device_name(answers.get("brand_string", ""), answers.get("vendor", ""), numbers)
