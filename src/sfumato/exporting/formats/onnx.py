"""ONNX: model.onnx, for onnxruntime and others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from sfumato.exporting.formats.torch_export import program
from sfumato.exporting.served import RECORDS, Served

FILE = "model.onnx"
LIBRARY = "onnx"
ABOUT = "sfumato"
"""Metadata key of the contents of preprocessing.json."""
USE = """```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
({output},) = session.run(None, {{"records": records}})  # {shape}
```"""


def write(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    """Writes the file, without traces of the machine that exported it."""
    exported: Any = torch.onnx.export(
        program(served),
        (served.synthetic(2),),
        input_names=[RECORDS],
        output_names=[served.output],
        dynamic_shapes={RECORDS: {0: Dim("n", min=1)}},
        dynamo=True,
        verbose=False,
    )
    for graph in (exported.model.graph, *exported.model.functions.values()):
        nodes = list(graph.all_nodes())
        values = [*graph.inputs, *(value for node in nodes for value in node.outputs)]
        for one in (graph, *nodes, *values, *getattr(graph, "initializers", {}).values()):
            one.metadata_props.clear()
            one.doc_string = None
    exported.model.metadata_props.clear()
    exported.model.metadata_props[ABOUT] = json.dumps(about, ensure_ascii=False)
    exported.save(folder / FILE)


def opened(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    """Opens the file as a user would, and returns the model as a function of records."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    return lambda records: torch.from_numpy(session.run(None, {RECORDS: records.numpy()})[0])
