"""The frontiers of a budget as a plot: steps against noise, and signal against computation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.privacy.planning.tradeoff import FLAT, Frontier, Point
from sfumato.report.plots.drawing import calm, logarithmic, svg
from sfumato.report.style import INK, MUTED, SERIES, figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
_MARKERS = {"steps": "o", "noise": "D", "epochs": "s"}
_NAMES = {
    "steps": "steps: rule of De et al. 2022, found on CIFAR-10",
    "noise": "noise: rule of the same",
    "epochs": "most steps in the epochs allowed",
}
_SMALL: dict[str, Any] = {"color": MUTED, "fontsize": 8.5}
_RING: dict[str, Any] = {
    "marker": "o",
    "linestyle": "none",
    "markersize": 12,
    "markerfacecolor": "none",
    "color": INK,
    "markeredgewidth": 1.2,
}
# What decides the bytes of a file: no date, no version.
_METADATA = {
    ".png": {"Software": None},
    ".pdf": dict.fromkeys(("Creator", "Producer", "CreationDate")),
}


def check(path: str) -> None:
    """Refuse a file that could not be drawn, before anything is computed for it."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise SfumatoError(
            f"plot must end with one of {', '.join(SUFFIXES)}, got {path!r}", "name a file such as a.svg"
        )
    if not Path(path).absolute().parent.is_dir():
        raise SfumatoError(f"plot must lie in a folder that exists, got {path!r}", "make the folder first")


def draw(frontiers: Sequence[Frontier], path: str, *, best: Point, epochs: float | None = None) -> None:
    """Draw the frontiers of one budget into a file: the same numbers, the same bytes.

    On the left the most steps that each noise multiplier allows. On the right the signal-to-noise of the run, as a
    share of the full-batch limit, against expected epochs: where it is flat, more computation buys little of it. Rules
    of thumb are marked, and the point to take has a ring.

    Args:
        frontiers: one for each batch size.
        path: ends with .svg, .png or .pdf.
        best: the point to take.
        epochs: the computation that is allowed, drawn as a line.
    """
    check(path)
    from matplotlib.figure import Figure

    suffix = Path(path).suffix.lower()
    with figures("tradeoff"):
        figure = Figure(figsize=(10.4, 4.8))
        _fill(figure, frontiers, best, epochs)
        if suffix == ".svg":
            Path(path).write_text(svg(figure, bbox_inches="tight"), "utf-8")
        else:
            figure.savefig(path, format=suffix[1:], dpi=150, bbox_inches="tight", metadata=_METADATA[suffix])


def _fill(figure: Figure, frontiers: Sequence[Frontier], best: Point, epochs: float | None) -> None:
    plan = best.plan
    figure.text(
        0.06,
        0.93,
        f"Within epsilon {frontiers[0].epsilon:g} at delta {plan.delta:g}, N = {plan.population:,}",
        fontsize=11.5,
    )
    left = figure.add_axes((0.06, 0.29, 0.42, 0.50))
    right = figure.add_axes((0.56, 0.29, 0.42, 0.50))
    left.set_yscale("log")
    for axes in (left, right):
        axes.set_xscale("log")
    for found, colour in zip(frontiers, SERIES * len(frontiers), strict=False):
        noise = [point.plan.noise_multiplier for point in found.points]
        steps = [point.plan.steps for point in found.points]
        taken = [point.plan.expected_epochs for point in found.points]
        shares = [found.share(point) for point in found.points]
        for axes, x, y in ((left, noise, steps), (right, taken, shares)):
            axes.plot(x, y, color=colour, linewidth=1.8, solid_capstyle="round")
            for index, point in enumerate(found.points):
                if point.rule is not None:
                    axes.plot(x[index], y[index], _MARKERS[point.rule], color=colour, markersize=6)
                if point is best:
                    axes.plot(x[index], y[index], **_RING)
    right.axhline(FLAT, color=MUTED, linewidth=0.8, linestyle=(0, (1, 3)))
    right.text(1, FLAT - 0.07, f"flat: {FLAT:.0%} ", ha="right", transform=right.get_yaxis_transform(), **_SMALL)
    right.set_ylim(0, 1.06)
    if epochs is not None:
        right.axvline(epochs, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        right.text(epochs, 0.02, f" {epochs:g} allowed", **_SMALL)
    _scaled(left, x="noise multiplier", title="most steps")
    _scaled(right, x="expected epochs", title="signal-to-noise of the run, as a share of the full-batch limit")
    _legend(figure, frontiers)


def _legend(figure: Figure, frontiers: Sequence[Frontier]) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=colour, linewidth=1.8, label=f"batch size {found.best.plan.expected_batch_size:,}")
        for found, colour in zip(frontiers, SERIES * len(frontiers), strict=False)
    ]
    rules = {point.rule for found in frontiers for point in found.points}
    marks = [
        Line2D([], [], marker=marker, linestyle="none", color=MUTED, markersize=6, label=_NAMES[rule])
        for rule, marker in _MARKERS.items()
        if rule in rules
    ]
    marks.append(Line2D([], [], label="take this", **_RING))
    for handles, height in ((marks, 0.15), (lines, 0.09)):
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.05, height),
            ncols=min(len(handles), 6),
            frameon=False,
            fontsize=8.5,
            labelcolor=INK,
        )


def _scaled(axes: Axes, *, x: str, title: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_xlabel(x)
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=10)
    logarithmic(axes.xaxis)
    if axes.get_yscale() == "log":
        logarithmic(axes.yaxis)
    else:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    calm(axes, "both")
