"""Recall of pairs of one class at a given false accept rate, and its comparison before and after training.

A threshold accepts the pairs with at least this similarity. Its false accept rate (FAR) is the fraction of accepted
pairs among pairs of different classes, its recall the fraction among pairs of one class (Xu et al. 2022, section 4).
All pairs are compared, block by block, and only counted. Similarities are 24-bit integers, so two passes find the exact
thresholds: one counts by the upper half of the bits, the other by the lower half, for the few upper halves that contain
a threshold. The memory is independent of the number of pairs and of ties.

A comparison has bootstrap intervals. Pairs are not independent: images of one person are correlated, and all pairs with
one image share it. The bootstrap therefore resamples whole classes with replacement (Efron 1979; Field and Welsh 2007).
All embeddings use the same resamples, so the interval of the difference is much narrower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.evaluation.similarity import (
    BLOCK,
    STEPS,
    Labels,
    blocks,
    checked_embeddings,
    codes_of,
    normalise,
    quantise,
)

FAR = 1e-3
_HALF = 12
_UPPER, _LOWER = (STEPS >> _HALF) + 1, 1 << _HALF
_DIFFERENT, _SAME = 0, 1


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """A threshold with its false accept rate and recall.

    Args:
        at_far: the allowed false accept rate.
        far: the false accept rate of the threshold, at most `at_far`.
        recall: the fraction of accepted pairs among pairs of one class.
        threshold: pairs with at least this similarity are accepted. A threshold above 1 accepts none.
    """

    at_far: float
    far: float
    recall: float
    threshold: float


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Verification performance of embeddings: how well they tell whether two images show the same class.

    Args:
        images: N.
        same, different: number of compared pairs of one class and of two classes.
        minibatch: size of the minibatches within which images were compared; None if all were compared with all.
        points: operating points by ascending false accept rate.
    """

    images: int
    same: int
    different: int
    minibatch: int | None
    points: tuple[OperatingPoint, ...]


def recall_at_far(
    embeddings: Tensor,
    labels: Labels,
    fars: Sequence[float] | float = (FAR,),
    *,
    minibatch: int | None = None,
    side: int = BLOCK,
) -> Recall:
    """Finds, for each false accept rate, the lowest threshold that keeps to it, and its recall. Exact even with ties.

    Needs about 10 MB for one block and 64 KB for each rate, in addition to the embeddings.

    Args:
        embeddings: (N, D), of any length above 0, on the CPU or CUDA; computed on their device.
        labels: (N,).
        fars: false accept rates in (0, 1], or a single one.
        minibatch: compare only images within consecutive minibatches of this size, as during training (Xu et al. 2022,
            table 3). This is an estimate for images in random order.
        side: images on each side of a block; affects only time and memory.

    Raises:
        SfumatoError: embeddings without direction, not one label per embedding, a rate out of range, or no compared
            pair of one class, or of two classes.

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> recall_at_far(embeddings, ["cat", "cat", "dog", "dog"], [0.25]).points[0].recall
    1.0
    """
    embeddings = checked_embeddings(embeddings)
    codes = torch.from_numpy(codes_of(labels, len(embeddings))).to(embeddings.device)
    rates = sorted(map(float, (fars,) if isinstance(fars, (int, float)) else fars))
    for far in rates:
        positive(most=1, far=far, remedy="give a share such as 1e-3")
    positive_integer(optional=True, minibatch=minibatch)
    positive_integer(side=side)

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        return _pairs(embeddings, codes, minibatch, side)

    coarse = _value_counts(((steps >> _HALF, same) for steps, same in pairs()), _UPPER, embeddings.device)
    different, same = (int(count) for count in coarse.sum(1))
    if not same or not different:
        which = f"of {'different classes' if same else 'one class'}"
        where = f" within minibatches of {minibatch:,}" if minibatch else ""
        raise SfumatoError(
            f"no two of {len(embeddings):,} images{where} are {which}",
            "give at least two images of one class, and at least two classes",
        )
    # `rank` pairs of different classes may be accepted. The threshold lies above the similarity of the next one.
    ranks = [_allowed(far, different) for far in rates]
    uppers = [_place(coarse[_DIFFERENT], rank) if rank < different else -1 for rank in ranks]
    needed = sorted({upper for upper in uppers if upper >= 0})
    fine = _value_counts(_lower_halves(pairs(), needed, embeddings.device), len(needed) * _LOWER, embeddings.device)
    fine = fine.reshape(2, len(needed), _LOWER)
    points = tuple(
        _point(far, rank, upper, coarse, fine[:, needed.index(upper)])
        if upper >= 0
        else OperatingPoint(at_far=far, far=1.0, recall=1.0, threshold=0.0)
        for far, rank, upper in zip(rates, ranks, uppers, strict=True)
    )
    return Recall(images=len(embeddings), same=same, different=different, minibatch=minibatch, points=points)


def roc(
    embeddings: Tensor, labels: Labels, *, lowest: float = 1e-5, per_decade: int = 5, minibatch: int | None = None
) -> Recall:
    """Recall at log-spaced false accept rates from `lowest` to 1.

    Args:
        embeddings, labels, minibatch: as for `recall_at_far`.
        lowest: a power of ten, at most 0.1.
        per_decade: number of rates per factor of ten.
    """
    decades = -round(math.log10(positive(lowest=lowest)))
    if decades < 1 or not math.isclose(lowest, 10.0**-decades):
        raise SfumatoError(f"lowest must be a power of ten below 1, got {lowest!r}", "give 1e-5, or 1e-6")
    number = decades * positive_integer(per_decade=per_decade)
    rates = [float(f"{10 ** (-step / per_decade):.6g}") for step in range(number + 1)]
    return recall_at_far(embeddings, labels, rates, minibatch=minibatch)


def _allowed(far: float, different: int) -> int:
    """The number of pairs of different classes that may be accepted. The rate is read as a decimal, not as binary."""
    return math.floor(Fraction(repr(far)) * different)


def _point(far: float, rank: int, upper: int, coarse: Tensor, fine: Tensor) -> OperatingPoint:
    """The lowest threshold above the similarity of the pair of different classes with this rank.

    Args:
        far: the allowed false accept rate.
        rank: the number of pairs of different classes that may be accepted.
        upper: the upper half of that pair's similarity.
        coarse, fine: counts by upper half, and by lower half among pairs with that upper half.
    """
    above = coarse[:, upper + 1 :].sum(1)
    last = _place(fine[_DIFFERENT], rank - int(above[_DIFFERENT]))
    accepted = (above + fine[:, last + 1 :].sum(1)).double() / coarse.sum(1)
    return OperatingPoint(
        at_far=far,
        far=float(accepted[_DIFFERENT]),
        recall=float(accepted[_SAME]),
        threshold=((upper << _HALF) + last + 1) / STEPS,
    )


def _pairs(embeddings: Tensor, codes: Tensor, minibatch: int | None, side: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields, for each block, the similarities in steps, int32 (pairs,), and whether each pair is of one class."""
    for rows, columns in blocks(len(embeddings), within=minibatch, side=side):
        steps = quantise(normalise(embeddings[rows]) @ normalise(embeddings[columns]).T)
        same = codes[rows, None] == codes[None, columns]
        if rows == columns:
            upper_triangle = torch.ones_like(same).triu_(1)
            yield steps[upper_triangle], same[upper_triangle]
        else:
            yield steps.flatten(), same.flatten()


def _lower_halves(
    pairs: Iterator[tuple[Tensor, Tensor]], uppers: Sequence[int], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Selects the pairs with one of these upper halves, and replaces the upper half by its index in `uppers`."""
    order = torch.full((_UPPER,), -1, dtype=torch.int32, device=device)
    order[list(uppers)] = torch.arange(len(uppers), dtype=torch.int32, device=device)
    for steps, same in pairs:
        index = order[steps >> _HALF]
        selected = index >= 0
        yield (index[selected] << _HALF) + (steps[selected] & (_LOWER - 1)), same[selected]


def _value_counts(pairs: Iterator[tuple[Tensor, Tensor]], values: int, device: torch.device) -> Tensor:
    """Counts how often each value occurs: int64 (2, values), for pairs of different classes and of one class."""
    counts = torch.zeros(2 * values, dtype=torch.int64, device=device)
    increment = torch.ones((), dtype=torch.int64, device=device)
    for value, same in pairs:
        counts.index_add_(0, value + values * same, increment.expand(len(value)))
    return counts.reshape(2, values)


def _place(counts: Tensor, rank: int) -> int:
    """The largest index with more than `rank` counts at or above it."""
    from_above = counts.flip(0).cumsum(0)
    return len(counts) - 1 - int(torch.searchsorted(from_above, rank, right=True))


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
    classes = int(codes.max()) + 1
    # How often each class occurs in each resample, int64 (REPLICATES, classes).
    resamples = np.random.default_rng(0).multinomial(classes, np.full(classes, 1 / classes), size=REPLICATES)
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


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The ends of the 95% interval."""
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, (2.5, 97.5)) if len(finite) else (math.nan, math.nan)
    return float(low), float(high)


def _replicates(embeddings: Tensor, codes: np.ndarray, far: float, resamples: np.ndarray) -> np.ndarray:
    """The recall in each resample, (REPLICATES,); NaN without pairs of one class."""
    steps, same, (first, second) = _deciding_pairs(embeddings, codes, far)
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


def _deciding_pairs(
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
        row_codes, column_codes = codes[rows][row[top].numpy()], codes[start:][column[top].numpy()]
        different.append((values[top].numpy(), row_codes, column_codes))
    steps, first, second = (np.concatenate(column) for column in zip(*different, strict=True))
    order = np.argsort(-steps, kind="stable")[:number]
    all_same = np.concatenate([similarities for similarities, _ in same]), np.concatenate([code for _, code in same])
    return steps[order], all_same, (first[order], second[order])
