"""torch.export: model.pt2, for `torch.export.load`."""

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
ABOUT = "sfumato.json"
"""File within the archive that holds the contents of preprocessing.json."""
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn", "custom")
"""Metadata of graph nodes about their source code. It holds paths of the exporting machine."""
USE = """```python
import torch

model = torch.export.load("model.pt2").module()
{output} = model(torch.from_numpy(records))  # {shape}
```"""


def program(served: Served) -> ExportedProgram:
    """The graph, for any number of records, without traces of the machine that exported it."""
    example = served.synthetic(2)
    with torch.no_grad():
        exported = torch.export.export(served, (example,), dynamic_shapes={RECORDS: {0: Dim("n", min=1)}}, strict=False)
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            for name in _TRACES:
                node.meta.pop(name, None)
    return exported


def write(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    """Writes the file."""
    torch.export.save(program(served), folder / FILE, extra_files={ABOUT: json.dumps(about, ensure_ascii=False)})


def opened(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    """Opens the file as a user would, and returns the model as a function of records."""
    return torch.export.load(folder / FILE).module()
