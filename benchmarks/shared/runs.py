"""Runs of the command line that a benchmark is made of: begun, resumed or only read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STUDIES = Path(__file__).parents[2] / "studies"


def last_row(run: Path, *command: str) -> dict[str, Any]:
    """The last row of a run's metrics; the run is begun or resumed first where it is not finished.

    Args:
        run: the run directory.
        command: verb, source and options, without --output.
    """
    if not (run / "done").exists():
        sfumato(*command, "--output", str(run), "--device", "cpu")
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def public_network(run: Path, data: Path) -> dict[str, Any]:
    """The last row of a WRN-16-1 that is trained on CIFAR-100 without privacy: what its users begin with."""
    return last_row(
        run,
        *("pretrain", f"npz:{data / 'cifar100.npz'}", "--public", "--model", "wrn-16-1", "--seed", "0"),
        *("--steps", "3120", "--batch-size", "128", "--flip", "True", "--shift", "4"),
    )


def sfumato(*command: str) -> dict[str, Any]:
    """What one command answers as JSON, on one CPU thread."""
    return _answer("-m", "sfumato", *command)


def study(name: str, *options: str) -> dict[str, Any]:
    """Likewise a script of studies/."""
    return _answer(str(STUDIES / f"{name}.py"), *options)


def _answer(*command: str) -> dict[str, Any]:
    line = [sys.executable, *command, "--threads", "1", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def accuracy_on(run: Path, source: str, part: str) -> float:
    """The accuracy of a finished run on a part of a source, measured once."""
    kept = run / f"{part}.json"
    if not kept.exists():
        kept.write_text(json.dumps(sfumato("evaluate", str(run), source, "--part", part)))
    return json.loads(kept.read_text())["accuracy"]
