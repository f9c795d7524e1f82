"""The calibration of the model's probabilities, as a part of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from sfumato.report.plots.drawing import WIDTH, inline
from sfumato.report.plots.lines import Axis, Line, draw
from sfumato.report.sections.classes import ClassScore
from sfumato.report.sections.facts import Calibration
from sfumato.report.sections.numbers import percent
from sfumato.report.style import INK, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAD = 0.05
"""The least expected calibration error for which a page warns."""
_OWN = {"color": SERIES[0]}
_FEWEST = 10
"""The least number of images behind a point of a plot."""

Point = tuple[float, float, float, float]
"""Confidence, accuracy, and the ends of its interval."""


def calibrated(found: Calibration | None) -> dict[str, Any] | None:
    """The values of the calibration part, from exact figures, for the template of the owner's page."""
    if found is None or not found.bands:
        return None
    points = [
        (sure, right, *ClassScore(name="", correct=round(right * count), examples=count).interval)
        for _, _, count, sure, right in found.bands
        if count >= _FEWEST
    ]
    images = sum(count for _, _, count, _, _ in found.bands)
    mean = sum(count * sure for _, _, count, sure, _ in found.bands) / images
    accuracy = sum(count * right for _, _, count, _, right in found.bands) / images
    return {
        "error": percent(found.error),
        "words": _warning(found.error, mean - accuracy),
        "plot": Markup(reliability(points, name="reliability")) if points else "",
        "left_out": images - sum(count for _, _, count, _, _ in found.bands if count >= _FEWEST),
    }


def _warning(error: float, excess: float) -> str:
    """A warning if the probabilities are badly calibrated, else an empty string."""
    if error < BAD:
        return ""
    way = "is overconfident" if excess > 0 else "is underconfident"
    return (
        f"Do not read these scores as probabilities: on average they differ from the accuracy by {percent(error)}, and "
        f"the model {way}."
    )


def reliability(points: Sequence[Point], *, name: str) -> str:
    """A reliability diagram: accuracy against confidence, with the diagonal of perfect calibration."""

    quarters = (0, 0.25, 0.5, 0.75, 1)
    bars = [Line([(sure, low), (sure, high)], look=_OWN | {"linewidth": 1.2}) for sure, _, low, high in points]

    def fill(figure: Figure) -> None:
        axes = figure.add_axes((0.175, 0.15, 0.785, 0.81))
        draw(
            axes,
            [
                Line([(sure, right) for sure, right, *_ in points], look=_OWN | {"marker": "o", "markersize": 4.5}),
                *bars,
            ],
            Axis("the model is so sure", (0, 1.02), share=True, ticks=quarters),
            Axis("and so often right", (0, 1.02), share=True, ticks=quarters),
            diagonal=True,
            grid="both",
        )
        axes.text(0.03, 0.95, "above the line: underconfident", color=INK, fontsize=9.5)

    listed = ", ".join(f"{percent(right)} at {percent(sure)}" for sure, right, *_ in points)
    return inline(
        fill,
        name=name,
        height=WIDTH,
        alternative=f"Points: accuracy by confidence, {listed}; a line marks where both are alike.",
    )
