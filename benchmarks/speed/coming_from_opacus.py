"""The codes of docs/coming-from-opacus.md, as they stand there: python benchmarks/speed/coming_from_opacus.py [RUNS]

Each section's block runs RUNS times (five), each time in a process of its own with fresh randomness, after the block
of the task. Time is that of the section's block, its imports included: on the clock, and of the
processor, which other work on the machine lengthens less. Needs Opacus (pip install 'sfumato[bench]').
Writes benchmarks/results/coming-from-opacus.json, and prints the page's table.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import apart, machine

PAGE = RESULTS.parents[1] / "docs" / "coming-from-opacus.md"
TASK, LOOP = "The task", "The same loop with sfumato"
WAYS = ("With Opacus", LOOP, "Or one call", "With the budget alone")


def block(section: str) -> str:
    """The Python block of a section of the page."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    (found,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return found


def changed(section: str) -> dict[str, int]:
    """How many lines of a section's block are new beside Opacus's, and how many of Opacus's are gone."""
    theirs, ours = ([line for line in block(one).splitlines() if line.strip()] for one in (WAYS[0], section))
    marks = [line[0] for line in difflib.ndiff(theirs, ours)]
    return {"new": marks.count("+"), "gone": marks.count("-")}


def once(section: str) -> dict[str, float]:
    """Epsilon, accuracy and times of one run, in an owner's directory and a working directory of its own."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["SFUMATO_HOME"] = f"{place}/home"
        os.chdir(place)
        names: dict[str, Any] = {}
        exec(compile(block(TASK), TASK, "exec"), names)
        began, worked = time.perf_counter(), time.process_time()
        exec(compile(block(section), section, "exec"), names)
        return {
            "epsilon": float(names["epsilon"]),
            "accuracy": names["accuracy"],
            "seconds": time.perf_counter() - began,
            "processor_seconds": time.process_time() - worked,
        }


def table(record: dict[str, Any]) -> str:
    """The table of the page."""
    lines = [
        "| | test accuracy | epsilon | time | processor time | lines of code |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for section, row in record["rows"].items():
        range_of = f"({row['lowest']:.1%} to {row['highest']:.1%})"
        times = f"{row['seconds']:.0f} s | {row['processor_seconds']:.1f} s"
        lines.append(
            f"| {section} | {row['accuracy']:.1%} {range_of} | {row['epsilon']:.3f} | {times} | {row['lines']} |"
        )
    made = record["machine"]
    versions = f"Opacus {made['opacus']} and torch {made['torch'].partition('+')[0]}"
    threads = f"{made['threads']} of {made['cores']} cores, at a load of {made['load']}"
    note = f"Medians of {record['runs']} runs with lowest and highest accuracy; {versions}, on {threads}."
    loop = "In the same loop {new} lines are new, and {gone} of Opacus's are gone.".format(**record["changed"])
    return "\n".join([*lines, "", f"{note} {loop}"])


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The record of these runs of each section."""
    rows = {
        section: {
            "accuracy": statistics.median(run["accuracy"] for run in runs),
            "lowest": min(run["accuracy"] for run in runs),
            "highest": max(run["accuracy"] for run in runs),
            "seconds": statistics.median(run["seconds"] for run in runs),
            "processor_seconds": statistics.median(run["processor_seconds"] for run in runs),
            "epsilon": max(run["epsilon"] for run in runs),
            "lines": sum(bool(line.strip()) for line in block(section).splitlines()),
        }
        for section, runs in found.items()
    }
    made = machine("cpu") | {"opacus": version("opacus"), "load": round(os.getloadavg()[2])}
    return {"machine": made, "runs": len(found[LOOP]), "rows": rows, "changed": changed(LOOP)}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found = {section: [] for section in WAYS}
    for _ in range(count):  # in turn, so that a busy machine is as busy for all of them
        for section in WAYS:
            found[section].append(apart(once, section))
            print(section, found[section][-1], flush=True)
    record = summary(found)
    (RESULTS / "coming-from-opacus.json").write_text(json.dumps(record, indent=2) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
