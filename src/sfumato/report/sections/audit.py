"""What an attack can find out: the bound on any attack as a plot, and the audit's lower bounds of epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from sfumato.privacy.statements.curve import gaussian_true_positive_rates
from sfumato.privacy.statements.display import percent_up
from sfumato.report.plots.drawing import (
    HEIGHT,
    MUTED,
    SERIES,
    Axis,
    Line,
    MarkedPoint,
    annotate,
    draw,
    inline,
    render,
    style_axes,
)
from sfumato.report.sections.numbers import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXIS = "observation in the canary's direction, over the noise"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The audit of a run's step.

    Attributes:
        lines: the method, in sentences.
        rows: for each bound its assumption, the epsilon that it proves, the largest epsilon that it could have proven,
            the largest factor on the noise that it would have noticed (None for none), and its confidence.
        refuted: whether a bound lies above the promise.
        faults: the faults in the noise of single parameters.
        edges: the edges of the bins of observations, (n + 1,).
        within, without: the counts (n,) of observations with the canary, and without it.
    """

    lines: Sequence[str]
    rows: Sequence[tuple[str, float, float, float | None, float]]
    refuted: bool
    faults: Sequence[str]
    edges: Sequence[float]
    within: Sequence[int]
    without: Sequence[int]

    @property
    def picture(self) -> Markup:
        """Both histograms as step plots on one axis, as an `<svg>` element."""
        sides = (("canary in", self.within, SERIES[1]), ("canary out", self.without, SERIES[0]))

        def fill(figure: Figure) -> None:
            axes = figure.add_axes((0.135, 0.18, 0.83, 0.74))
            for place, (name, counts, colour) in enumerate(sides):
                shares = [count / max(1, sum(counts)) for count in counts]
                axes.stairs(shares, self.edges, color=colour, linewidth=1.8)
                corner = (self.edges[0], max(max(shares), 1e-9))
                annotate(axes, name, corner, (4, -2 - 14 * place), va="top", color=colour, fontsize=10)
            axes.set_xlabel(AXIS, color=MUTED, labelpad=4)
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
            style_axes(axes)

        seen = f"{sum(self.within):,} with a canary and {sum(self.without):,} without one"
        return Markup(inline(fill, name="step", height=HEIGHT, alternative=f"Two histograms of {AXIS}: {seen}."))


def audit(found: Audit | None, promised: str) -> Markup:
    """The section on the audit; empty if there is none.

    Args:
        promised: the promised epsilon, rounded.
    """
    return Markup("" if found is None else render("audit.html.jinja", audit=found, promised=promised))


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
                marked=[
                    MarkedPoint((rate, share), percent_up(share), "below right" if share > 3 * rate else "above left")
                    for rate, share in ((RATES[place], self.detections[place]) for place in (_THOUSANDTH, _HUNDREDTH))
                ],
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
