"""What a page says of an embedding: recall, its curve over false accept rates, and the nearest of some images.

These are images of the data: they belong on a page for their owner alone, unless they are public.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sfumato._checks import SfumatoError
from sfumato.report.plots.curves import roc
from sfumato.report.plots.drawing import rendered


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
    return Markup(rendered("neighbours.html.jinja", rows=rows))


@dataclass(frozen=True, kw_only=True)
class EmbeddingEvaluation:
    """How an embedding did on the test split.

    Attributes:
        recall: the share of pairs of one class that are found at this false accept rate.
        far: the false accept rate.
        threshold: of similarity, from which on a pair is accepted.
        images: how many there were.
        pairs_of_one_class, pairs_of_two_classes: how many were compared.
        recall_by_minibatch: the same among minibatches of 32 alone; None where no two of one class meet there.
        curve: false accept rate and recall, by rising rate.
        retrieval: of k, the share of images of whose k nearest one is of the same class.
        neighbours: some images with those that are nearest.
        compared: recall of pixels, of what training began at and of the result, each with its 95% interval, and the
            "gain" of the last two, of so many "images"; None where a run has not compared them.
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
    neighbours: Sequence[Looked]
    compared: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EmbeddingEvaluation:
        """The evaluation that a run has written down."""
        try:
            looked = [
                Looked(**_image(row["query"]), found=[Neighbour(**_image(one)) for one in row["nearest"]])
                for row in data["neighbours"]
            ]
            return cls(**{**data, "curve": [(far, recall) for far, recall in data["curve"]], "neighbours": looked})
        except (KeyError, TypeError, ValueError) as error:
            raise SfumatoError(
                f"the run's evaluation cannot be read ({type(error).__name__}: {error})", "restore it from a copy"
            ) from None

    @property
    def picture(self) -> Markup:
        """Recall against the false accept rate, with the chosen rate marked where the curve has it."""
        points = [{"at_far": far, "recall": recall} for far, recall in self.curve]
        return Markup(roc(points, self.far if self.far in [far for far, _ in self.curve] else None))

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """What recall is compared with: see `comparison`."""
        return comparison(self.compared)

    @property
    def warning(self) -> str | None:
        """That it is not above its beginning: see `below_beginning`."""
        return below_beginning(self.compared)

    @property
    def similar(self) -> Markup:
        """Some images, with those that are nearest."""
        return neighbours(self.neighbours)


COMPARED = {"pixels": "pixels as they are", "beginning": "before training", "result": "the model"}
"""What is compared, and what a page calls it."""


def comparison(found: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """What is compared, its recall, and the 95% interval; the gain last. Empty where nothing is known."""
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


def below_beginning(found: Mapping[str, Any] | None) -> str | None:
    """What is to be said first of a result that is not above its beginning; None of any other.

    >>> figures = {"beginning": [0.5, 0.4, 0.6], "result": [0.25, 0.2, 0.3], "gain": [-0.25, -0.3, -0.2]}
    >>> below_beginning(figures)
    'Worse than its beginning: recall 25.00%, and 50.00% before training.'
    >>> below_beginning({**figures, "gain": [-0.25, -0.6, 0.1]})
    'No better than its beginning: recall 25.00%, and 50.00% before training, which may be chance.'
    """
    gain = None if found is None else found.get("gain")
    if found is None or gain is None or gain[0] >= 0:
        return None
    figures = f"recall {found['result'][0]:.2%}, and {found['beginning'][0]:.2%} before training"
    if gain[2] < 0:
        return f"Worse than its beginning: {figures}."
    return f"No better than its beginning: {figures}, which may be chance."


def _with_interval(figures: Sequence[float]) -> tuple[str, str]:
    value, low, high = figures
    return f"{value:.2%}", f"{low:.2%} to {high:.2%}"


def _image(data: Mapping[str, Any]) -> dict[str, Any]:
    further = {"similarity": float(data["similarity"])} if "similarity" in data else {}
    return {"png": base64.b64decode(data["png"]), "name": str(data["class"])} | further
