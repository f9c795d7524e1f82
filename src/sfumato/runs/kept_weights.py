"""Weights that a run keeps besides its model: a file for each of several steps, bound by the ledger's last line."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import make_directory, write, write_errors
from sfumato.models import METADATA
from sfumato.runs.checkpoint import read_safetensors, to_bytes
from sfumato.runs.directory import RunDirectory, file_hash

KEPT = "kept"
_NAME = re.compile(r"step-(\d{8})\.safetensors")


def path_of(run: RunDirectory, step: int) -> Path:
    """The path of the weights after `step` steps."""
    return run / KEPT / f"step-{step:08}.safetensors"


def save(run: RunDirectory, step: int, weights: Mapping[str, Tensor]) -> None:
    """Write the trained parameters after `step` steps atomically, without noise state and optimizer."""
    path = path_of(run, step)
    with write_errors(path):
        make_directory(path.parent)
    write(path, to_bytes(dict(weights), {METADATA: json.dumps({"step": step})}), private=True)


def hashes(run: RunDirectory, steps: Collection[int]) -> dict[str, str]:
    """SHA-256 of the file of each of these steps, for the ledger's last line."""
    return {str(step): file_hash(path_of(run, step)) for step in sorted(steps)}


def files(run: RunDirectory) -> dict[int, Path]:
    """The files in the run directory, by step, ascending."""
    found = sorted((run / KEPT).glob("step-*.safetensors"))
    return {int(name[1]): path for path in found if (name := _NAME.fullmatch(path.name))}


def drop_others(run: RunDirectory, steps: Collection[int]) -> None:
    """Delete the weights of all other steps: those after a run's last checkpoint, or stray files."""
    for step, path in files(run).items():
        if step not in steps:
            path.unlink()


def load(run: RunDirectory, step: int, recorded: str) -> dict[str, Tensor]:
    """The weights after `step` steps, checked against the ledger.

    Args:
        recorded: the hash in the ledger's last line.

    Errors: `SfumatoError` if the file is missing or has another hash.
    """
    path = path_of(run, step)
    if not path.is_file():
        raise SfumatoError(f"{path} is missing", "restore it from a copy, or average fewer")
    if file_hash(path) != recorded:
        raise SfumatoError(f"{path} is not the file that the ledger ends with", "restore it from a copy")
    return read_safetensors(path)[0]


def recorded_hashes(end: Mapping[str, Any]) -> dict[int, str]:
    """The hashes in a ledger's last line, by step, ascending; empty if the run kept no weights."""
    return {int(step): code for step, code in sorted(end.get("kept", {}).items(), key=lambda item: int(item[0]))}
