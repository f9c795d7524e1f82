"""How well small runs predict large ones: python benchmarks/accuracy/simulation.py DATA PLACE

`studies/simulate.py` on 8,000 images of MNIST (DATA holds mnist.npz), epsilon 1, batches of 2,048, 100 steps and
three learning rates, at 1/16 and 1/4 of batch and noise and in full, by three seeds. Runs are kept in PLACE, and a
benchmark that is cut goes on there; writes results/simulation.json. About ten minutes of one core.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import study

FEW, HELD_OUT = 8000, "0.25"
RATES = (0.02, 0.2, 2.0)
FACTORS = (16, 4)
SEEDS = (1, 2, 3)
ASKED = ("--public", "--validation", HELD_OUT, "--epsilon", "1", "--batch-size", "2048", "--steps", "100")
RESULT = RESULTS / "simulation.json"


def main(data: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "mnist8k.npz").exists():
        arrays = np.load(data / "mnist.npz")
        few = {f"{name}_train": arrays[f"{name}_train"][:FEW] for name in "xy"}
        np.savez(place / "mnist8k.npz", **few, **{f"{name}_test": arrays[f"{name}_test"][:500] for name in "xy"})
    os.chdir(place)
    os.environ["SFUMATO_HOME"] = str(place / "home")
    found: dict[str, Any] = {"rates": RATES, "sizes": {}, "correlations": {}}
    for seed in SEEDS:
        for factor in FACTORS:
            searched = search(factor, seed, confirm=len(RATES) if factor == FACTORS[0] else 0)
            found["scored on"] = searched["scored_on"]
            keep(found, f"1/{factor}", searched["rows"])
            for larger in searched["larger_runs"]:
                if larger["simulate"] == 1:
                    keep(found, "1", larger["rows"])
                    found["correlations"][str(seed)] = larger["rank_correlation"]
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    for size, rows in found["sizes"].items():
        shown = ", ".join(f"{rate}: {np.mean(values):.2%}" for rate, values in rows["accuracy"].items())
        print(f"{size:<6}batch {rows['batch_size']:<6}epsilon {rows['epsilon']:<8.3f}{shown}")
    print(f"rank correlations {found['correlations']}")


def search(factor: int, seed: int, *, confirm: int) -> dict[str, Any]:
    """One search by simulation."""
    varied = ("--vary", "learning-rate=" + ",".join(f"{rate:g}" for rate in RATES), "--seed", str(seed))
    how = ("--factor", str(factor), "--confirm", str(confirm), "--output", f"m{factor}-{seed}")
    return study("simulate", "npz:mnist8k.npz", *ASKED, *varied, *how)


def keep(found: dict[str, Any], size: str, rows: list[dict[str, Any]]) -> None:
    """The figures of one search at one size."""
    kept = found["sizes"].setdefault(size, {"accuracy": {}})
    for row in sorted(rows, key=lambda row: row["change"]["learning_rate"]):
        kept |= {name: row[name] for name in ("batch_size", "noise_multiplier", "epsilon")}
        kept["accuracy"].setdefault(f"{row['change']['learning_rate']:g}", []).append(row["accuracy"])


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
