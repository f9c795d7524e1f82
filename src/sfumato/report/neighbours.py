"""Images beside those that a model takes for the most similar: what an embedding has learnt, to look at.

It shows images of the data: it belongs on a page for their owner alone, unless they are public.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sfumato.report.plots.drawing import rendered
from sfumato.report.sections.numbers import significant

_SMALL_IMAGE = 64


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """An image that was found.

    Args:
        png: the image as the bytes of a PNG file.
        name: of its class.
        similarity: to the image that was looked for, from 0 to 1.
    """

    png: bytes
    name: str
    similarity: float


@dataclass(frozen=True, kw_only=True)
class Looked:
    """An image that was looked for, and what was found.

    Args:
        png: the image as the bytes of a PNG file.
        name: of its class.
        found: by falling similarity.
    """

    png: bytes
    name: str
    found: Sequence[Neighbour]


def neighbours(rows: Sequence[Looked]) -> Markup:
    """A line of images for each that was looked for, as a part of the page: its class, and which neighbours share it.

    Args:
        rows: in the order in which they are shown.

    Returns:
        HTML that needs no network and runs no script; empty without rows.
    """
    return Markup(
        rendered(
            "neighbours.html.jinja",
            rows=[
                {
                    "name": row.name,
                    **_image(row.png),
                    "found": [
                        {
                            "name": found.name,
                            "same": found.name == row.name,
                            "similarity": significant(found.similarity),
                            **_image(found.png),
                        }
                        for found in row.found
                    ],
                }
                for row in rows
            ],
        )
    )


def _image(png: bytes) -> dict[str, object]:
    source = "data:image/png;base64," + base64.b64encode(png).decode("ascii")
    width = int.from_bytes(png[16:20], "big")  # in the header of every PNG file
    return {"source": source, "small": width <= _SMALL_IMAGE}
