"""torch.export: model.pt2, which `torch.export.load` of plain torch opens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from sfumato.exporting.served import RECORDS, Served

FILE = "model.pt2"
LIBRARY = "pytorch"
NEEDS: tuple[str, ...] = ()
ABOUT = "sfumato.json"
"""The file within it that holds what preprocessing.json beside it holds."""
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn", "custom")
"""What a graph's nodes say of the code that they come from, with paths of the machine that it ran on."""
USE = """```python
import torch

model = torch.export.load("model.pt2").module()
{output} = model(torch.from_numpy(records))  # {shape}
```"""


def program(served: Served) -> ExportedProgram:
    """The graph, for any number of records, without a word of where it was made."""
    example = served.made_up(2)
    with torch.no_grad():
        found = torch.export.export(served, (example,), dynamic_shapes={RECORDS: {0: Dim("n", min=1)}}, strict=False)
    for module in found.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            for name in _TRACES:
                node.meta.pop(name, None)
    return found


def write(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    """Write the file into a folder."""
    torch.export.save(program(served), folder / FILE, extra_files={ABOUT: json.dumps(about, ensure_ascii=False)})


def used(served: Served) -> dict[str, Any]:
    """What the lines of code in the card are filled in with: nothing of its own."""
    return {}


def opened(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    """The file as a function of records, opened as anybody would."""
    return torch.export.load(folder / FILE).module()
