"""Comparison of embeddings before and after training: recall at a false accept rate, with bootstrap intervals.

Pairs are not independent: images of one person are correlated, and all pairs with one image share it. The bootstrap
therefore resamples whole classes with replacement (Efron 1979; Field and Welsh 2007). All embeddings use the same
resamples, so the interval of the difference is much narrower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.evaluation.recall import recall_at_far
from sfumato.evaluation.similarity import BLOCK, Labels, checked_embeddings, codes_of, normalise, quantise

PIXELS, BEGINNING, RESULT = "pixels", "beginning", "result"
"""Names of the embeddings that a run compares."""
REPLICATES = 400
_FURTHER, _LEAST = 20, 5000
"""Pairs of two classes to keep: this multiple of the number that may be accepted, and at least this many. A resample
gives some classes no weight and needs more of the most similar pairs."""


def compare_recall(embeddings: Mapping[str, Tensor], labels: Labels, *, far: float) -> dict[str, Any]:
    """Compares the recall of several embeddings of the same images. JSON-ready and without noise.

    Args:
        embeddings: embeddings (N, D) of any length above 0, by name, including "beginning" and "result". The
            similarities of one block of images with all others are held in memory, plus the largest ones.
        labels: (N,).
        far: the false accept rate.

    Returns:
        "images": N. For each name: (recall, low, high), with the ends of the 95% interval, or None if an image's
        embedding has no direction. "gain": the same for the recall of the result minus that of the beginning.
    """
    codes = codes_of(labels, len(next(iter(embeddings.values()))))
    resamples = _resamples(int(codes.max()) + 1)
    results: dict[str, Any] = {"images": len(codes)}
    replicates: dict[str, np.ndarray] = {}
    for name, vectors in embeddings.items():
        try:
            recall = recall_at_far(vectors, labels, [far]).points[0].recall
        except SfumatoError:
            results[name] = None
            continue
        replicates[name] = _replicates(checked_embeddings(vectors), codes, far, resamples)
        results[name] = [recall, *_ends(replicates[name])]
    results["gain"] = None
    if RESULT in replicates and BEGINNING in replicates:
        difference = results[RESULT][0] - results[BEGINNING][0]
        results["gain"] = [difference, *_ends(replicates[RESULT] - replicates[BEGINNING])]
    return results


def _resamples(classes: int) -> np.ndarray:
    """How often each class occurs in each resample, int64 (REPLICATES, classes)."""
    generator = np.random.default_rng(0)
    return generator.multinomial(classes, np.full(classes, 1 / classes), size=REPLICATES)


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The ends of the 95% interval."""
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, (2.5, 97.5)) if len(finite) else (math.nan, math.nan)
    return float(low), float(high)


def _replicates(embeddings: Tensor, codes: np.ndarray, far: float, resamples: np.ndarray) -> np.ndarray:
    """The recall in each resample, (REPLICATES,); NaN without pairs of one class."""
    steps, same, (first, second) = _pairs(embeddings, codes, far)
    counts = np.bincount(codes)
    pairs = np.bincount(same[1], minlength=len(counts))
    by_rank = np.argsort(-same[0], kind="stable")
    similar, classes = same[0][by_rank], same[1][by_rank]
    recalls = np.full(len(resamples), np.nan)
    for number, weights in enumerate(resamples):
        images = weights * counts
        allowed = far * (images.sum() ** 2 - (images**2).sum()) / 2
        all_same = (weights * pairs).sum()
        if not all_same:
            continue
        above = np.cumsum(weights[first] * weights[second])
        place = int(np.searchsorted(above, allowed, side="right"))
        accepted = similar > steps[min(place, len(steps) - 1)] if len(steps) else np.ones(len(similar), bool)
        recalls[number] = weights[classes[accepted]].sum() / all_same
    return recalls


def _pairs(
    embeddings: Tensor, codes: np.ndarray, far: float
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The pairs that decide the recall.

    Returns:
        The similarities, in steps, of the most similar pairs of two classes, in descending order; similarity and class
        of all pairs of one class; both classes of each pair of the first item.
    """
    vectors, classes = normalise(embeddings), torch.from_numpy(codes)
    same: list[tuple[np.ndarray, np.ndarray]] = []
    different: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    total = (len(codes) ** 2 - int((np.bincount(codes) ** 2).sum())) // 2
    number = min(total, _LEAST + math.ceil(_FURTHER * far * total))
    for start in range(0, len(codes), BLOCK):
        rows = slice(start, start + BLOCK)
        block = quantise(vectors[rows] @ vectors[start:].T).cpu()
        later = torch.ones_like(block, dtype=torch.bool).triu_(1)
        equal = classes[rows, None] == classes[None, start:]
        row, column = (later & equal).nonzero(as_tuple=True)
        same.append((block[row, column].numpy(), codes[rows][row.numpy()]))
        row, column = (later & ~equal).nonzero(as_tuple=True)
        values = block[row, column]
        top = values.topk(min(number, len(values))).indices
        one, other = codes[rows][row[top].numpy()], codes[start:][column[top].numpy()]
        different.append((values[top].numpy(), one, other))
    steps, first, second = (np.concatenate(column) for column in zip(*different, strict=True))
    order = np.argsort(-steps, kind="stable")[:number]
    all_same = np.concatenate([one for one, _ in same]), np.concatenate([code for _, code in same])
    return steps[order], all_same, (first[order], second[order])
