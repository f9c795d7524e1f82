"""ONNX: model.onnx, which onnxruntime and many others open."""

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
NEEDS = ("onnx", "onnxscript", "onnxruntime")
ABOUT = "sfumato"
"""The key of its metadata that holds what preprocessing.json beside it holds."""
USE = """```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
({output},) = session.run(None, {{"records": records}})  # {shape}
```"""


def write(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    """Write the file into a folder, without a word of where it was made."""
    made: Any = torch.onnx.export(
        program(served),
        (served.made_up(2),),
        input_names=[RECORDS],
        output_names=[served.output],
        dynamic_shapes={RECORDS: {0: Dim("n", min=1)}},
        dynamo=True,
        verbose=False,
    )
    for graph in (made.model.graph, *made.model.functions.values()):
        nodes = list(graph.all_nodes())
        values = [*graph.inputs, *(value for node in nodes for value in node.outputs)]
        for one in (graph, *nodes, *values, *getattr(graph, "initializers", {}).values()):
            one.metadata_props.clear()
            one.doc_string = None
    made.model.metadata_props.clear()
    made.model.metadata_props[ABOUT] = json.dumps(about, ensure_ascii=False)
    made.save(folder / FILE)


def used(served: Served) -> dict[str, Any]:
    """What the lines of code in the card are filled in with: nothing of its own."""
    return {}


def opened(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    """The file as a function of records, opened as anybody would."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    return lambda records: torch.from_numpy(session.run(None, {RECORDS: records.numpy()})[0])
