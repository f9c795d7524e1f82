"""Pages that compare near duplicates in two data sets, two runs, or a federation's sites. They run no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from sfumato.report.plots.curves import two_run_curves
from sfumato.report.plots.drawing import image_data, png, render

MOST = 400


def duplicates_page(title: str, summary: str, pairs: Sequence[dict[str, Any]]) -> str:
    """A page of private images, each next to the public image that it duplicates. It shows private data.

    Args:
        title, summary: the title of the comparison, and its result.
        pairs: for each pair the images `private` and `public`, uint8 (H, W, C), their names `private_name` and
            `public_name`, their `difference`, and a `note` on how they differ. The page shows at most `MOST` pairs, the
            largest difference first, because those are the doubtful ones.
    """
    chosen = sorted(pairs, key=lambda pair: -pair["difference"])[:MOST]
    shown = [pair | {side: image_data(png(pair[side]))["source"] for side in ("private", "public")} for pair in chosen]
    return render("pairs.html.jinja", title=title, summary=summary, more=len(pairs) - len(shown), pairs=shown)


def comparison_page(found: Mapping[str, Any]) -> str:
    """A page that compares two runs. The same runs give the same bytes.

    Args:
        found: the two `runs`, their `settings`, `figures` and `curves`, as plain data.
    """
    first, second = (one["run"] for one in found["runs"])
    return render(
        "runs_compared.html.jinja",
        title=f"{first} and {second}",
        first=first,
        second=second,
        public=all(one["public"] for one in found["runs"]),
        tables=[
            (name, [(row["name"], _cell(row["first"]), _cell(row["second"])) for row in found[key]])
            for name, key in (("Settings that differ", "settings"), ("Figures", "figures"))
        ],
        curves=[(name, Markup(two_run_curves(name, both, (first, second)))) for name, both in found["curves"].items()],
    )


def federation_page(found: Mapping[str, Any], limits: str) -> str:
    """A page of the sites of a federation. The same runs give the same bytes.

    Args:
        found: the `sites`, what they promise together (`sentences`), what is `not_covered`, and whether every statement
            `holds`, as plain data.
        limits: what the verification cannot show.
    """
    return render("federation.html.jinja", title=f"A federation of {len(found['sites'])} sites", limits=limits, **found)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
