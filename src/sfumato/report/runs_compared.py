"""The page of two runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from sfumato.report.plots.curves import inline
from sfumato.report.plots.drawing import calm, rendered
from sfumato.report.style import INK, MUTED, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 236


def page_of_two(found: Mapping[str, Any]) -> str:
    """One HTML file that needs no network and runs no script. The same runs give the same bytes.

    Args:
        found: two `runs`, `settings`, `figures` and `curves`, as plain data.
    """
    first, second = (one["run"] for one in found["runs"])
    return rendered(
        "runs_compared.html.jinja",
        title=f"{first} and {second}",
        first=first,
        second=second,
        public=all(one["public"] for one in found["runs"]),
        tables=[
            (name, [(row["name"], _cell(row["first"]), _cell(row["second"])) for row in found[key]])
            for name, key in (("Settings that differ", "settings"), ("Figures", "figures"))
        ],
        curves=[(name, Markup(_curve(name, both, (first, second)))) for name, both in found["curves"].items()],
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curve(name: str, both: list[Any], runs: tuple[str, str]) -> str:
    """One figure of both runs against steps."""

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.add_axes((0.135, 0.18, 0.83, 0.7))
        for place, (points, label) in enumerate(zip(both, ("first", "second"), strict=True)):
            if points:
                axes.plot(*zip(*points, strict=True), color=SERIES[place], linewidth=1.8, label=label)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlabel("step", color=MUTED, labelpad=4)
        axes.legend(frameon=False, labelcolor=INK)
        calm(axes)

    lasts = ", ".join(f"{points[-1][1]:.4g} of {run}" for points, run in zip(both, runs, strict=True) if points)
    return inline(draw, name=f"compared-{name}", height=HEIGHT, alternative=f"{name} against steps; at the end {lasts}")
