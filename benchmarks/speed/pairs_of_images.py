"""How many pairs of images are compared in a second: python benchmarks/speed/pairs_of_images.py [THREADS ...]

Recall at a false accept rate of 0.001, all pairs, of made-up embeddings (N, 128) of 100 classes, exactly (every pair is
computed twice); the curve from 0.00001 to 1; the same within minibatches of 32; and the five nearest images of each.
The middle of three timings, and the peak of what torch allocates beside the embeddings. The similarities of all pairs
at once would take N^2 / 2 numbers. Writes results/pairs-of-images-MACHINE.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from sfumato.evaluation import nearest, recall_at_far, roc

IMAGES, DIMENSION, CLASSES, ROUNDS = (2_000, 8_000), 128, 100, 3
MINIBATCH = 32


def main(threads: list[int]) -> None:
    found = measuring.machine("cpu")
    found["threads"] = found["cores"]
    path = RESULTS / f"pairs-of-images-{measuring.machine_name(found)}.json"
    del found["threads"]
    rows: list[dict[str, Any]] = []
    for images in IMAGES:
        for count in threads:
            torch.set_num_threads(count)
            for name, (pairs, compute) in ways(images).items():
                seconds = statistics.median(timed(compute) for _ in range(ROUNDS))
                rows.append(
                    {
                        "threads": count,
                        "images": images,
                        "way": name,
                        "pairs": pairs,
                        "seconds": seconds,
                        "pairs_per_second": pairs / seconds,
                        "peak_bytes": measuring.growth(compute, "cpu").later,
                    }
                )
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
                path.write_text(json.dumps({"machine": found, "rows": rows}, indent=1) + "\n")


def ways(images: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    """The pairs that each way compares, and the way."""
    embeddings, labels = synthetic(images)
    every = images * (images - 1) // 2
    few = images // MINIBATCH * (MINIBATCH * (MINIBATCH - 1) // 2)
    return {
        "recall at 0.001": (every, lambda: recall_at_far(embeddings, labels)),
        "curve": (every, lambda: roc(embeddings, labels)),
        f"within minibatches of {MINIBATCH}": (few, lambda: recall_at_far(embeddings, labels, minibatch=MINIBATCH)),
        "five nearest": (2 * every, lambda: nearest(embeddings, k=5)),
    }


def synthetic(images: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (images,), generator=generator)
    centres = torch.randn(CLASSES, DIMENSION, generator=generator)
    return centres[labels] + torch.randn(images, DIMENSION, generator=generator), labels


def timed(compute: Callable[[], Any]) -> float:
    began = time.perf_counter()
    compute()
    return time.perf_counter() - began


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [1])
