"""The bound on any attack, as a plot and in words. It depends on the plan alone, so every page shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.privacy.statements.curve import gaussian_true_positive_rates, percent_up
from sfumato.report.plots.drawing import annotate, inline
from sfumato.report.plots.lines import Axis, Line, MarkedPoint, draw
from sfumato.report.sections.numbers import percent
from sfumato.report.style import MUTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
