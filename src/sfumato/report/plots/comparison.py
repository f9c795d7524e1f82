"""The plot of pairs of participation and mechanism: the noise that each leaves in the weights at the same budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.report.plots.drawing import calm, svg
from sfumato.report.style import MUTED, SERIES, figures

_FINAL, _ALL, *_ = SERIES


def compared(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bars of the noise in the final weights and over all steps, the least first. The same rows give the same bytes.

    Args:
        rows: `participation`, `mechanism`, `adjacency`, `epsilon`, `noise_in_weights`, `noise_in_final_weights` and
            `buffers` of each pair.

    Returns:
        an SVG file.
    """
    from matplotlib.figure import Figure

    with figures("compared", size=8.5):
        figure = Figure(figsize=(6.4, 0.9 + 0.42 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for place, row in enumerate(rows):
            axes.barh(place - 0.18, row["noise_in_final_weights"], 0.34, color=_FINAL)
            axes.barh(place + 0.18, row["noise_in_weights"], 0.34, color=_ALL)
            longest = max(row["noise_in_final_weights"], row["noise_in_weights"])
            copies = f"{row['buffers']} copies of the model" if row["buffers"] else "no memory"
            axes.annotate(
                f"epsilon {row['epsilon']:.3g} ({row['adjacency']}), {copies}",
                (longest, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=MUTED,
            )
        axes.set_yticks(range(len(rows)), [f"{row['mechanism']}, {row['participation']}" for row in rows], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.45)
        axes.set_xlabel("noise in a weight, over learning rate and clipping norm: final (above), over all steps")
        calm(axes, "x")
        return svg(figure)
