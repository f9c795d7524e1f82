"""Pages of two things beside each other: near duplicates of two sets, and two runs. They run no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from sfumato.report.plots.curves import of_two_runs
from sfumato.report.plots.drawing import in_page, png, rendered

MOST = 400


def page_of_pairs(title: str, summary: str, pairs: Sequence[dict[str, Any]]) -> str:
    """Each private image beside the public one that it repeats. It shows private images.

    Args:
        title, summary: what was compared, and what came of it.
        pairs: `private` and `public`, images uint8 (H, W, C), `private_name` and `public_name`, how they differ in a
            `note`, and by how much, `difference`; at most `MOST` are shown, the most different first, since those are
            the ones to doubt.
    """
    chosen = sorted(pairs, key=lambda pair: -pair["difference"])[:MOST]
    shown = [pair | {side: in_page(png(pair[side]))["source"] for side in ("private", "public")} for pair in chosen]
    return rendered("pairs.html.jinja", title=title, summary=summary, more=len(pairs) - len(shown), pairs=shown)


def page_of_two(found: Mapping[str, Any]) -> str:
    """Two runs. The same runs give the same bytes.

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
        curves=[(name, Markup(of_two_runs(name, both, (first, second)))) for name, both in found["curves"].items()],
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
