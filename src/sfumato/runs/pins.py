"""Pins: everything besides the plan that decides the bytes of a run. A resumed run must agree with them."""

from __future__ import annotations

import copy
import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, differing, shortened
from sfumato.models import forget_moments

LIBRARIES = ("sfumato", "torch", "numpy", "timm")


def environment() -> dict[str, str]:
    """Library versions and what of the machine changes rounding."""
    pins = {f"version of {name}": version(name) for name in LIBRARIES}
    pins["version of python"] = ".".join(platform.python_version_tuple()[:2])
    pins["processor"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if torch.cuda.is_available():
        pins["accelerator"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return pins


def model_digest(module: nn.Module, made_up: Tensor, *, training: bool = False) -> str:
    """SHA-256 of what the model computes on made-up inputs, with made-up parameters: the same for the same function.

    Moments of public examples are made up too, since they belong to the parameters.

    Args:
        module: any model; a copy of it is looked at, on the CPU.
        made_up: inputs (n, ...), as `Form.made_up` gives them.
        training: in training mode, dropout and the like included, instead of evaluation mode.
    """
    copied = copy.deepcopy(module).cpu().train(training)
    digest = hashlib.sha256(type(module).__qualname__.encode())
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, parameter in copied.named_parameters():
            width = max(1, parameter[0].numel()) if parameter.dim() else 1
            waves = torch.linspace(1, parameter.numel(), parameter.numel()).sin() / width**0.5
            parameter.copy_(waves.reshape(parameter.shape))
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.requires_grad}".encode())
        forget_moments(copied)
        digest.update(copied(made_up).double().contiguous().numpy().tobytes())
    return digest.hexdigest()


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors and their names."""
    code = hashlib.sha256()
    for name, value in sorted(weights.items()):
        code.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        code.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return code.hexdigest()


def compare(kind: str, recorded: Mapping[str, Any], present: Mapping[str, Any], *, remedy: str, where: str) -> None:
    """Refuse a resumption under other conditions, naming each difference and where the other one began."""
    odd = [
        f"{' '.join(names)} was {_show(before)} and is {_show(after)}"
        for names, before, after in differing(recorded, present)
    ]
    if odd:
        raise SfumatoError(f"what began in {where} differs in its {kind}: {', '.join(odd)}", remedy)


def _show(value: Any) -> str:
    return "absent" if value is None else shortened(value)
