"""Weight noise on MNIST (Davody et al. 2020, table 2): LeNet-300-100 and LeNet-5, bare, with layer norm and batch norm.

    python benchmarks/noise_study.py npz:mnist.npz [--model lenet5 ...] [--runs 3] [--epochs 2]

goes on where it stopped, in runs/noise-study/MODEL, and adds what came of it to benchmarks/results/noise-study.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import sfumato
from sfumato.training.progress import Bars

RESULTS = Path(__file__).parent / "results" / "noise-study.json"
DEVIATIONS = (0.0, 0.01, 0.1, 0.3, 1.0, 2.0)
RATES = (0.01, 0.2)
FORMS = ("none", "batch", "layer")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("source")
    arguments.add_argument("--model", default="lenet-300-100")
    arguments.add_argument("--runs", type=int, default=10)
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--directory", default="runs/noise-study")
    asked = arguments.parse_args()
    with Bars() as progress:
        found = sfumato.noise_study(
            asked.source,
            asked.model,
            directory=Path(asked.directory) / asked.model.replace(",", "-"),
            normalisations=FORMS,
            deviations=DEVIATIONS,
            learning_rates=RATES,
            runs=asked.runs,
            epochs=asked.epochs,
            public=True,
            threads=1,
            progress=progress,
        )
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[asked.model] = {**found.to_dict(), "torch": torch.__version__}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    for cell in found.cells:
        print(f"{cell.model:40} {cell.deviation:5g}  {cell.accuracy:.4f}  {cell.converged} of {len(cell.accuracies)}")


if __name__ == "__main__":
    main()
