"""The Wide-ResNets that De et al. 2022 published (google-deepmind/jax_privacy), by the names of their library, Haiku.

The files that they published are pickled or in Orbax's format, neither of which is read here. `docs/recipes.md` has the
lines that write them as an npz archive, with a name `module/parameter` per array.
"""

from __future__ import annotations

import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.cli.parser import argument
from studies import command

_LAYER = re.compile(
    r"wide_res_net/(?:(?P<alone>First_conv|Final_norm|Softmax)|Block_(?P<group>[123])"
    r"(?:Conv_(?P<conv>\d+_[01])|_norm_(?P<norm>\d+_[01])|(?P<around>_skip_conv|_skip_norm)))"
)
_NAMES = {
    "First_conv": "stem",
    "Final_norm": "norm",
    "Softmax": "head",
    "_skip_conv": "projection",
    "_skip_norm": "norm_around",
}
_PARAMETERS = {"w": "weight", "bias": "bias", "b": "bias", "gain": "gain", "scale": "weight", "offset": "bias"}


def read_haiku(path: Path) -> dict[str, Tensor]:
    """The arrays of a Wide-ResNet of De et al., with the names and layouts of `WideResNet` in the form "de2022".

    Convolutions (height, width, in, out) become (out, in, height, width), and the classifier (in, out) becomes (out,
    in). All become float32. Nothing is unpickled.

    Args:
        path: an npz archive with names such as `wide_res_net/Block_1Conv_0_0/w`.

    Raises:
        SfumatoError: no npz archive of numbers, or a name that the network doesn't have.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: np.asarray(archive[name], dtype=np.float32) for name in archive.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise SfumatoError(
            f"pretrained file {path} cannot be read as an npz archive of numbers: {error}",
            "write it with numpy.savez, as in docs/recipes.md",
        ) from error
    layers = {name: _LAYER.fullmatch(name.rpartition("/")[0]) for name in arrays}
    unknown = [name for name, layer in layers.items() if not layer or name.rpartition("/")[2] not in _PARAMETERS]
    if unknown or not arrays:
        raise SfumatoError(
            f"pretrained file {path} is no Wide-ResNet of De et al. 2022: "
            + (f"{unknown[0]} is no name of its parameters" if unknown else "it is empty"),
            "give an archive with names such as wide_res_net/Block_1Conv_0_0/w, or a safetensors file",
        )
    indices = [layer["conv"] or "0_0" for layer in layers.values() if layer]
    blocks = 1 + max(int(index.split("_")[0]) for index in indices)
    return {_own_name(layer, name, blocks): _own_layout(arrays[name]) for name, layer in layers.items() if layer}


def _own_name(layer: re.Match[str], name: str, blocks: int) -> str:
    """The name in `WideResNet` with so many blocks in each group."""
    parameter = _PARAMETERS[name.rpartition("/")[2]]
    if layer["alone"]:
        return f"{_NAMES[layer['alone']]}.{parameter}"
    block, place = (layer["conv"] or layer["norm"] or "0_0").split("_")
    kind = "conv" if layer["conv"] else "norm"
    own = _NAMES[layer["around"]] if layer["around"] else f"{kind}{int(place) + 1}"
    return f"blocks.{(int(layer['group']) - 1) * blocks + int(block)}.{own}.{parameter}"


def _own_layout(array: np.ndarray) -> Tensor:
    """(height, width, in, out) as (out, in, height, width), and (in, out) as (out, in)."""
    return torch.from_numpy(np.ascontiguousarray(array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T))


def convert(archive: str | Path, file: str | Path) -> None:
    """Write the archive's weights as a safetensors file for `--pretrained`."""
    save_file({name: value.contiguous() for name, value in read_haiku(Path(archive)).items()}, file)


@dataclass(frozen=True, kw_only=True)
class Haiku:
    """Write an archive of a published Wide-ResNet as a safetensors file for --pretrained."""

    archive: str = argument("IN.npz")
    """The npz archive."""
    out: str = argument("OUT.safetensors")
    """The file to write."""

    def run(self) -> None:
        """Read and write."""
        convert(self.archive, self.out)


if __name__ == "__main__":
    sys.exit(command.main("haiku"))
