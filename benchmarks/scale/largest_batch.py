"""The largest batch whose clipped sum fits a given memory: python benchmarks/scale/largest_batch.py [--gibibytes 2]

What must fit is the growth of the allocator's peak above model and batch (measuring.py), in the first step and in
a later one. Each batch is tried in a process of its own. As the peak is nearly a straight line in the number of
examples, the search goes where the line through the last batch that fits and the first that doesn't meets the limit,
until they are 1% apart; or until `--most` examples fit: a method that cuts its batch into pieces may have no limit,
since only the examples themselves and their norms grow with it. Writes benchmarks/results/largest-batch-MACHINE.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring, methods, problems
from benchmarks.shared.measuring import Growth
from benchmarks.shared.problems import Row
from benchmarks.speed import clipping

MODELS = {"cpu": ("wrn-16-4", "vit-tiny", "nf-resnet-26"), "cuda": ("wrn-40-4-views", "vit-base", "nf-resnet-50")}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    gibibytes: float = 2.0
    """what the step may take besides model and batch"""
    most: int = 1024
    """a batch that is large enough to stop looking"""
    models: tuple[str, ...] = ()
    """rows of clipping.py; where none is given, wrn-16-4, vit-tiny and nf-resnet-26, or their larger kin on cuda"""
    ways: tuple[str, ...] = ("plain", "sfumato", "opacus-hooks")
    """plain, and methods of clipping.py"""
    threads: int | None = None
    """torch's threads; as many as it chooses where none is given"""
    device: Literal["cpu", "cuda"] = "cpu"
    json: Path | None = None
    """where the figures go, in place of benchmarks/results/largest-batch-MACHINE.json"""


def main(options: Options) -> None:
    clipping.set_up(options.threads, options.device)
    names = clipping.known("models", options.models or MODELS[options.device], problems.rows(options.device))
    machine = measuring.machine(options.device)
    path = options.json or RESULTS / f"largest-batch-{measuring.machine_name(machine)}.json"
    print(f"{'model':<16}{'method':<18}{'largest batch':>14}{'of plain':>10}{'first MiB':>12}{'later MiB':>12}")
    found: dict[str, Any] = {"machine": machine, "gibibytes": options.gibibytes, "rows": {}}
    for name in names:
        found["rows"][name] = {}
        for method in options.ways:
            found["rows"][name][method] = answer = search(name, method, options)
            print(line(name, method, answer, found["rows"][name].get("plain")), flush=True)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def search(name: str, method: str, options: Options) -> dict[str, Any]:
    """The largest batch of one row and method, and its peak."""
    row, limit = problems.rows(options.device)[name], int(options.gibibytes * 2**30)
    peaks, growths = {0: 0}, {0: Growth(first=0, later=0)}
    size = row.batch
    try:
        while True:
            growths[size] = grown = measuring.apart(growth_of, replace(row, batch=size), method, options)
            peaks[size] = max(grown.first, grown.later)
            fits = max(batch for batch, peak in peaks.items() if peak <= limit)
            over = min((batch for batch, peak in peaks.items() if peak > limit), default=None)
            if over is None and fits < options.most:
                # At most double, so that a curve that isn't straight can't ask for far too much.
                size = min(2 * fits, max(fits + 1, fits * limit // peaks[fits]), options.most)
            elif over is None or over - fits <= max(1, fits // 100):
                return {
                    "batch": fits,
                    "more_fit": over is None,
                    "first_peak_bytes": growths[fits].first,
                    "later_peak_bytes": growths[fits].later,
                }
            else:
                slope = (peaks[over] - peaks[fits]) / (over - fits)
                size = min(over - 1, max(fits + 1, fits + int((limit - peaks[fits]) / slope)))
    except Exception as error:
        return {"reason": measuring.reason(error)}


def growth_of(row: Row, method: str, options: Options) -> Growth:
    """Peak memory of one method on one batch, in the process that this is called in."""
    clipping.set_up(options.threads, options.device)
    return measuring.growth(methods.make(method, problems.build(row, options.device)).step, options.device)


def line(name: str, method: str, answer: dict[str, Any], plain: dict[str, Any] | None) -> str:
    if "reason" in answer:
        return f"{name:<16}{method:<18}{answer['reason']}"
    share = f"{answer['batch'] / plain['batch']:.0%}" if plain and plain.get("batch") else "-"
    peaks = f"{answer['first_peak_bytes'] / 2**20:>12.0f}{answer['later_peak_bytes'] / 2**20:>12.0f}"
    batch = f"{answer['batch']}{' or more' if answer['more_fit'] else ''}"
    return f"{name:<16}{method:<18}{batch:>14}{share:>10}{peaks}"


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
