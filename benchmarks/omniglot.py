"""Embeddings of people's handwriting: python benchmarks/omniglot.py DATA PLACE [--only fedemb ...] [--seeds 5]

Omniglot's own halves, 600 users (an alphabet's drawer each) to train on and 400 of other alphabets to test on, at 14
pixels, LeNet with embeddings of 128 numbers; recall at a false accept rate of 1e-3 among all pairs of test images after
200 rounds of 256 users. The noise is that of a training among 1,000,000 users at epsilon 2 and delta 1e-7, one user
counted for two, simulated at the signal to noise of 20,000 users a round (noise multiplier 2.231 -> 0.0286) and of
2,000 (1.359 -> 0.174): see `sfumato plan --unit user --extrapolate`. What each run promises 600 users is nothing to
speak of, and not the point. DATA holds omniglot.npz. Goes on where it stopped; writes results/omniglot.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import measuring
from sfumato import open_source
from sfumato.data import Source
from sfumato.embedding import EmbeddingExperiment
from sfumato.embedding.run import begin
from sfumato.runs.directory import RunDirectory
from sfumato.training.progress import Silence

ROUNDS, USERS, CLIENTS = 200, 256, 32
NEAR, FAR = 0.0286, 0.174
SHARED = {"steps": ROUNDS, "batch_size": USERS, "clients": CLIENTS, "model": "lenet", "client_examples": 96}
SHARED |= {"client_rate": 0.02, "head_scale": 50.0, "client_momentum": 0.9, "learning_rate": 0.3, "momentum": 0.9}
METHODS: dict[str, dict[str, Any]] = {
    "fedemb": {"noise_multiplier": NEAR},
    "fedemb by alphabet": {"noise_multiplier": NEAR, "grouping": "group"},
    "fedavg": {"noise_multiplier": NEAR, "method": "fedavg", "client_rate": 0.05},
    "fedemb, 2,000 a round": {"noise_multiplier": FAR},
    "dpsgd": {"noise_multiplier": NEAR, "method": "dpsgd", "clients": None, "learning_rate": 1.0, "ema": 0.0},
    "central": {"method": "central", "batch_size": 64, "steps": 3000, "learning_rate": 0.02, "clients": None},
}
RESULT = measuring.RESULTS / "omniglot.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--only", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="fewer, to try it: nothing is written then")
    parser.add_argument("--with", dest="others", nargs="*", default=[], help="NAME=VALUE, to try it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trying = options.rounds != ROUNDS or bool(options.others)
    source = people(options.data, options.place)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for seed in range(options.seeds):
        for method in options.only:
            row = found.setdefault(method, {})
            if str(seed) in row and not trying:
                continue
            asked = {**SHARED, **METHODS[method], "seed": seed}
            if trying:
                asked["steps"] = asked["steps"] * options.rounds // ROUNDS
                asked |= {name: json.loads(value) for name, value in (pair.split("=") for pair in options.others)}
            began = time.perf_counter()
            with tempfile.TemporaryDirectory(dir=options.place) as folder:
                place = RunDirectory(Path(folder) / "run")
                run = begin(EmbeddingExperiment(**asked), source, place, device="cpu", threads=1, progress=Silence())
            row[str(seed)] = run.figures["recall"]
            print(
                f"{method:<24} seed {seed}  recall {row[str(seed)]:.2%}  {time.perf_counter() - began:.0f} s",
                flush=True,
            )
            if not trying:
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
    if not trying:
        for method, row in found.items():
            spread = statistics.stdev(row.values()) if len(row) > 1 else 0.0
            print(f"{method:<24} {statistics.mean(row.values()):.2%} ({100 * spread:.2f}) over {len(row)} seeds")


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
