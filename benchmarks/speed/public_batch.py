"""What public batch norm takes of a step: python benchmarks/speed/public_batch.py [BATCH] [ROUNDS]

A clipped gradient of a WRN-16-4 on BATCH random images (512) with group norm, and with batch norm by 128 public ones,
whose moments are taken before it: by public ones alone, or with the example's own. Processor time of one thread, in
turn; the ratio is that of each round's pair. Writes results/public-batch.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import machine
from sfumato import ClippedGradient, models

PUBLIC = 128


def main(batch: int, rounds: int) -> None:
    torch.set_num_threads(1)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    steps = {kind: step(kind, images, labels) for kind in ("group", "public-batch", "public-batch-own")}
    for one in steps.values():
        one()
    seconds: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(rounds):
        for kind, one in steps.items():
            began = time.process_time()
            one()
            seconds[kind].append(time.process_time() - began)
    found = {
        "machine": machine("cpu"),
        "batch": batch,
        "public examples": PUBLIC,
        "seconds": seconds,
        "ratio to group norm": {
            kind: statistics.median(mine / group for mine, group in zip(own, seconds["group"], strict=True))
            for kind, own in seconds.items()
        },
    }
    (RESULTS / "public-batch.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["ratio to group norm"]))


def step(kind: str, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], object]:
    """All that is done for one step's gradient."""
    module = models.create("wrn-16-4", classes=10, channels=3, size=32)
    if kind != "group":
        models.replace_norms(module, kind, torch.randn(PUBLIC, 3, 32, 32))
    gradient = ClippedGradient(module, functional.cross_entropy)
    pieces = list(zip(images.split(32), labels.split(32), strict=True))

    def once() -> None:
        models.refresh(module)
        for piece in pieces:
            gradient(*piece)

    return once


if __name__ == "__main__":
    main(*(int(given) for given in (sys.argv[1:] + ["512", "5"][len(sys.argv) - 1 :])))
