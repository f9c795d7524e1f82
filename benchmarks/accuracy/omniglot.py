"""Embeddings of people's handwriting: python benchmarks/accuracy/omniglot.py DATA PLACE [--only fedemb ...] [--seeds 5]

Omniglot's own halves, 600 users (an alphabet's drawer each) to train on and 400 of other alphabets to test on, at 14
pixels, LeNet with embeddings of 128 numbers; recall at a false accept rate of 1e-3 among all pairs of test images after
200 rounds of 256 users. The noise is that of a training among 1,000,000 users at epsilon 2 and delta 1e-7, one user
counted for two, simulated at the signal to noise of 20,000 users a round (noise multiplier 2.231 -> 0.0286) and of
2,000 (1.359 -> 0.174): see `python studies/more_users.py`. What each run promises 600 users is nothing to
speak of, and not the point. Rates were tried on the first seed, by the same recall; those of heads that begin at
prototypes in 30 rounds. DATA holds omniglot.npz. Goes on where it stopped; writes results/omniglot.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import embed, models, open_source
from sfumato.data import Source
from sfumato.observers.progress import NoProgress

ROUNDS, USERS, CLIENTS = 200, 256, 32
NEAR, FAR = 0.0286, 0.174
MEAN, DEVIATION = 0.078, 0.193
"""Of the training images' intensities in 0..1: ink is rare."""
SHARED = {"steps": ROUNDS, "batch_size": USERS, "clients": CLIENTS, "grouping": "group", "noise_multiplier": NEAR}
SHARED |= {"max_norm": 0.2, "learning_rate": 0.6, "momentum": 0.9, "schedule": "cosine"}
SHARED |= {"client_examples": 512}
PROTOTYPES = {"client_rate": 0.02}
RANDOM = {"client_head": "random", "client_rate": 0.05, "head_scale": 200.0}
TRIPLET = {"client_loss": "triplet", "client_rate": 0.1, "client_examples": 256, "client_batch_size": 64}
NO_CLIENTS = dict.fromkeys(("clients", "grouping", "client_examples"))
NO_NOISE = dict.fromkeys(("noise_multiplier", "max_norm"))
METHODS: dict[str, dict[str, Any]] = {
    "central": {"method": "central", "batch_size": 64, "steps": 3000, "learning_rate": 0.05, **NO_CLIENTS, **NO_NOISE},
    "fedemb": PROTOTYPES,
    "fedemb, random heads": RANDOM,
    "fedemb, triplets": TRIPLET,
    "fedavg": {"method": "fedavg", "client_rate": 0.05},
    "fedemb, anybody together": {**PROTOTYPES, "grouping": "random"},
    "fedemb, triplets, 2,000 a round": {**TRIPLET, "noise_multiplier": FAR},
    "dpsgd": {"method": "dpsgd", "learning_rate": 1.0, "ema": 0.0, **NO_CLIENTS},
}
RESULT = RESULTS / "omniglot.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--only", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="fewer, to try it: nothing is written then")
    parser.add_argument("--with", dest="others", nargs="*", default=[], help="NAME=VALUE, to try it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trying = options.rounds != ROUNDS or bool(options.others)
    source = people(options.data, options.place)
    for seed in range(options.first_seed, options.seeds):
        for method in options.only:
            if str(seed) in measured().get(method, {}) and not trying:
                continue
            asked = {**SHARED, **METHODS[method], "seed": seed}
            if trying:
                asked["steps"] = asked["steps"] * options.rounds // ROUNDS
                asked |= {name: json.loads(value) for name, value in (pair.split("=") for pair in options.others)}
            began = time.perf_counter()
            with tempfile.TemporaryDirectory(dir=options.place) as folder:
                place, machine = Path(folder) / "run", {"device": "cpu", "threads": 1}
                model = LeNetOnInk(seed)
                run = embed(source, directory=place, model=model, progress=NoProgress(), **machine, **asked)
            recall = run.figures["recall"]
            print(f"{method:<32} seed {seed}  recall {recall:.2%}  {time.perf_counter() - began:.0f} s", flush=True)
            if not trying:
                found = measured()
                found.setdefault(method, {})[str(seed)] = recall
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
    for method, row in measured().items():
        spread = statistics.stdev(row.values()) if len(row) > 1 else 0.0
        print(f"{method:<32} {statistics.mean(row.values()):.2%} ({100 * spread:.2f}) over {len(row)} seeds")


def measured() -> dict[str, dict[str, float]]:
    """Recalls by method and seed, as far as they are known."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


class LeNetOnInk(nn.Module):
    """LeNet on inputs of mean 0 and deviation 1: from [-1, 1], as images come."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        lenet = models.create_embedding("lenet", channels=1, size=(14, 14), dimension=128)
        self.lenet = lenet.to(memory_format=torch.channels_last)  # a fifth less time on a CPU

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, 1, 14, 14) to (N, 128)."""
        inputs = ((images + 1) / 2 - MEAN) / DEVIATION
        return self.lenet(inputs.contiguous(memory_format=torch.channels_last))


def people(data: Path, place: Path) -> Source:
    """Omniglot with its users and their alphabets, declared public."""
    arrays = np.load(data / "omniglot.npz")
    written = place / "omniglot-users.npz"
    if not written.exists():
        parts = {}
        for part in ("train", "test"):
            users = arrays[f"user_{part}"]
            parts |= {f"x_{part}": arrays[f"x_{part}"], f"y_{part}": arrays[f"y_{part}"]}
            parts |= {f"users_{part}": users, f"groups_{part}": np.char.add("alphabet ", (users // 20).astype(str))}
        place.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(written, **parts)
    return open_source(f"npz:{written}", owner_key=bytes(32), size=14, public=True, open_set=True)


if __name__ == "__main__":
    main()
