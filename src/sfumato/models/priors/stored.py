"""The dictionaries that the package brings: a file of a few megabytes for colour images, and one for grey ones."""

from __future__ import annotations

import functools
import json
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import safe_open

from sfumato._checks import SfumatoError
from sfumato.models.priors.atoms import Atoms
from sfumato.models.priors.whitening import Whitening

COLOUR, GREY = "colour", "grey"


class Prior(NamedTuple):
    """A dictionary: the atoms of each scale, the finest first, each next one of images of half the side; and the
    whitening of all of their responses together."""

    scales: tuple[Atoms, ...]
    whitening: Whitening


def prior_for(channels: int) -> Prior:
    """The stored dictionary for images of so many channels.

    Raises:
        SfumatoError: neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise SfumatoError(
            f"the dictionaries are for images of 1 or 3 channels, got {channels}", "choose another model, such as cnn"
        )
    return _stored(COLOUR if channels == 3 else GREY)


def about(name: str) -> dict[str, Any]:
    """From what a stored dictionary was made: the arguments of `making.make`."""
    with as_file(_place(name)) as path, safe_open(path, "pt") as file:
        return json.loads(file.metadata()["made_of"])


@functools.cache
def _stored(name: str) -> Prior:
    with as_file(_place(name)) as path:
        return read(path)


def _place(name: str) -> Any:
    return files("sfumato.models.priors") / f"{name}.safetensors"


def read(path: Path) -> Prior:
    """The dictionary in a file that `write` wrote."""
    tensors = safetensors.torch.load_file(path)
    count = sum(name.startswith("filters_") for name in tensors)
    scales = tuple(Atoms(tensors[f"filters_{place}"].float(), tensors[f"offsets_{place}"]) for place in range(count))
    return Prior(scales, Whitening(**{name: tensors[name] for name in Whitening._fields}))


def write(prior: Prior, path: Path, *, made_of: dict[str, Any]) -> None:
    """The dictionary to a file; filters as 16-bit numbers."""
    tensors = dict(prior.whitening._asdict())
    for place, atoms in enumerate(prior.scales):
        tensors |= {f"filters_{place}": atoms.filters.half(), f"offsets_{place}": atoms.offsets}
    metadata = {"made_of": json.dumps(made_of, sort_keys=True)}
    safetensors.torch.save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata)
