"""What an attacker can find out at most, as a picture and in words: from the plan alone, so on every page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.privacy.statements.curve import gaussian_detections
from sfumato.report.plots.curves import WIDTH, inline
from sfumato.report.plots.drawing import beside, calm
from sfumato.report.sections.numbers import percent, percent_up
from sfumato.report.style import INK, MUTED, RULE, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATES = tuple(10 ** (-4 + tenth / 20) for tenth in range(80))
"""The false alarms of the picture, from one in ten thousand up to most; one in a thousand and in a hundred are among
them."""
SCALE = (1.0, 3.0, 8.0)
_HEIGHT = 300
_LEAST = 1e-4
_THOUSANDTH, _HUNDREDTH = 20, 40
_SMALL: dict[str, Any] = {"color": MUTED, "fontsize": 10}


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The attacker's curve of a run.

    Attributes:
        detections: the largest true-positive rate at each of `RATES`, as `privacy.detections` gives them.
        delta: the plan's, at which epsilons of the scale are meant.
        subject: what the promise is for, such as "single training example".
        others: what the attacker knows besides, such as "all the other examples".
        question: what the attacker would find out, such as "an example was used".
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
                "give sfumato.privacy.detections(plan, RATES)",
            )

    @property
    def words(self) -> str:
        """What the promise is worth, in words."""
        return (
            f"For every single {self.subject.rstrip(',')}: an attacker who has the model and knows everything else, "
            f"{self.others} included, and who asks whether {self.question}, detects it in at most "
            f"{percent_up(self.detections[_THOUSANDTH])} of the cases at one false alarm in a thousand, and in at most "
            f"{percent_up(self.detections[_HUNDREDTH])} at one in a hundred. Guessing comes to 0.1% and 1%."
        )

    @property
    def picture(self) -> str:
        """The curve on logarithmic axes, between those of the scale's epsilons, as an `<svg>` element."""
        scale = {epsilon: gaussian_detections(epsilon, self.delta, RATES) for epsilon in SCALE}

        def draw(figure: Figure) -> None:
            from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

            axes = figure.add_axes((0.165, 0.15, 0.80, 0.82))
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.plot((_LEAST, 1), (_LEAST, 1), color=RULE, linewidth=1, linestyle=(0, (4, 3)))
            beside(axes, "guessing", (0.025, 0.025), (6, -3), va="top", **_SMALL)
            for epsilon, shares in scale.items():
                axes.plot(RATES, shares, color=MUTED, linewidth=0.9)
                if not _close(shares[0], self.detections[0]):
                    _along(axes, f"epsilon {epsilon:g}", shares)
            axes.plot(RATES, self.detections, color=SERIES[0], linewidth=2.4, solid_capstyle="round")
            for place in (_THOUSANDTH, _HUNDREDTH):
                axes.plot(RATES[place], self.detections[place], "o", color=SERIES[0], markersize=5)
                right = self.detections[place] > 3 * RATES[place]
                offset, ha, va = ((7, -3), "left", "top") if right else ((-6, 5), "right", "bottom")
                point, words = (RATES[place], self.detections[place]), percent_up(self.detections[place])
                beside(axes, words, point, offset, ha=ha, va=va, color=INK, fontweight="bold")
            for axis, limit in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
                limit(_LEAST, 1)
                axis.set_major_locator(LogLocator(subs=(1.0,)))
                axis.set_minor_locator(NullLocator())
                axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
            axes.set_xlabel("false alarms", color=MUTED, labelpad=4)
            axes.set_ylabel("detections, at most", color=MUTED, labelpad=2)
            calm(axes)
            axes.tick_params(axis="x", pad=9)

        detected = ", ".join(
            f"{percent_up(self.detections[place])} at {percent(RATES[place])} false alarms"
            for place in (_THOUSANDTH, _HUNDREDTH)
        )
        listed = f"{', '.join(f'{one:g}' for one in SCALE[:-1])} and {SCALE[-1]:g}"
        return inline(
            draw,
            name="attack",
            height=_HEIGHT,
            alternative=f"Line: detections against false alarms of this plan, {detected}, and epsilon {listed}.",
        )


def _along(axes: Axes, text: str, shares: Sequence[float]) -> None:
    """Words upon a line, near its left end, as steep as the line is there."""
    at, further = 2, 22
    rise = math.log10(shares[further] / shares[at]) / math.log10(RATES[further] / RATES[at])
    frame = axes.get_position()
    steep = math.degrees(math.atan(rise * frame.height * _HEIGHT / (frame.width * WIDTH)))
    turned: dict[str, Any] = {"rotation": steep, "rotation_mode": "anchor", "va": "bottom"}
    beside(axes, text, (RATES[at], shares[at]), (-1, 2), **turned, **_SMALL)


def _close(one: float, other: float) -> bool:
    return abs(math.log(one / other)) < 0.25
