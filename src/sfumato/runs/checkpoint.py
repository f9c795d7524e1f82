"""Checkpoints, the whole state between two steps, and the weights that a run keeps: safetensors files, no pickle."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sfumato import _devices
from sfumato._checks import SfumatoError, parse_json
from sfumato._files import make_directory, path_errors, regular_file, write, write_errors
from sfumato.data import BACKBONE, Cache
from sfumato.models import METADATA, read_description, resolve_weights
from sfumato.randomness import NoiseState
from sfumato.runs import pins
from sfumato.runs.directory import RunDirectory, file_hash

KEPT = "kept"
"""The folder of the weights that a run keeps, one file for each step."""
_KEPT_NAME = re.compile(r"step-(\d{8})\.safetensors")
MOVING = ("params", "lr", "step")
"""The entries of an optimizer's parameter group that change: the schedule sets the learning rate of each step."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state after `step` steps.

    Args:
        step: the number of steps taken.
        model: parameters and buffers.
        average: the state of the average (`Average`); empty without averaging.
        optimizer: the optimizer's `state_dict`.
        noise: the state of the noise; not used by non-private training.
        run: the identity of the run.
        ledger: the hash of the ledger's entry for the last of these steps; empty without a ledger.
    """

    step: int
    model: dict[str, Tensor]
    average: dict[str, Tensor]
    optimizer: dict[str, Any]
    run: str
    noise: NoiseState
    ledger: str = ""

    @classmethod
    def of(
        cls,
        step: int,
        model: nn.Module,
        average: dict[str, Tensor],
        optimizer: torch.optim.Optimizer,
        *,
        run: str,
        noise: NoiseState | None = None,
        ledger: str = "",
    ) -> Checkpoint:
        """The current state of the objects, not copied."""
        return cls(
            step=step,
            model=dict(model.state_dict()),
            average=average,
            optimizer=optimizer.state_dict(),
            run=run,
            noise=noise or NoiseState(step=step),
            ledger=ledger,
        )

    def require_run(self, identity: str) -> None:
        """Refuse a checkpoint of another run: two runs that continue from one state with one key share their noise."""
        if self.run != identity:
            raise SfumatoError(
                f"the checkpoint belongs to another run: {self.run[:16]}, but this is {identity[:16]}",
                "restore the run's own checkpoint from a copy, or start another run",
            )

    def require_optimizer(self, optimizer: torch.optim.Optimizer, *, where: str) -> None:
        """Refuse to continue with an optimizer whose constants differ from those of the steps so far.

        The meaning of an optimizer's name may change between versions. `load_state_dict` would silently restore the
        earlier constants in the groups and keep the present ones elsewhere: a mixture of both.
        """
        before, now = (
            {f"group {place}": _constants(group) for place, group in enumerate(groups)}
            for groups in (self.optimizer["param_groups"], optimizer.param_groups)
        )
        end = "end the run at its checkpoint (sfumato finish), " if self.ledger else ""
        remedy = f"go back to the version that started the run, {end}or start another run"
        pins.require_same("optimizer", before, now, remedy=remedy, where=where)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> dict[str, Tensor]:
        """Load the state into model and optimizer. Refuses other names or shapes. Returns the average's state on the
        device."""
        try:
            model.load_state_dict(self.model)
            optimizer.load_state_dict(self.optimizer)
        except (RuntimeError, ValueError) as error:
            if _devices.is_out_of_memory(error):
                raise
            raise SfumatoError(
                f"the run's checkpoint does not fit the model or the optimizer: {' '.join(str(error).split())}",
                "give those of the original run, or another `directory`",
            ) from None
        return {name: value.to(device) for name, value in self.average.items()}

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        tensors: dict[str, Tensor] = {}
        skeleton = _extract_tensors(self.optimizer, "optimizer", tensors)
        for prefix, held in (("model", self.model), ("average", self.average), ("noise", self.noise.tensors)):
            tensors |= {f"{prefix}.{name}": value for name, value in held.items()}
        about = {"step": self.step, "run": self.run, "ledger": self.ledger}
        about |= {"optimizer": skeleton, "noise": self.noise.step}
        write(path, to_bytes(tensors, {METADATA: json.dumps(about, sort_keys=True)}), private=True)

    @staticmethod
    def step_at(path: Path) -> int:
        """The number of steps of a checkpoint, of which nothing else is read."""
        with safe_open(regular_file(path), framework="pt") as file:
            return parse_json(file.metadata()[METADATA])["step"]

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a file that `save` wrote."""
        tensors, metadata = read_safetensors(path)
        try:
            about = parse_json(metadata[METADATA])
            if not all(type(about[name]) is int for name in ("step", "noise")):
                raise ValueError
            return cls(
                model=_with_prefix("model.", tensors),
                average=_with_prefix("average.", tensors),
                optimizer=_lower(about["optimizer"], tensors),
                noise=NoiseState(step=about["noise"], tensors=_with_prefix("noise.", tensors)),
                **{name: about[name] for name in ("step", "run", "ledger")},
            )
        except (KeyError, ValueError, TypeError):
            raise SfumatoError(
                f"{path} is not a checkpoint of this version of sfumato",
                "restore it from a copy, go back to the version that started the run, or start another run",
            ) from None


def roundtrip(optimizer: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state after a round trip through a checkpoint.

    Errors: `SfumatoError` for a state that a checkpoint cannot hold.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_extract_tensors(optimizer, "optimizer", tensors))
    return _lower(parse_json(skeleton), {name: value.detach().cpu().clone() for name, value in tensors.items()})


def to_bytes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Safetensors bytes: a function of tensors and metadata alone. The order of several metadata keys would vary."""
    if len(metadata) > 1:
        raise ValueError("with more than one metadata key the bytes would not be deterministic")
    independent: dict[str, Tensor] = {}
    storages: set[int] = set()  # of which safetensors takes each only once
    for name, value in tensors.items():
        own = value.detach().cpu().contiguous()
        if own.untyped_storage().data_ptr() in storages:
            own = own.clone()
        storages.add(own.untyped_storage().data_ptr())
        independent[name] = own
    return save(independent, metadata=metadata)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors (on the CPU) and the metadata of a safetensors file."""
    remedy = "restore it from a copy, or start another run"
    try:
        with path_errors(str(path), remedy, remedy), safe_open(regular_file(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise SfumatoError(f"{path} cannot be read as safetensors ({error})", remedy) from None


def backbone_of(cache: Cache) -> dict[str, Tensor]:
    """The weights of a cache's backbone, checked to be those that its features were computed with."""
    weights, _ = read_safetensors(cache.path / BACKBONE)
    if pins.weights_digest(weights) != cache.contents.weights:
        raise SfumatoError(
            f"{cache.path / BACKBONE} holds other weights than the features were computed with",
            "delete it and run the sfumato features command again",
        )
    return weights


def stored_statement(path: Path) -> dict[str, Any] | None:
    """The statement in a model file of sfumato, else None."""
    about = read_description(path)
    return None if about is None else about["statement"]


def stored_materials(weights: str | None) -> tuple[str, ...]:
    """`Source.stored_digest` of the data that a model file of sfumato was trained on without privacy; empty for others.

    The digest is keyed: it reveals nothing without the owner's key.
    """
    about = None if weights is None else read_description(resolve_weights(weights))
    return () if about is None else tuple(about["trained_on"])


def stored_constants(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation of the pixels in a model file of sfumato, else None."""
    about = read_description(path)
    if about is None or "mean" not in about["transform"]:
        return None
    return tuple(about["transform"]["mean"]), tuple(about["transform"]["std"])


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _constants(group: dict[str, Any]) -> dict[str, Any]:
    """The entries of an optimizer's parameter group that stay the same from step to step."""
    return {name: value for name, value in group.items() if name not in MOVING}


def _extract_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Move the tensors of a nested state into `tensors`. The rest is returned as JSON."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _extract_tensors(item, f"{name}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_extract_tensors(item, f"{name}.{place}", tensors) for place, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise SfumatoError(
        f"the optimizer's state holds a {type(value).__name__} at {name}, which a checkpoint cannot store",
        "use one of the named optimizers",
    )


def _lower(value: Any, tensors: dict[str, Tensor]) -> Any:
    (kind, content), *_ = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _lower(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_lower(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return content


def kept_path(run: RunDirectory, step: int) -> Path:
    """The path of the weights after `step` steps."""
    return run / KEPT / f"step-{step:08}.safetensors"


def save_kept(run: RunDirectory, step: int, weights: Mapping[str, Tensor]) -> None:
    """Write the trained parameters after `step` steps atomically, without noise state and optimizer."""
    path = kept_path(run, step)
    with write_errors(path):
        make_directory(path.parent)
    write(path, to_bytes(dict(weights), {METADATA: json.dumps({"step": step})}), private=True)


def hashes_of_kept(run: RunDirectory, steps: Collection[int]) -> dict[str, str]:
    """SHA-256 of the file of each of these steps, for the ledger's last line."""
    return {str(step): file_hash(kept_path(run, step)) for step in sorted(steps)}


def kept_files(run: RunDirectory) -> dict[int, Path]:
    """The files in the run directory, by step, ascending."""
    found = sorted((run / KEPT).glob("step-*.safetensors"))
    return {int(name[1]): path for path in found if (name := _KEPT_NAME.fullmatch(path.name))}


def drop_other_kept(run: RunDirectory, steps: Collection[int]) -> None:
    """Delete the weights of all other steps: those after a run's last checkpoint, or stray files."""
    for step, path in kept_files(run).items():
        if step not in steps:
            path.unlink()


def load_kept(run: RunDirectory, step: int, recorded: str) -> dict[str, Tensor]:
    """The weights after `step` steps, checked against the ledger.

    Args:
        recorded: the hash in the ledger's last line.

    Errors: `SfumatoError` if the file is missing or has another hash.
    """
    path = kept_path(run, step)
    if not path.is_file() or file_hash(path) != recorded:
        state = "is not the file that the ledger ends with" if path.is_file() else "is missing"
        raise SfumatoError(f"{path} {state}", "restore it from a copy, or average fewer")
    return read_safetensors(path)[0]


def recorded_hashes(end: Mapping[str, Any]) -> dict[int, str]:
    """The hashes in a ledger's last line, by step, ascending; empty if the run kept no weights."""
    return {int(step): code for step, code in sorted(end.get("kept", {}).items(), key=lambda item: int(item[0]))}
