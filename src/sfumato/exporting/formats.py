"""The export formats: ONNX (model.onnx, for onnxruntime and others) and torch.export (model.pt2)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

    from sfumato.exporting.export_description import Served

PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
"""The packages that a format needs besides those of sfumato."""
ONNX_ENTRY, ARCHIVE_ENTRY = "sfumato", "sfumato.json"
"""Where a model file holds the contents of preprocessing.json: a key of ONNX metadata, a file in a torch archive."""
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn", "custom")
"""Metadata of graph nodes about their source code. It holds paths of the exporting machine."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format.

    Args:
        file: the name of the model's file.
        library: the library that opens it.
        use: code that runs the model on `records`, in Markdown.
        write: writes the file into a folder, with the description, and without traces of the machine.
        opened: opens the file in a folder as a user would, and returns the model as a function of records.
    """

    file: str
    library: str
    use: str
    write: Callable[[Served, Path, Mapping[str, Any]], None]
    opened: Callable[[Path, Served], Callable[[Tensor], Tensor]]


def refuse_missing(to: str) -> None:
    """Refuse a format whose packages are not installed. Imports none of them."""
    missing = [name for name in PACKAGES.get(to, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise SfumatoError(f"--to {to} needs {', '.join(missing)} (not installed)", "pip install 'sfumato[onnx]'")


def program(served: Served) -> ExportedProgram:
    """The graph, for any number of records, without traces of the machine that exported it."""
    import torch

    from sfumato.exporting.export_description import RECORDS

    example, sizes = served.synthetic(2), {RECORDS: {0: torch.export.Dim("n", min=1)}}
    with torch.no_grad():
        exported = torch.export.export(served, (example,), dynamic_shapes=sizes, strict=False)
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            for name in _TRACES:
                node.meta.pop(name, None)
    return exported


def _write_archive(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    import torch

    entries = {ARCHIVE_ENTRY: json.dumps(about, ensure_ascii=False)}
    torch.export.save(program(served), folder / TORCH_EXPORT.file, extra_files=entries)


def _opened_archive(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    import torch

    return torch.export.load(folder / TORCH_EXPORT.file).module()


def _write_onnx(served: Served, folder: Path, about: Mapping[str, Any]) -> None:
    import torch

    from sfumato.exporting.export_description import RECORDS

    exported: Any = torch.onnx.export(
        program(served),
        (served.synthetic(2),),
        input_names=[RECORDS],
        output_names=[served.output],
        dynamic_shapes={RECORDS: {0: torch.export.Dim("n", min=1)}},
        dynamo=True,
        verbose=False,
    )
    for graph in (exported.model.graph, *exported.model.functions.values()):
        nodes = list(graph.all_nodes())
        values = [*graph.inputs, *(value for node in nodes for value in node.outputs)]
        for element in (graph, *nodes, *values, *getattr(graph, "initializers", {}).values()):
            element.metadata_props.clear()
            element.doc_string = None
    exported.model.metadata_props.clear()
    exported.model.metadata_props[ONNX_ENTRY] = json.dumps(about, ensure_ascii=False)
    exported.save(folder / ONNX.file)


def _opened_onnx(folder: Path, served: Served) -> Callable[[Tensor], Tensor]:
    import onnxruntime  # pyright: ignore[reportMissingImports]
    import torch

    from sfumato.exporting.export_description import RECORDS

    session = onnxruntime.InferenceSession(str(folder / ONNX.file), providers=["CPUExecutionProvider"])
    return lambda records: torch.from_numpy(session.run(None, {RECORDS: records.numpy()})[0])


ONNX = Format(
    file="model.onnx",
    library="onnx",
    use="""```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
({output},) = session.run(None, {{"records": records}})  # {shape}
```""",
    write=_write_onnx,
    opened=_opened_onnx,
)
TORCH_EXPORT = Format(
    file="model.pt2",
    library="pytorch",
    use="""```python
import torch

model = torch.export.load("model.pt2").module()
{output} = model(torch.from_numpy(records))  # {shape}
```""",
    write=_write_archive,
    opened=_opened_archive,
)
FORMATS: Mapping[str, Format] = MappingProxyType({"onnx": ONNX, "torch-export": TORCH_EXPORT})
