"""Median accuracy over runs of the main job: benchmarks/accuracy/main_job.py [--save] NAME RUNS SOURCE [OPTION ...]

Each run is `sfumato train SOURCE OPTION ... --json` in a process of its own with a fresh secret key. With --save a row
called NAME is added to benchmarks/results/accuracy.json; the median is printed without it too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS

RESULT = RESULTS / "accuracy.json"


def main() -> None:
    save = sys.argv[1] == "--save"
    name, runs, *command = sys.argv[2:] if save else sys.argv[1:]
    found = []
    for _ in range(int(runs)):
        with tempfile.TemporaryDirectory() as place:
            line = [sys.executable, "-m", "sfumato", "train", *command, "--output", f"{place}/run", "--json"]
            done = subprocess.run(line, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    accuracies = sorted(result["accuracy"] for result in found)
    shown = [word for word in command if "/" not in word]
    row = {
        "options": shown,
        "epsilon": found[0]["epsilon"],
        "delta": found[0]["delta"],
        "runs": len(found),
        "median": statistics.median(accuracies),
        "lowest": accuracies[0],
        "highest": accuracies[-1],
        "seconds": statistics.median(result["seconds"] for result in found),
    }
    if save:
        rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(dict(sorted((rows | {name: row}).items())), indent=2) + "\n")
    print(f"{name:<24} median {row['median']:.4f}  ({row['lowest']:.4f} to {row['highest']:.4f} of {row['runs']} runs)")


if __name__ == "__main__":
    main()
