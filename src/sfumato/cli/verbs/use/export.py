"""sfumato export: a run's model for those who have no sfumato."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfumato.cli.options.choices import OfModel
from sfumato.cli.options.spellings import Path
from sfumato.cli.output import console


@dataclass(frozen=True, kw_only=True)
class Export(OfModel):
    """Write a finished run's model so that it opens without sfumato.

    A folder with the model, preprocessing.json (classes, statement, and what happens to an image before and within the
    model) and a model card. It is written only where its outputs are the run's, to 1e-5, on made-up records.
    """

    to: Literal["onnx", "torch-export", "huggingface", "timm"] = "onnx"
    """onnx, torch-export, or a folder that timm or huggingface (transformers) opens, for models of theirs."""
    output: Path = None
    """Folder to write, which must be new or hold this very export; or a file name that ends in .onnx or .pt2. (default:
    export-TO in the run directory, NAME-TO beside a model file)"""

    def run(self) -> None:
        """Write the model and name the place."""
        from sfumato.exporting import export

        made = export(self.run_directory, self.to, output=self.output, model=self.model)
        if self.json:
            data = {"to": self.to, "export": str(made.path), "files": list(made.files), "difference": made.difference}
            console.as_json(data)
            return
        console.result(f"{made.path}   {', '.join(made.files)}")
        console.note(f"outputs are the run's to {made.difference:.0e} on made-up records; {made.files[-1]} says how")
