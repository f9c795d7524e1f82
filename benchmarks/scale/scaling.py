"""How the cost of a clipped sum grows with the work: python benchmarks/scale/scaling.py [--rounds 7] [--threads N]

One thing is changed at a time around a Wide-ResNet 16-2 on 16 images of 32 x 32 with one view: examples, views, side of
the images, width, depth. Each point is timed as in clipping.py, interleaved with plain gradient steps of the same model
and batch. Writes benchmarks/results/scaling-MACHINE.json and draws studies/results/engine-scaling.svg; `--draw FILE`
only draws the figures of an earlier run.
"""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring, methods, problems
from benchmarks.shared.problems import Row
from benchmarks.speed import clipping

PICTURE = RESULTS.parents[1] / "studies" / "results" / "engine-scaling.svg"
BASE = {"examples": 16, "views": 1, "side": 32, "width": 2, "depth": 16}
POINTS = {
    "examples": (4, 8, 16, 32, 64),
    "views": (1, 2, 4, 8, 16),
    "side": (16, 24, 32, 48, 64),
    "width": (1, 2, 3, 4, 6),
    "depth": (10, 16, 22, 28, 40),
}
TITLES = {
    "examples": "examples B",
    "views": "views K",
    "side": "image side in pixels",
    "width": "width factor",
    "depth": "depth",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    along: tuple[str, ...] = ()
    """of examples, views, side, width, depth; where none is given, all"""
    way: str = "sfumato"
    """a method of clipping.py"""
    rounds: int = 7
    """how often every point is timed"""
    threads: int | None = None
    """torch's threads; as many as it chooses where none is given"""
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "bf16"] = "fp32"
    json: Path | None = None
    """where the figures go, in place of benchmarks/results/scaling-MACHINE.json"""
    picture: Path = PICTURE
    """where the plot goes"""
    draw: Path | None = None
    """draw the figures of this file, and measure nothing"""


def main(options: Options) -> None:
    if options.draw is not None:
        draw(json.loads(options.draw.read_text("utf-8")), options.picture)
        return
    clipping.set_up(options.threads, options.device)
    machine = measuring.machine(options.device)
    path = options.json or RESULTS / f"scaling-{measuring.machine_name(machine)}.json"
    chosen = clipping.known("axes", options.along, POINTS)
    found: dict[str, Any] = {"machine": machine, "way": options.way, "precision": options.precision, "base": BASE}
    found["axes"] = stored(path, found)
    for axis in chosen:
        found["axes"][axis] = [point(axis, value, options) for value in POINTS[axis]]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    if found["axes"].keys() == POINTS.keys():
        draw(found, options.picture)


def stored(path: Path, same: dict[str, Any]) -> dict[str, Any]:
    """The axes of an earlier run that was like this one in everything else."""
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return before["axes"] if before and all(before[key] == value for key, value in same.items()) else {}


def row(settings: dict[str, int], precision: str) -> Row:
    return Row(
        model=f"wrn-{settings['depth']}-{settings['width']}",
        batch=settings["examples"],
        views=settings["views"],
        size=settings["side"],
        precision=precision,
    )


def point(axis: str, value: int, options: Options) -> dict[str, float]:
    """The cost with one setting changed."""
    problem = problems.build(row({**BASE, axis: value}, options.precision), options.device)
    plain, method = methods.make("plain", problem), methods.make(options.way, problem)
    for _ in range(clipping.WARM_UP):
        method.step()
    pair = {axis: (method.plain or plain.step, method.step)}
    summary = measuring.interleaved(pair, rounds=options.rounds, device=options.device)[axis].summary()
    print(
        f"{axis:<10}{value:>4}{summary['plain_milliseconds']:>10.1f} ms plain{summary['milliseconds']:>10.1f} ms"
        f"{summary['ratio']:>8.2f}  ({summary['lowest_ratio']:.2f} to {summary['highest_ratio']:.2f})",
        flush=True,
    )
    return {"value": value, **summary}


def draw(found: dict[str, Any], path: Path) -> None:
    """Five panels side by side: the ratio against one setting each, the plain step's milliseconds under each value."""
    import matplotlib
    from matplotlib.figure import Figure

    ink, muted, rule, line = "#1d2329", "#5c6670", "#d9dee3", "#1f6f8b"
    axes = {name: found["axes"][name] for name in POINTS}
    top = max(point["highest_ratio"] for points in axes.values() for point in points)
    with matplotlib.rc_context():
        # A matplotlibrc of one's own must not change the image.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 8.5, "svg.fonttype": "none", "svg.hashsalt": "engine-scaling"})
        matplotlib.rcParams["font.family"] = "DejaVu Sans"
        figure = Figure(figsize=(10, 2.6), facecolor="white", layout="constrained")
        panels = figure.subplots(1, len(axes), sharey=True)
        for panel, (name, points) in zip(panels, axes.items(), strict=True):
            places, ratios = range(len(points)), [point["ratio"] for point in points]
            below = [point["ratio"] - point["lowest_ratio"] for point in points]
            above = [point["highest_ratio"] - point["ratio"] for point in points]
            panel.axhline(1.0, color=muted, linewidth=1, linestyle=(0, (4, 3)))
            panel.errorbar(places, ratios, [below, above], color=line, ecolor=muted, marker="o", capsize=2, lw=1.6)
            times = [point["plain_milliseconds"] for point in points]
            times = [f"{milliseconds:.{0 if milliseconds >= 10 else 1}f}" for milliseconds in times]
            labels = [f"{point['value']}\n({time})" for point, time in zip(points, times, strict=True)]
            panel.set_xticks(places, labels, fontsize=7.5, color=ink)
            panel.set_xlim(-0.5, len(points) - 0.5)
            panel.set_title(TITLES[name], fontsize=10, color=ink)
            panel.grid(axis="y", color=rule, linewidth=0.8)
            panel.tick_params(length=0, labelcolor=ink)
            panel.set_axisbelow(True)
            for side, spine in panel.spines.items():
                spine.set_visible(side == "bottom")
                spine.set_color(rule)
        panels[0].set_ylim(0, 1.1 * max(top, 1.0))
        panels[0].set_ylabel("clipped sum / plain step", color=ink)
        figure.supxlabel("in brackets: the plain step's milliseconds", fontsize=8, color=muted)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = re.sub(r"<metadata>.*?</metadata>|<!DOCTYPE.*?>\s*", "", written.getvalue(), flags=re.DOTALL)
    path.write_text("\n".join(each.rstrip() for each in text.splitlines()) + "\n", "utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
