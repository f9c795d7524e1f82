"""Pins: what decides the bytes of a run besides the plan, and digests of models and weights."""

from __future__ import annotations

import copy
import hashlib
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _devices
from sfumato._checks import SfumatoError, nested_differences, shortened
from sfumato.models import reset_moments

LIBRARIES = ("sfumato", "torch", "numpy", "timm")
VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that change how the libraries below torch compute on the same processor."""
DRAWS = "version of numpy"
"""numpy draws participants and noise from the key, so a run can be resumed only with the same version."""
FREE = ("device", "threads")
"""The performance settings that may change when a run is resumed."""


def environment() -> dict[str, str]:
    """Library versions, and the properties of the machine that affect rounding."""
    pins = {f"version of {name}": version(name) for name in LIBRARIES}
    pins["version of python"] = ".".join(platform.python_version_tuple()[:2])
    pins["processor"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    pins |= {f"variable {name}": os.environ[name] for name in VARIABLES if name in os.environ}
    if (device := _devices.select(None)) != "cpu":
        runtime = f"CUDA {torch.version.cuda}" if device == "cuda" else device
        pins["accelerator"] = f"{_devices.product_name(device)}, {runtime}"
    return pins


def model_digest(module: nn.Module, synthetic: Tensor) -> str:
    """SHA-256 of the model's outputs for synthetic inputs and synthetic parameters: equal for the same function.

    The moments of public examples are reset, since they depend on the parameters.

    Args:
        module: any model. A copy is evaluated on the CPU.
        synthetic: inputs (n, ...) from `Form.synthetic`.
    """
    copied = copy.deepcopy(module).cpu().eval()
    digest = hashlib.sha256(type(module).__qualname__.encode())
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        digest.update(_set_synthetic_parameters(copied))
        reset_moments(copied)
        digest.update(copied(synthetic).double().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _set_synthetic_parameters(module: nn.Module) -> bytes:
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
    differences = [
        f"{' '.join(names)} was {_shown(one)} and is {_shown(two)}"
        for names, one, two in nested_differences(recorded, present)
    ]
    if differences:
        raise SfumatoError(f"the run in {where} differs in its {kind}: {', '.join(differences)}", remedy)


def _shown(value: Any) -> str:
    return "absent" if value is None else shortened(value)
