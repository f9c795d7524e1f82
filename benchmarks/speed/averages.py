"""What averages and kept weights take of a step: python benchmarks/speed/averages.py [BATCH]

A clipped gradient of a WRN-16-4 on BATCH random images (512), one step's worth of each average beside it (its update,
and for training over it the weights put aside, its mean put in their place and back again), and one set of weights
written to disk. Processor seconds of one thread, the least of several; memory as the allocator's peak, against
the copies that `--dry-run` counts. A run keeps 6 sets of this model by rule, not one each step.
Writes results/keeping.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import growth, machine
from sfumato import ClippedGradient, models
from sfumato.averaging import EMA, LastMean, TrainingOverAggregates
from sfumato.averaging.average import kept_count_by_rule
from sfumato.runs.checkpoint import save_kept
from sfumato.runs.directory import RunDirectory


def main(batch: int) -> None:
    torch.set_num_threads(1)
    module = models.create("wrn-16-4", classes=10, channels=3, size=32)
    weights = dict(module.named_parameters())
    size = sum(value.numel() * value.element_size() for value in weights.values())
    gradient = ClippedGradient(module, max_norm=1.0, loss=functional.cross_entropy)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    step = least(lambda: gradient(images, labels), 2)
    rows: list[dict[str, Any]] = []
    averages = {"ema": EMA(0.9999), "over ema": EMA(0.9, form="constant"), "over uta, k = 5": LastMean(5)}
    for name, average in averages.items():
        over = TrainingOverAggregates(average=average) if name.startswith("over") else None
        state = average.begin(weights)
        for earlier in range(8):
            state = average.update(state, weights, earlier)

        def once(average: Any = average, over: Any = over, state: Any = state) -> Any:
            if over is not None:
                with over.held(weights, state, 8):
                    pass
            return average.update(state, weights, 8)

        used = sum(value.numel() * value.element_size() for value in state.values())
        peak = used + growth(once, "cpu").first
        copies = average.copies if over is None else over.copies
        rows.append({"what": name, "share": least(once, 5) / step, "copies": peak / size, "copies stated": copies})
    with tempfile.TemporaryDirectory() as place:
        run = RunDirectory(place)
        values = {name: value.detach() for name, value in weights.items()}
        written = least(lambda: save_kept(run, 1, values), 5)
    rows.append({"what": "one set written", "share": written / step, "sets in a run": kept_count_by_rule(size)})
    for row in rows:
        print(json.dumps(row))
    found = {"machine": machine("cpu"), "batch": batch, "seconds of a gradient": step, "rows": rows}
    (RESULTS / "keeping.json").write_text(json.dumps(found, indent=1) + "\n")


def least(step: Callable[[], Any], rounds: int) -> float:
    """Processor seconds of the quickest of several."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        step()
        found.append(time.process_time() - began)
    return min(found)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
