"""Weight noise on MNIST (Davody et al. 2020, table 2): LeNet-300-100 and LeNet-5, bare, with layer norm and batch norm.

    python benchmarks/accuracy/noise_study.py npz:mnist.npz [--model lenet5 ...] [--runs 3] [--epochs 2]

    python benchmarks/accuracy/noise_study.py npz:mnist.npz --figure [--runs 1] [--epochs 20]

The second is figure 1(a) in small: accuracy on a tenth of the training images that is held out, with batch norm, at
deviations of 0, 1 and 10. Either goes on where it stopped, in runs/noise-study/NAME, and adds what came of it to
benchmarks/results/noise-study.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from benchmarks.shared import measuring
from sfumato.observers.progress import Bars

RESULT = RESULTS / "noise-study.json"
DEVIATIONS = (0.0, 0.01, 0.1, 0.3, 1.0, 2.0)
RATES = (0.01, 0.2)
FORMS = ("none", "batch", "layer")
FIGURE: dict[str, Any] = {"normalisations": ("batch",), "deviations": (0.0, 1.0, 10.0), "learning_rates": (0.2, 1.0)}
FIGURE |= {"schedule": "constant", "validation_fraction": 0.1}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("source")
    arguments.add_argument("--model", default="lenet-300-100")
    arguments.add_argument("--runs", type=int, default=10)
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--directory", default="runs/noise-study")
    arguments.add_argument("--figure", action="store_true")
    asked = arguments.parse_args()
    table = {"normalisations": FORMS, "deviations": DEVIATIONS, "learning_rates": RATES}
    name = f"figure 1, {asked.model}" if asked.figure else asked.model
    with Bars() as progress:
        found = sfumato.noise_study(
            asked.source,
            asked.model,
            directory=Path(asked.directory) / name.replace(", ", "-").replace(",", "-").replace(" ", "-"),
            **(FIGURE if asked.figure else table),
            runs=asked.runs,
            epochs=asked.epochs,
            public=True,
            threads=1,
            progress=progress,
        )
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    where = {"date": datetime.now(UTC).date().isoformat(), "machine": measuring.machine("cpu")}
    known[name] = {**found.to_dict(), "torch": torch.__version__, **where}
    RESULT.write_text(json.dumps(known, indent=1) + "\n")
    for cell in found.cells:
        print(f"{cell.model:40} {cell.deviation:5g}  {cell.accuracy:.4f}  {cell.converged} of {len(cell.accuracies)}")


if __name__ == "__main__":
    main()
