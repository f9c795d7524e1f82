"""What a GPU would be asked by a clipped sum: python benchmarks/speed/device.py [--models lenet5 ...] [--lines 6]

Kernels, and stops where the host waits for the device, of one clipped sum after three others of the same shape, beside
a plain gradient step and `vmap` of the same model and batch; kernels also after the weights have moved, as in training;
and what a whole step of a training command asks, with the draw, the inputs, the noise, the optimizer and the ledger.
Counted on a device that computes on the CPU (`benchmarks/shared/counting.py`), so no time means anything and no GPU is
needed. Which way a layer takes is chosen by the CPU's clock, so counts of networks vary by some percent. Writes
results/device.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import methods, problems
from benchmarks.shared.counting import NAME, Counts, counted, counting_device, of_a_step
from benchmarks.shared.problems import Row

RESULT = RESULTS / "device.json"
WAYS = ("plain", "vmap", "sfumato")
STEP = "train digits --model cnn --batch-size 256 --micro-batch 1024 --steps 60"
BEFORE = 1
"""Steps before the one that is counted: the first finds out about the model."""
ROWS = {
    "last-layer": Row(model="", batch=256, size=512, classes=100),
    "lenet5": Row(model="lenet5", batch=64, size=28, channels=1),
    "wrn-16-4": Row(model="wrn-16-4", batch=16, size=32),
    "vit-tiny": Row(model="timm:vit_tiny_patch16_224", batch=8, size=64),
}


def main(models: Sequence[str] = tuple(ROWS), lines: int = 6) -> None:
    """Count.

    Args:
        models: which of the rows.
        lines: of each clipped sum, from how many lines of code most stops are shown.
    """
    found = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    for name in models:
        found[name] = {"row": asdict(ROWS[name])}
        for way in WAYS:
            counts = of_one_step(ROWS[name], way)
            found[name][way] = counts.to_dict() | {"moved": of_one_step(ROWS[name], way, moved=True).kernels}
            print(f"{name:<12}{way:<9}{counts.kernels:6} kernels {counts.stops.total():4} stops", flush=True)
            for (operation, *places), times in counts.stops.most_common(lines):
                print(f"{times:>25} at {' <- '.join(reversed(places))} ({operation})")
        RESULT.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    with TemporaryDirectory() as place:
        found["step"] = {"command": STEP, **of_a_step(f"{STEP} --device {NAME} --output {place}/run")}
    print(json.dumps(found["step"]))
    RESULT.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def of_one_step(row: Row, way: str, *, moved: bool = False) -> Counts:
    """What one step of a method asks of the device; `moved`, after the weights have moved, as in training."""
    with counting_device():
        method = methods.make(way, problems.build(row, f"{NAME}:0"))
        for _ in range(BEFORE):
            method.step()
        if moved and method.model is not None:
            with torch.no_grad():
                for parameter in method.model.parameters():
                    parameter.mul_(1.01)
        with counted() as counts:
            method.step()
    return counts


if __name__ == "__main__":
    tyro.cli(main)
