"""Whole runs of many kinds, alone or as one of several workers. A script for test_together.py.

    python runs_of_ranks.py PLACE "KIND, KIND" SOURCE [SOURCE OF THE SECOND]

Each run has a directory in PLACE.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch

from sfumato import EMA, PrivacyPlan, SfumatoError, train
from sfumato.privacy.planning.requested import requested
from sfumato.training import together

KNOWN = {"examples": 200, "steps": 4, "delta": 1e-3, "noise_multiplier": 2.0}
KINDS: dict[str, dict[str, Any]] = {
    "views": {"model": "cnn", "views": 2, "shift": 1, "micro_batch": 7},
    "blt": {"model": "linear", "optimizer": "adam", "learning_rate": 0.01, "pair": {"mechanism": "blt"}},
    "tree": {"model": "linear", "pair": {"mechanism": "tree"}},
    "banded": {"model": "linear", "pair": {"mechanism": "banded", "bands": 4}},
    "truncated": {"model": "linear", "pair": {"participation": "truncated"}, "micro_batch": 9},
    "lamb": {"model": "linear", "optimizer": "lamb", "learning_rate": 0.01, "batch_size": 200},
    "features": {"model": "scattering", "micro_batch": 32, "averaging": EMA(0.5)},
    "trained over": {"model": "linear", "aggregate": "ema", "aggregate_from": 1, "micro_batch": 3},
    "half precision": {"model": "cnn", "precision": "bfloat16"},
}


def run(place: Path, source: str, name: str) -> None:
    """One run, in the directory of its name."""
    own = dict(KINDS[name])
    pair = requested(examples=200, momentum=0.9, **own.pop("pair", {}))
    plan = PrivacyPlan.calibrate(batch_size=own.pop("batch_size", 40), **KNOWN, **pair._asdict())
    settings: dict[str, Any] = {"learning_rate": 1.0, "seed": 5, "threads": 1, "micro_batch": 16, **own}
    train(settings.pop("model"), source, plan, directory=place / name, **settings)


def main(place: Path, kinds: list[str], sources: list[str]) -> None:
    """The runs of these kinds; the second worker may be told of a source of its own."""
    with together.joined() if together.started() else contextlib.nullcontext(together.own()) as workers:
        for name in kinds:
            run(place, sources[min(workers.rank, len(sources) - 1)], name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main(Path(sys.argv[1]), sys.argv[2].split(", "), sys.argv[3:])
    except SfumatoError as error:
        print(f"{error.problem}; {error.remedy}", file=sys.stderr)
        sys.exit(1)
