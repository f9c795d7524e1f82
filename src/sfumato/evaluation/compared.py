"""Embeddings beside what they began at: recall at a false accept rate of each, with intervals, and the difference.

Images of one person are alike in more than one way, and all pairs of one image share it, so pairs are no independent
draws. Whole classes are drawn anew instead, with replacement (Efron 1979; Field and Welsh 2007), the same ones for all
that is compared: then the difference has an interval of its own, which is much the narrower.
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
from sfumato.evaluation.similarity import BLOCK, Labels, checked, codes_of, in_steps, unit

PIXELS, BEGINNING, RESULT = "pixels", "beginning", "result"
"""What a run compares."""
REPLICATES = 400
_FURTHER, _LEAST = 20, 5000
"""So many times as many pairs of two classes as may be accepted are looked at, and at least so many: in some draws of
classes more of the most similar ones have no weight."""


def compared(embeddings: Mapping[str, Tensor], labels: Labels, *, far: float) -> dict[str, Any]:
    """Recall of several embeddings of the same images, JSON-ready; without noise.

    Args:
        embeddings: by name, "beginning" and "result" among them, each (N, D), of any length above 0. The similarities
            of a block of images with all others are held in memory, and the largest of them.
        labels: (N,).
        far: the false accept rate.

    Returns:
        "images", N; of each name (recall, low, high), with ends of the 95% interval; and "gain", likewise that of the
        result less that of its beginning. What has no direction for some image has no recall: its entry is None.
    """
    codes = codes_of(labels, len(next(iter(embeddings.values()))))
    drawn = _drawn(int(codes.max()) + 1)
    found: dict[str, Any] = {"images": len(codes)}
    replicates: dict[str, np.ndarray] = {}
    for name, vectors in embeddings.items():
        try:
            recall = recall_at_far(vectors, labels, [far]).points[0].recall
        except SfumatoError:
            found[name] = None
            continue
        replicates[name] = _replicates(checked(vectors), codes, far, drawn)
        found[name] = [recall, *_ends(replicates[name])]
    found["gain"] = None
    if RESULT in replicates and BEGINNING in replicates:
        difference = found[RESULT][0] - found[BEGINNING][0]
        found["gain"] = [difference, *_ends(replicates[RESULT] - replicates[BEGINNING])]
    return found


def _drawn(classes: int) -> np.ndarray:
    """How often each class is drawn, int64 (REPLICATES, classes)."""
    generator = np.random.default_rng(0)
    return generator.multinomial(classes, np.full(classes, 1 / classes), size=REPLICATES)


def _ends(values: np.ndarray) -> tuple[float, float]:
    """Ends of the 95% interval."""
    known = values[np.isfinite(values)]
    low, high = np.percentile(known, (2.5, 97.5)) if len(known) else (math.nan, math.nan)
    return float(low), float(high)


def _replicates(embeddings: Tensor, codes: np.ndarray, far: float, drawn: np.ndarray) -> np.ndarray:
    """Recall where each class counts as often as it is drawn, (REPLICATES,); nan where no pair is left."""
    steps, own, (first, second) = _pairs(embeddings, codes, far)
    counts = np.bincount(codes)
    pairs = np.bincount(own[1], minlength=len(counts))
    by_rank = np.argsort(-own[0], kind="stable")
    similar, classes = own[0][by_rank], own[1][by_rank]
    found = np.full(len(drawn), np.nan)
    for number, weights in enumerate(drawn):
        images = weights * counts
        allowed = far * (images.sum() ** 2 - (images**2).sum()) / 2
        all_same = (weights * pairs).sum()
        if not all_same:
            continue
        above = np.cumsum(weights[first] * weights[second])
        place = int(np.searchsorted(above, allowed, side="right"))
        accepted = similar > steps[min(place, len(steps) - 1)] if len(steps) else np.ones(len(similar), bool)
        found[number] = weights[classes[accepted]].sum() / all_same
    return found


def _pairs(
    embeddings: Tensor, codes: np.ndarray, far: float
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Pairs of two classes, the most similar ones first: similarity in steps, and their classes; and between the two,
    of all pairs of one class, similarity and class."""
    vectors, held = unit(embeddings), torch.from_numpy(codes)
    same: list[tuple[np.ndarray, np.ndarray]] = []
    different: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    total = (len(codes) ** 2 - int((np.bincount(codes) ** 2).sum())) // 2
    wanted = min(total, _LEAST + math.ceil(_FURTHER * far * total))
    for start in range(0, len(codes), BLOCK):
        rows = slice(start, start + BLOCK)
        block = in_steps(vectors[rows] @ vectors[start:].T).cpu()
        later = torch.ones_like(block, dtype=torch.bool).triu_(1)
        equal = held[rows, None] == held[None, start:]
        row, column = (later & equal).nonzero(as_tuple=True)
        same.append((block[row, column].numpy(), codes[rows][row.numpy()]))
        row, column = (later & ~equal).nonzero(as_tuple=True)
        values = block[row, column]
        kept = values.topk(min(wanted, len(values))).indices
        one, other = codes[rows][row[kept].numpy()], codes[start:][column[kept].numpy()]
        different.append((values[kept].numpy(), one, other))
    steps, first, second = (np.concatenate(column) for column in zip(*different, strict=True))
    order = np.argsort(-steps, kind="stable")[:wanted]
    own = np.concatenate([one for one, _ in same]), np.concatenate([classes for _, classes in same])
    return steps[order], own, (first[order], second[order])
