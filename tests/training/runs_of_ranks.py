"""Whole runs of many kinds, alone or as one of several workers. A script for test_together.py.

    python runs_of_ranks.py PLACE "KIND, KIND" SOURCE [SOURCE OF THE SECOND]

Each run has a directory in PLACE. Where the environment has FULL_AT, the disk is full at the step of that number.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from sfumato import EMA, PrivacyPlan, SfumatoError, features, open_source, owner_key, pretrain, train
from sfumato._devices import is_distributed
from sfumato.gradients import tuner
from sfumato.privacy.planning.by_name import request_by_names
from sfumato.runs.checkpoint import Checkpoint
from sfumato.training import launch, loop

KNOWN = {"examples": 200, "steps": 4, "delta": 1e-3, "noise_multiplier": 2.0}
KINDS: dict[str, dict[str, Any]] = {
    "views": {"model": "cnn", "views": 2, "shift": 1, "micro_batch": 7},
    "banded": {
        "model": "linear",
        "optimizer": "adam",
        "learning_rate": 0.01,
        "pair": {"mechanism": "banded", "bands": 4},
        "stops": (1, 1),
    },
    "tree": {"model": "linear", "pair": {"mechanism": "tree"}},
    "truncated": {"model": "linear", "pair": {"participation": "truncated"}, "micro_batch": 9},
    "lamb": {"model": "linear", "optimizer": "lamb", "learning_rate": 0.01, "batch_size": 200},
    "features": {"model": "scattering", "micro_batch": 32, "averaging": EMA(0.5)},
    "trained over": {"model": "linear", "aggregate": "ema", "aggregate_from": 1, "micro_batch": 3},
    "half precision": {"model": "cnn", "precision": "bfloat16"},
}
# Runs that are compared choose nothing by the clock: a run pins its methods, and another run may measure otherwise.
tuner._fastest = lambda kernel, x, g: f"keep {kernel.methods()[0]}"
PUBLIC = {"steps": 4, "batch_size": 40, "micro_batch": 9, "max_norm": 0.5, "public": True}


def run(place: Path, source: str, name: str) -> None:
    """One run, in the directory of its name."""
    if name.startswith("public"):
        torch.manual_seed(0)
        own = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 4))
        known = {"learning_rate": 0.1, "seed": 5, "threads": 1, **PUBLIC}
        pretrain("cnn" if name == "public" else own, source, directory=place / name, **known)
        return
    if name == "cache":
        images = open_source(source, owner_key=owner_key(), public=True)
        features(images, str(place / "public"), directory=place / name, batch=16, crop="inception", views=3)
        return
    own = dict(KINDS[name])
    pair = request_by_names(examples=200, momentum=0.9, **own.pop("pair", {}))
    plan = PrivacyPlan.calibrate(batch_size=own.pop("batch_size", 40), **KNOWN, **pair._asdict())
    settings: dict[str, Any] = {"learning_rate": 1.0, "seed": 5, "threads": 1, "micro_batch": 16, **own}
    model, stops = settings.pop("model"), settings.pop("stops", ())
    for stop in stops:
        with mock.patch.object(loop, "descend", stopping(stop)), contextlib.suppress(StoppedError):
            train(model, source, plan, directory=place / name, **settings)
    train(model, source, plan, directory=place / name, **settings)


class StoppedError(BaseException):
    """Ends a run in the middle, as a kill of all processes would."""


def stopping(steps: int) -> Callable[..., None]:
    """Takes so many steps, and then stops."""
    taken, descend = [], loop.descend

    def call(*given: Any) -> None:
        if len(taken) == steps:
            raise StoppedError
        taken.append(descend(*given))

    return call


def drifting(optimizer: torch.optim.Optimizer, parameters: dict[str, torch.Tensor], gradient: dict) -> None:
    """One worker's processor rounds otherwise."""
    descend(optimizer, parameters, gradient)
    if launch.current_workers().rank == 1:
        with torch.no_grad():
            next(iter(parameters.values())).add_(1e-6)


def full_at(step: int) -> Callable[[int, bytes], int]:
    """The disk is full where the ledger's line for this step is to be written."""
    write = os.write

    def call(descriptor: int, content: bytes) -> int:
        if b'"kind":"release"' in content and f'"step":{step}'.encode() in content:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content)

    return call


descend, save = loop.descend, Checkpoint.save


def by_the_leader(checkpoint: Checkpoint, path: Path) -> None:
    """Only one of them writes."""
    assert launch.current_workers().is_leader
    save(checkpoint, path)


def main(place: Path, kinds: list[str], sources: list[str]) -> None:
    """The runs of these kinds; the second worker may be told of a source of its own."""
    with launch.join_workers() if is_distributed() else contextlib.nullcontext(launch.current_workers()) as workers:
        for name in kinds:
            run(place, sources[min(workers.rank, len(sources) - 1)], name)
        if workers.count > 1 and len(sources) == 1:
            with mock.patch.object(loop, "descend", drifting):
                try:
                    run(place, sources[0], "trained over")
                except SfumatoError as error:
                    print(error.problem)


if __name__ == "__main__":
    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = -1.0
    Checkpoint.save = by_the_leader  # type: ignore[method-assign]
    if "FULL_AT" in os.environ:
        os.write = full_at(int(os.environ["FULL_AT"]))
    try:
        main(Path(sys.argv[1]), sys.argv[2].split(", "), sys.argv[3:])
    except SfumatoError as error:
        print(f"{error.problem}; {error.remedy}", file=sys.stderr)
        sys.exit(1)
