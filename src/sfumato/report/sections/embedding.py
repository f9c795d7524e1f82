"""The part of a page about an embedding: its recall, the recall curve, and the nearest neighbours of some images.

The neighbours are images of the data. Unless these are public, they belong on the owner's page only.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sfumato.report.plots.curves import recall_curve


@dataclass(frozen=True, kw_only=True)
class EmbeddingEvaluation:
    """The results of an embedding on the test split.

    Attributes:
        recall: the share of pairs of one class that are accepted at the false accept rate `far`.
        far: the false accept rate.
        threshold: the least similarity of an accepted pair.
        images: the number of test images.
        pairs_of_one_class, pairs_of_two_classes: the numbers of compared pairs.
        recall_by_minibatch: the recall within minibatches of 32; None if no minibatch has two images of one class.
        curve: (false accept rate, recall), by ascending rate.
        retrieval: for each k the share of images with at least one image of the same class among their k nearest.
        neighbours: some images, each with its `png`, the `name` of its class and its nearest neighbours, `found`, which
            also have a `similarity`.
        compared: the recall of pixels, of the initial weights and of the result, each with its 95% interval, the "gain"
            of the result over the initial weights, and the number of "images"; None if the run did not compare them.
    """

    recall: float
    far: float
    threshold: float
    images: int
    pairs_of_one_class: int
    pairs_of_two_classes: int
    recall_by_minibatch: float | None
    curve: Sequence[tuple[float, float]]
    retrieval: Mapping[str, float]
    neighbours: Sequence[Mapping[str, Any]]
    compared: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EmbeddingEvaluation:
        """The evaluation from a run's file."""
        looked = [
            _image(row["query"]) | {"found": [_image(one) for one in row["nearest"]]} for row in data["neighbours"]
        ]
        return cls(**{**data, "curve": [(far, recall) for far, recall in data["curve"]], "neighbours": looked})

    @property
    def picture(self) -> Markup:
        """Recall against the false accept rate. The chosen rate is marked if the curve contains it."""
        points = [{"at_far": far, "recall": recall} for far, recall in self.curve]
        return Markup(recall_curve(points, self.far if self.far in [far for far, _ in self.curve] else None))

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """The recalls to compare: see `comparison`."""
        return comparison(self.compared)

    @property
    def warning(self) -> str | None:
        """A warning if training lowered recall: see `no_gain_warning`."""
        return no_gain_warning(self.compared)


COMPARED = {"pixels": "pixels as they are", "beginning": "before training", "result": "the model"}
"""The compared embeddings, and their names on a page."""


def comparison(found: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """Rows of (name, recall, 95% interval), the gain last; empty if nothing was compared."""
    if found is None:
        return []
    unchanged = found.get("gain") is not None and not any(found["gain"])
    named = {
        name: words for name, words in COMPARED.items() if found.get(name) and (name, unchanged) != ("beginning", True)
    }
    rows = [(words, *_with_interval(found[name])) for name, words in named.items()]
    if found.get("gain") and not unchanged:
        rows.append(("gained by training", *_with_interval(found["gain"])))
    return rows


def no_gain_warning(found: Mapping[str, Any] | None) -> str | None:
    """A warning if the result has a lower recall than the initial weights, else None.

    >>> figures = {"beginning": [0.5, 0.4, 0.6], "result": [0.25, 0.2, 0.3], "gain": [-0.25, -0.3, -0.2]}
    >>> no_gain_warning(figures)
    'Worse than before training: recall 25.00%, and 50.00% before training.'
    >>> no_gain_warning({**figures, "gain": [-0.25, -0.6, 0.1]})
    'No better than before training: recall 25.00%, and 50.00% before training, which may be chance.'
    """
    gain = None if found is None else found.get("gain")
    if found is None or gain is None or gain[0] >= 0:
        return None
    figures = f"recall {found['result'][0]:.2%}, and {found['beginning'][0]:.2%} before training"
    if gain[2] < 0:
        return f"Worse than before training: {figures}."
    return f"No better than before training: {figures}, which may be chance."


def _with_interval(figures: Sequence[float]) -> tuple[str, str]:
    value, low, high = figures
    return f"{value:.2%}", f"{low:.2%} to {high:.2%}"


def _image(data: Mapping[str, Any]) -> dict[str, Any]:
    further = {"similarity": float(data["similarity"])} if "similarity" in data else {}
    return {"png": base64.b64decode(data["png"]), "name": str(data["class"])} | further
