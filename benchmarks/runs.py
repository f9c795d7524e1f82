"""Runs of the command line that a benchmark is made of: begun, resumed or only read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def last_row(run: Path, *command: str) -> dict[str, Any]:
    """The last row of a run's metrics; the run is begun or resumed first where it is not finished.

    Args:
        run: the run directory.
        command: verb, source and options, without --output.
    """
    if not (run / "done").exists():
        line = [sys.executable, "-m", "sfumato", *command, "--output", str(run), "--threads", "1", "--device", "cpu"]
        subprocess.run(
            [*line, "--json"], check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def accuracy_on(run: Path, source: str, part: str) -> float:
    """The accuracy of a finished run on a part of a source, measured once."""
    kept = run / f"{part}.json"
    if not kept.exists():
        command = [sys.executable, "-m", "sfumato", "evaluate", str(run), source, "--part", part, "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        kept.write_text(done.stdout)
    return json.loads(kept.read_text())["accuracy"]
