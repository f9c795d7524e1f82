"""The page of near duplicates: each private image beside the public one that it repeats."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.report.plots.drawing import png, rendered

MOST = 400


@dataclass(frozen=True, kw_only=True)
class ShownPair:
    """Two images side by side.

    Args:
        private, public: uint8 (H, W, C).
        private_name, public_name: what to call them.
        note: how they differ, in words.
        difference: the pairs that differ most are shown first.
    """

    private: np.ndarray
    public: np.ndarray
    private_name: str
    public_name: str
    note: str
    difference: float


def page_of_pairs(title: str, summary: str, pairs: Sequence[ShownPair]) -> str:
    """One HTML file that needs no network and runs no script. It shows private images.

    Args:
        title, summary: what was compared, and what came of it.
        pairs: all of them; at most `MOST` are shown, the most different first, since those are the ones to doubt.
    """
    listed = sorted(pairs, key=lambda pair: -pair.difference)[:MOST]
    return rendered(
        "pairs.html.jinja",
        title=title,
        summary=summary,
        more=len(pairs) - len(listed),
        pairs=[
            {
                "private": _encoded(pair.private),
                "public": _encoded(pair.public),
                "private_name": pair.private_name,
                "public_name": pair.public_name,
                "note": pair.note,
            }
            for pair in listed
        ],
    )


def _encoded(pixels: np.ndarray) -> str:
    return base64.b64encode(png(pixels)).decode("ascii")
