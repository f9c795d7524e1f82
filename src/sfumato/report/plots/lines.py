"""Line plots: lines on two axes, reference levels and marked points; and the bound on any attack as such a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sfumato._checks import SfumatoError
from sfumato.privacy.statements.curve import gaussian_true_positive_rates
from sfumato.privacy.statements.display import percent_up
from sfumato.report.plots.drawing import annotate, inline, style_axes
from sfumato.report.sections.numbers import percent, significant
from sfumato.report.style import INK, MUTED, RULE, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as DrawnAxis
    from matplotlib.figure import Figure

Corner = Literal["above", "below", "above left", "below right"]
_LINE: dict[str, Any] = {"linewidth": 1.8, "solid_capstyle": "round", "solid_joinstyle": "round"}
_DASHED: dict[str, Any] = {"linewidth": 0.8, "linestyle": (0, (4, 3)), "color": MUTED}
_BESIDE: dict[Corner, tuple[tuple[float, float], dict[str, str]]] = {
    "above": ((0, 9), {"ha": "right"}),
    "below": ((0, -17), {"ha": "right"}),
    "above left": ((-6, 5), {"ha": "right", "va": "bottom"}),
    "below right": ((7, -4), {"ha": "left", "va": "top"}),
}


class Axis(NamedTuple):
    """The settings of an axis.

    Attributes:
        label: the text at the axis.
        limits: its ends; None to fit them to the points.
        log: whether it is logarithmic.
        share: whether its values are shares, shown in percent.
        ticks: the positions of its ticks; None to choose them by rule.
        whole: whether its values are whole numbers.
        names: the names of the values 0, 1, 2, ...
    """

    label: str
    limits: tuple[float, float] | None = None
    log: bool = False
    share: bool = False
    ticks: Sequence[float] | None = None
    whole: bool = False
    names: Sequence[str] | None = None


class Line(NamedTuple):
    """One line: its points, its label in the legend, and its style."""

    points: Sequence[tuple[float, float]]
    label: str = ""
    look: Mapping[str, Any] = {}


class MarkedPoint(NamedTuple):
    """A marked point of a line, with a text at one of its corners."""

    point: tuple[float, float]
    label: str = ""
    corner: Corner = "above"


def draw(
    axes: Axes,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    levels: Mapping[str, float] | None = None,
    diagonal: bool = False,
    marked: Sequence[MarkedPoint] = (),
    grid: Literal["x", "y", "both"] = "y",
) -> None:
    """Draw lines on these axes, each in its own colour.

    Args:
        axes: the axes of a figure.
        lines, x, y: the lines and the settings of both axes.
        levels: horizontal reference lines by name. Their names stand together above the highest line.
        diagonal: draw a line from corner to corner.
        marked: points to mark in the first line's colour.
        grid: the axis whose ticks have grid lines.
    """
    for own, scale in ((x, axes.set_xscale), (y, axes.set_yscale)):
        if own.log:
            scale("log")
    if diagonal and x.limits is not None:
        axes.plot((x.limits[0], 1), (x.limits[0], 1), **_DASHED | {"color": RULE, "linewidth": 1})
    for place, line in enumerate(lines):
        # Matplotlib omits labels that begin with an underscore from the legend, and class names may begin with one.
        label = f"\u200b{line.label}" if line.label else None
        looks = {"color": SERIES[place % len(SERIES)], **_LINE, **line.look}
        axes.plot(*zip(*line.points, strict=True), **looks, label=label)
    for own, limit in ((x, axes.set_xlim), (y, axes.set_ylim)):
        if own.limits is not None:
            limit(*own.limits)
    for level in (levels or {}).values():
        axes.axhline(level, **_DASHED)
    if levels:
        looks = {"xycoords": axes.get_yaxis_transform(), "ha": "right", "va": "bottom", "fontsize": "small"}
        annotate(axes, ", ".join(levels), (1, max(levels.values())), (0, 3), color=MUTED, **looks)
    for point, words, corner in marked:
        axes.plot(*point, "o", color=SERIES[0], markersize=5, clip_on=False)
        offset, side = _BESIDE[corner]
        annotate(axes, words, point, offset, color=INK, fontweight="bold", **side)
    for own, axis in ((x, axes.xaxis), (y, axes.yaxis)):
        ticks(axis, own)
    axes.set_xlabel(x.label, color=MUTED, labelpad=4)
    axes.set_ylabel(y.label, color=MUTED, labelpad=4)
    if any(line.label for line in lines):
        axes.legend(loc="best", frameon=False, fontsize="small", labelcolor=INK)
    style_axes(axes, grid)
    if x.log and y.limits is not None:
        axes.tick_params(axis="x", pad=9)


def ticks(axis: DrawnAxis, own: Axis) -> None:
    """Set few ticks with short labels."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    if own.ticks is not None:
        axis.set_major_locator(FixedLocator(list(own.ticks)))
    elif own.log:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 60 * low else (1.0,)))
    else:
        axis.set_major_locator(MaxNLocator(5, integer=own.whole, steps=[1, 2, 5, 10]))
    axis.set_minor_locator(NullLocator())
    if own.names is not None:
        axis.set_ticks(range(len(own.names)), own.names)
        return
    words = "{:.4g}%".format if own.share else significant
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(100 * value if own.share else value)))


RATES = tuple(10 ** (-4 + tenth / 20) for tenth in range(80))
"""The false-positive rates of the plot, from 1e-4 to almost 1. They include 0.001 and 0.01."""
SCALE = (1.0, 3.0, 8.0)
_HEIGHT = 300
_LEAST = 1e-4
_APART = 0.25
"""A line of the scale that begins closer to the plan's line than this, as a difference of logarithms, has no label."""
_THOUSANDTH, _HUNDREDTH = 20, 40
_SMALL: dict[str, Any] = {"color": MUTED, "fontsize": 10}


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The attacker's curve of a run.

    Attributes:
        detections: the largest true-positive rate at each of `RATES`, as from `privacy.true_positive_rates`.
        delta: the delta of the plan, which also holds for the epsilons of the scale.
        subject: the protected unit, such as "single training example".
        others: the attacker's other knowledge, such as "all the other examples".
        question: the fact that the attacker wants to learn, such as "an example was used".
    """

    detections: Sequence[float]
    delta: float
    subject: str
    others: str
    question: str

    def __post_init__(self) -> None:
        if len(self.detections) != len(RATES):
            raise SfumatoError(
                f"detections must hold one rate for each of {len(RATES)} false alarms, got {len(self.detections)}",
                "give sfumato.privacy.true_positive_rates(plan, RATES)",
            )

    @property
    def description(self) -> str:
        """The bound in words, at both marked rates."""
        return (
            f"For every single {self.subject.rstrip(',')}: an attacker who has the model and knows everything else, "
            f"{self.others} included, and who asks whether {self.question}, detects it in at most "
            f"{percent_up(self.detections[_THOUSANDTH])} of the cases at one false alarm in a thousand, and in at most "
            f"{percent_up(self.detections[_HUNDREDTH])} at one in a hundred. Guessing comes to 0.1% and 1%."
        )

    @property
    def picture(self) -> str:
        """The curve on logarithmic axes, with the curves of the scale's epsilons, as an `<svg>` element."""
        scale = {epsilon: gaussian_true_positive_rates(epsilon, self.delta, RATES) for epsilon in SCALE}

        gray = {"color": MUTED, "linewidth": 0.9}
        axis = {"limits": (_LEAST, 1), "log": True, "share": True, "ticks": [10.0**power for power in range(-4, 1)]}

        def fill(figure: Figure) -> None:
            axes = figure.add_axes((0.165, 0.15, 0.80, 0.82))
            others = [Line([*zip(RATES, shares, strict=True)], look=gray) for shares in scale.values()]
            draw(
                axes,
                [Line([*zip(RATES, self.detections, strict=True)], look={"linewidth": 2.4, "zorder": 3}), *others],
                Axis("false alarms", **axis),
                Axis("detections, at most", **axis),
                diagonal=True,
                marked=[self._mark(place) for place in (_THOUSANDTH, _HUNDREDTH)],
            )
            annotate(axes, "guessing", (0.025, 0.025), (6, -3), va="top", **_SMALL)
            for epsilon, shares in scale.items():
                if abs(math.log(shares[0] / self.detections[0])) >= _APART:
                    annotate(axes, f"epsilon {epsilon:g}", (RATES[0], shares[0]), (14, 2), va="top", **_SMALL)

        detected = ", ".join(
            f"{percent_up(self.detections[place])} at {percent(RATES[place])} false alarms"
            for place in (_THOUSANDTH, _HUNDREDTH)
        )
        listed = f"{', '.join(f'{one:g}' for one in SCALE[:-1])} and {SCALE[-1]:g}"
        return inline(
            fill,
            name="attack",
            height=_HEIGHT,
            alternative=f"Line: detections against false alarms of this plan, {detected}, and epsilon {listed}.",
        )

    def _mark(self, place: int) -> MarkedPoint:
        """The bound at one of the rates, with its text where it covers no line."""
        rate, share = RATES[place], self.detections[place]
        return MarkedPoint((rate, share), percent_up(share), "below right" if share > 3 * rate else "above left")
