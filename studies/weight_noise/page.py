"""The page of a weight-noise study: accuracies by deviation, convergence curves, and slow-downs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from sfumato.report.plots.drawing import INK, MUTED, inline, style_axes, stylesheet
from sfumato.report.sections.numbers import significant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("page.html.jinja")
MOST_SHADES = 8
HEIGHT = 236
NO_CONVERGENCE = "no convergence"


def page_of_noise(study: Mapping[str, Any]) -> str:
    """The page as one HTML file. It needs no network and runs no script. The same study gives the same bytes.

    Args:
        study: the study as plain data, from `NoiseStudy.to_dict`.
    """
    design = study["design"]
    deviations = design["deviations"]
    forms = {cell["model"]: cell["learning_rate"] for cell in study["cells"]}
    rows = {form: [cell for cell in study["cells"] if cell["model"] == form] for form in forms}
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        style=Markup(stylesheet()),
        title=f"Noise in the weights: {', '.join(design['models'])}",
        public=study["public"],
        statement=study["statement"],
        rule=study["rule"],
        share=f"{design['share']:.0%}",
        deviations=[significant(one) if one else "0" for one in deviations],
        accuracies=[(form, [accuracy_cell(cell) for cell in row]) for form, row in rows.items()],
        slowdowns=[(form, [slowdown_cell(cell) for cell in row]) for form, row in rows.items()],
        curves=[(form, Markup(_curves(place, form, row))) for place, (form, row) in enumerate(rows.items())],
        facts=[
            ("source", f"{study['source']}, {study['test_examples']:,} test examples{_held_out(design)}"),
            (
                "runs",
                f"{design['runs']} for each form and deviation, each with a key of its own; seed {design['seed']}",
            ),
            ("training", f"{design['epochs']} epochs of Adam, batches of {design['batch_size']}, {design['schedule']}"),
            ("learning rates", ", ".join(f"{form}: {rate:g}" for form, rate in forms.items())),
            ("chosen among", ", ".join(f"{rate:g}" for rate in design["learning_rates"])),
            ("augmentation", f"shift {design['shift']}, {'flip' if design['flip'] else 'no flip'}"),
        ],
    )


def _held_out(design: Mapping[str, Any]) -> str:
    share = design.get("validation_fraction", 0.0)
    return f"; {share:.0%} of the training part held out, which the curves are of" if share else ""


def accuracy_cell(cell: Mapping[str, Any]) -> str:
    """A cell of the table of accuracies.

    >>> accuracy_cell({"converges": True, "accuracy": 0.98071, "standard_error": 0.0011})
    '98.07 ± 0.11'
    """
    if not cell["converges"]:
        return NO_CONVERGENCE
    error = cell["standard_error"]
    return f"{100 * cell['accuracy']:.2f}" + ("" if error is None else f" ± {100 * error:.2f}")


def slowdown_cell(cell: Mapping[str, Any]) -> str:
    """A cell of the table of slow-downs: the factor, or "-" if the share was not reached.

    >>> slowdown_cell({"slowdown": 6.94, "epochs_to_share": 3.2})
    '6.9'
    """
    return "-" if cell["slowdown"] is None else f"{cell['slowdown']:.1f}"


def _curves(place: int, form: str, cells: Sequence[Mapping[str, Any]]) -> str:
    """A plot with one line for each deviation, the lightest line for the smallest deviation."""
    drawn = [cell for cell in cells if cell["curve"]]
    if not drawn:
        return ""
    sentinels = {f"#0{number + 1:x}0{number + 1:x}0{number + 1:x}": f"var(--shade-{number})" for number in range(5, 13)}
    colours = list(sentinels)
    last = max(1, len(drawn) - 1)

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axes = figure.add_axes((0.135, 0.18, 0.66, 0.76))
        for number, cell in enumerate(drawn):
            colour = colours[round(number / last * (MOST_SHADES - 1))]
            epochs, accuracies = zip(*cell["curve"], strict=True)
            axes.plot(epochs, accuracies, color=colour, linewidth=1.6, label=f"{cell['deviation']:g}")
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
        axes.set_xlabel("epochs", color=MUTED, labelpad=4)
        legend = axes.legend(
            loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, title="deviation", labelcolor=INK
        )
        legend.get_title().set_color(MUTED)
        style_axes(axes)

    lines = ", ".join(f"{100 * cell['curve'][-1][1]:.1f}% at deviation {cell['deviation']:g}" for cell in drawn)
    return inline(
        draw,
        name=f"noise-{place}",
        height=HEIGHT,
        alternative=f"Lines: accuracy of {escape(form)} against epochs, in the end {lines}.",
        colours=sentinels,
    )
