"""The figures of embeddings of records: recall, retrieval, and nearest neighbours."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.data import Part
from sfumato.evaluation.recall import recall_at_far, roc
from sfumato.evaluation.similarity import embed, nearest, recall_at_k
from sfumato.report import png

BATCH = 256
SAMPLED = 4096
"""The most test images for recall during training. At the end it is measured on all."""
MINIBATCH = 32
QUERIES, NEIGHBOURS = 8, 6
MOST_PIXELS = 32
"""Larger images are averaged down to about this side before their pixels are compared."""


def embed_records(
    backbone: nn.Module, records: Part, transform: Any, device: torch.device, rows: np.ndarray | None = None
) -> Tensor:
    """Embeddings (n, D) of length 1 of all records, or of those in `rows`, on the CPU."""
    rows = np.arange(len(records)) if rows is None else rows
    pieces = np.array_split(rows, max(1, -(-len(rows) // BATCH)))
    return embed(backbone, (transform(torch.from_numpy(records.take(piece)).to(device)) for piece in pieces))


def pixel_vectors(records: Part, rows: np.ndarray) -> Tensor:
    """The centred pixels of some records, (n, H W C): the baseline of every embedding.

    Images larger than `MOST_PIXELS` per side are averaged down to about that size.
    """
    vectors = []
    for piece in np.array_split(rows, max(1, -(-len(rows) // BATCH))):
        images = torch.from_numpy(records.take(piece)).permute(0, 3, 1, 2).float() / 127.5 - 1  # of 8 bits, never 0
        shrink = max(1, round(min(images.shape[2:]) / MOST_PIXELS))
        vectors.append((functional.avg_pool2d(images, shrink) if shrink > 1 else images).flatten(1))
    return torch.cat(vectors)


def evaluation(embeddings: Tensor, labels: np.ndarray, *, far: float) -> dict[str, Any]:
    """The exact figures of embeddings (N, D) of images with labels (N,), JSON-ready."""
    whole, curve = recall_at_far(embeddings, labels, [far]), roc(embeddings, labels)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    batchwise: float | None = None  # stays None if no minibatch has two images of one class
    with contextlib.suppress(SfumatoError):
        mixed = embeddings[torch.from_numpy(shuffled)], labels[shuffled]
        batchwise = recall_at_far(*mixed, [far], minibatch=MINIBATCH).points[0].recall
    chosen = whole.points[0]
    return {
        "recall": chosen.recall,
        "far": far,
        "threshold": chosen.threshold,
        "recall_by_minibatch": batchwise,
        "images": whole.images,
        "pairs_of_one_class": whole.same,
        "pairs_of_two_classes": whole.different,
        "curve": [[point.at_far, point.recall] for point in curve.points],
        "retrieval": {str(k): share for k, share in recall_at_k(embeddings, labels, (1, 5)).items()},
    }


def neighbours(embeddings: Tensor, records: Part, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Some images with their nearest neighbours, as PNG files in base64."""
    count = min(NEIGHBOURS, len(embeddings) - 1)
    queries = np.linspace(0, len(embeddings) - 1, min(QUERIES, len(embeddings))).astype(int)
    places, similar = nearest(embeddings, k=count)

    def shown(place: int) -> dict[str, Any]:
        image = records.take(np.array([place]))[0]
        return {"png": base64.b64encode(png(image)).decode("ascii"), "class": classes[int(records.labels[place])]}

    return [
        {
            "query": shown(int(query)),
            "nearest": [
                shown(int(place)) | {"similarity": float(value)}
                for place, value in zip(places[query], similar[query], strict=True)
            ],
        }
        for query in queries
    ]


def sample_rows(users: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """At most `SAMPLED` rows, of whole users chosen by a fixed shuffle of their names."""
    if len(labels) <= SAMPLED:
        return np.arange(len(labels))
    shuffled = np.random.default_rng(0)
    if users is None:
        return np.sort(shuffled.choice(len(labels), SAMPLED, replace=False))
    _, numbers, counts = np.unique(users, return_inverse=True, return_counts=True)
    order = shuffled.permutation(len(counts))
    kept = order[np.cumsum(counts[order]) <= SAMPLED]
    return np.flatnonzero(np.isin(numbers, kept))
