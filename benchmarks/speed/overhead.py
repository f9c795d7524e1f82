"""How much of a training step is neither forward, backward nor noise: python benchmarks/speed/overhead.py SOURCE

Trains on SOURCE (an npz of MNIST for the committed figures) and adds up the time inside the clipped gradient and the
noise, against the time of all steps, evaluations and checkpoints included. Writes benchmarks/results/overhead.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import ClippedGradient, Noise, PrivacyPlan, open_source
from sfumato.experiment.settings import Settings
from sfumato.gradients import GridSum
from sfumato.privacy import Ledger
from sfumato.runs.directory import LEDGER, RunDirectory
from sfumato.training.inputs import Inputs
from sfumato.training.preparation import resume
from sfumato.training.preparation.prepare import prepare
from sfumato.training.run import take_remaining_steps
from sfumato.training.scorers import Scorer

RESULT = RESULTS / "overhead.json"


def timed(owner: type, name: str, spent: dict[str, float]) -> None:
    """Make a method add its time to `spent`."""
    inner, key = getattr(owner, name), f"{owner.__name__}.{name}"

    def outer(*arguments, **options):
        began = time.perf_counter()
        try:
            return inner(*arguments, **options)
        finally:
            spent[key] = spent.get(key, 0.0) + time.perf_counter() - began

    setattr(owner, name, outer)


def measure(source, model: str, steps: int, batch_size: int) -> dict[str, object]:
    """Shares of the steps' time."""
    plan = PrivacyPlan.calibrate(
        examples=source.examples, batch_size=batch_size, steps=steps, noise_multiplier=3.0, delta=1e-5
    )
    settings = Settings(model=model, optimizer="momentum", learning_rate=0.5, seed=0)
    job = prepare(None, source, plan, settings)
    spent: dict[str, float] = {}
    for owner, name in (
        (ClippedGradient, "__call__"),
        (GridSum, "__init__"),
        (GridSum, "add"),
        (GridSum, "value"),
        (Noise, "add"),
        (Inputs, "__init__"),
        (Scorer, "__init__"),
        (Scorer, "outputs"),
    ):
        timed(owner, name, spent)
    run = RunDirectory(Path(tempfile.mkdtemp()) / "run")
    resume.begin(job, run)
    began = time.perf_counter()
    with Ledger(run / LEDGER) as ledger:
        take_remaining_steps(job, run, ledger)
    evaluating = spent["Scorer.outputs"]
    whole = time.perf_counter() - began - spent["Inputs.__init__"] - spent["Scorer.__init__"] - evaluating
    gradient, noise = spent["ClippedGradient.__call__"], spent["Noise.add"]
    return {
        "model": model,
        "steps": steps,
        "batch_size": batch_size,
        "milliseconds_per_step": 1000 * whole / steps,
        "gradient": gradient / whole,
        "noise": noise / whole,
        "grid": sum(seconds for name, seconds in spent.items() if name.startswith("GridSum")) / whole,
        "overhead": 1 - (gradient + noise) / whole,
        "evaluation_seconds_in_all": evaluating,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    source = open_source(parser.parse_args().source, owner_key=bytes(32))
    cases = [("lenet5", 40, 2048), ("cnn", 20, 1024), ("scattering", 200, 4096)]
    rows = [measure(source, *case) for case in cases]
    for row in rows:
        print(
            f"{row['model']:<12}{row['milliseconds_per_step']:>10.1f} ms a step   gradient {row['gradient']:.1%}   "
            f"noise {row['noise']:.1%}   everything else {row['overhead']:.1%}, "
            f"of it sums on the grid {row['grid']:.2%}"
        )
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "processor": platform.machine()}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
