"""The learning curves of a run: its figures against steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from sfumato.report.plots.curves import curve, overconfident_from
from sfumato.report.sections.facts import Evaluation

_MOST_ROWS = 12


def learning_curves(metrics: Sequence[Mapping[str, Any]], evaluation: Evaluation | None) -> dict[str, Any] | None:
    """The values of the section, for the page's template; None without any figure."""
    levels = {} if evaluation is None else {"chance": evaluation.chance, "most frequent class": evaluation.majority}
    rows = sorted(metrics, key=lambda row: int(row["step"]))
    # Markup is safe here: the plots contain numbers and fixed texts, never a name from the data.
    plots = [
        (heading, Markup(svg))
        for heading, svg in ((name.capitalize(), curve(rows, name, levels)) for name in ("accuracy", "recall", "loss"))
        if svg
    ]
    if not plots:
        return None
    columns = [
        name for name in ("epsilon", "accuracy", "recall", "loss") if any(row.get(name) is not None for row in rows)
    ]
    measured = [row for row in rows if any(row.get(name) is not None for name in ("accuracy", "recall", "loss"))]
    stride = (len(measured) - 1) / (_MOST_ROWS - 1)
    chosen = measured if stride <= 1 else [measured[round(index * stride)] for index in range(_MOST_ROWS)]
    return {
        "plots": plots,
        "columns": columns,
        "rows": chosen,
        "thinned": len(chosen) < len(measured),
        "surer": overconfident_from(rows),
    }
