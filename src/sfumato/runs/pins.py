"""Pins: everything besides the plan that decides the bytes of a run. A resumed run must agree with them."""

from __future__ import annotations

import copy
import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, differing, shortened
from sfumato.models import forget_moments
from sfumato.runs.processor import processor_model

LIBRARIES = ("sfumato", "torch", "numpy", "timm")
VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""By which the libraries under torch are told to compute otherwise on the same processor."""
PROCESSOR = "processor's model"
"""Vendor and model; runs that were begun before it was recorded lack it."""


def environment() -> dict[str, str]:
    """Library versions and what of the machine changes rounding."""
    pins = {f"version of {name}": version(name) for name in LIBRARIES}
    pins["version of python"] = ".".join(platform.python_version_tuple()[:2])
    pins["processor"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    pins[PROCESSOR] = processor_model()
    pins |= {f"variable {name}": os.environ[name] for name in VARIABLES if name in os.environ}
    if torch.cuda.is_available():
        pins["accelerator"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return pins


def model_digest(module: nn.Module, synthetic: Tensor, *, training: bool = False) -> str:
    """SHA-256 of what the model computes on made-up inputs, with made-up parameters: the same for the same function.

    Moments of public examples are made up too, since they belong to the parameters.

    Args:
        module: any model; a copy of it is looked at, on the CPU.
        synthetic: inputs (n, ...), as `Form.synthetic` gives them.
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
        digest.update(copied(synthetic).double().contiguous().numpy().tobytes())
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
    if differences := _differences(recorded, present):
        raise SfumatoError(f"what began in {where} differs in its {kind}: {', '.join(differences)}", remedy)


def compare_environment(recorded: Mapping[str, Any], present: Mapping[str, Any], *, remedy: str, where: str) -> None:
    """The same of `environment`: two copies of a run that go on where sums are rounded otherwise would show, in their
    difference, what was rounded without any noise.

    A run that was begun before the processor's model was recorded is compared in what it recorded.
    """
    if differences := _of_environment(recorded, present, recorded_only=PROCESSOR not in recorded):
        raise SfumatoError(f"what began in {where} differs in its environment: {', '.join(differences)}", remedy)


def compare_model(recorded: Mapping[str, Any], present: Mapping[str, Any], *, where: str) -> None:
    """Refuse a model that computes something else than the run's did.

    The digests of what it computes depend on the processor too, so the refusal names what else is different here.

    Args:
        recorded, present: the run's whole record, and what it would be here.
    """
    differences = _differences(recorded.get("model", {}), present["model"])
    environment = {PROCESSOR: "not recorded"} | recorded.get("environment", {})
    elsewhere = _of_environment(environment, present["environment"])
    if differences and elsewhere:
        raise SfumatoError(
            f"what began in {where} differs in its model: {', '.join(differences)}, where rounding may be "
            f"all that differs: {', '.join(elsewhere)}",
            "go back to the machine and versions that the run began with, and give its model unchanged",
        )
    if differences:
        raise SfumatoError(
            f"what began in {where} differs in its model: {', '.join(differences)}",
            "give the model that the run began with, unchanged, or another `directory`",
        )


def _of_environment(
    recorded: Mapping[str, Any], present: Mapping[str, Any], *, recorded_only: bool = False
) -> list[str]:
    """The differences of two environments in full: a processor's number stands at the end of its name."""
    if recorded_only:
        present = {name: value for name, value in present.items() if name in recorded or name == "accelerator"}
    return _differences(recorded, present, written=str)


def _differences(
    recorded: Mapping[str, Any],
    present: Mapping[str, Any],
    *,
    written: Callable[[Any], str] = shortened,
) -> list[str]:
    def of(value: Any) -> str:
        return "absent" if value is None else written(value)

    return [
        f"{' '.join(names)} was {of(before)} and is {of(after)}"
        for names, before, after in differing(recorded, present)
    ]
