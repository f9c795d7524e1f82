"""Pages that compare near duplicates in two data sets, or a federation's sites. They run no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def federation_page(found: Mapping[str, Any], limits: str) -> str:
    """A page of the sites of a federation. The same runs give the same bytes.

    Args:
        found: the `sites`, what they promise together (`sentences`), what is `not_covered`, and whether every statement
            `holds`, as plain data.
        limits: what the verification cannot show.
    """
    return render("federation.html.jinja", title=f"A federation of {len(found['sites'])} sites", limits=limits, **found)
