"""Recall at a false accept rate: how many pairs of one class are found, if so few of two classes may be accepted.

A threshold accepts the pairs whose similarity is at least as large. Its false accept rate (FAR) is the share of those
that it accepts among pairs of different classes, its recall the share among pairs of one class (Xu et al. 2022, section
4). All pairs are compared, block by block, and only counted. Similarities are whole numbers of 24 bits, so thresholds
are found exactly by counting twice: by the upper half of the bits, and then, in the few places where a threshold lies,
by the lower half. Neither the number of pairs nor that of ties among them changes the memory that this takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, positive, positive_integer, shortened
from sfumato.evaluation.similarity import BLOCK, STEPS, Labels, blocks, checked, codes_of, in_steps, unit

FAR = 1e-3
_HALF = 12
_UPPER, _LOWER = (STEPS >> _HALF) + 1, 1 << _HALF
_DIFFERENT, _SAME = 0, 1


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """A threshold, and what it does.

    Args:
        at_far: the false accept rate that was allowed.
        far: the one that it has, at most `at_far`.
        recall: the share of pairs of one class that it accepts.
        threshold: pairs of at least this similarity are accepted. Above 1 it accepts none.
    """

    at_far: float
    far: float
    recall: float
    threshold: float


@dataclass(frozen=True, kw_only=True)
class Recall:
    """What embeddings are worth for telling whether two images show the same.

    Args:
        images: N.
        same, different: how many pairs of one class and of two classes were compared.
        minibatch: how many images were compared with each other at a time; None for all with all.
        points: by rising false accept rate.
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
    """For each false accept rate the lowest threshold that keeps to it, and its recall; exact, whatever the ties.

    Takes the memory of one block, some 10 MB, and 64 KB for each rate, beside the embeddings themselves.

    Args:
        embeddings: (N, D), of any length above 0; computed with where they lie, CPU or CUDA.
        labels: (N,).
        fars: false accept rates in (0, 1], or a single one.
        minibatch: compare only images of the same minibatch, consecutive and of so many images, as is done while
            training (Xu et al. 2022, table 3). An estimate, for images in random order.
        side: images on each side of a block; changes nothing but time and memory.

    Raises:
        SfumatoError: embeddings without direction, other labels than one for each, a rate out of range, or no pair of
            one class or none of two among those compared.

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> recall_at_far(embeddings, ["cat", "cat", "dog", "dog"], [0.25]).points[0].recall
    1.0
    """
    embeddings = checked(embeddings)
    codes = torch.from_numpy(codes_of(labels, len(embeddings))).to(embeddings.device)
    rates = sorted(_checked_rate(far) for far in ((fars,) if isinstance(fars, (int, float)) else fars))
    if minibatch is not None:
        positive_integer("minibatch", minibatch)
    positive_integer("side", side)

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        return _pairs(embeddings, codes, minibatch, side)

    coarse = _counted(((steps >> _HALF, same) for steps, same in pairs()), _UPPER, embeddings.device)
    different, same = (int(count) for count in coarse.sum(1))
    _refuse_without(same, different, len(embeddings), minibatch)
    # So many pairs of different classes may be accepted: a threshold lies above the similarity of the next one.
    ranks = [_allowed(far, different) for far in rates]
    places = [_place(coarse[_DIFFERENT], rank) if rank < different else -1 for rank in ranks]
    wanted = sorted({place for place in places if place >= 0})
    fine = _counted(_lower_halves(pairs(), wanted, embeddings.device), len(wanted) * _LOWER, embeddings.device)
    fine = fine.reshape(2, len(wanted), _LOWER)
    points = tuple(
        _point(far, rank, place, coarse, fine[:, wanted.index(place)])
        if place >= 0
        else OperatingPoint(at_far=far, far=1.0, recall=1.0, threshold=0.0)
        for far, rank, place in zip(rates, ranks, places, strict=True)
    )
    return Recall(images=len(embeddings), same=same, different=different, minibatch=minibatch, points=points)


def roc(
    embeddings: Tensor,
    labels: Labels,
    *,
    lowest: float = 1e-5,
    per_decade: int = 5,
    minibatch: int | None = None,
) -> Recall:
    """Recall at false accept rates spaced evenly on a logarithmic axis, from the lowest to 1.

    Args:
        embeddings, labels, minibatch: as `recall_at_far`.
        lowest: a power of ten, at most 0.1.
        per_decade: rates in each factor of ten.
    """
    decades = -round(math.log10(positive("lowest", lowest)))
    if decades < 1 or not math.isclose(lowest, 10.0**-decades):
        raise SfumatoError(f"lowest must be a power of ten below 1, got {lowest!r}", "give 1e-5, or 1e-6")
    number = decades * positive_integer("per_decade", per_decade)
    rates = [float(f"{10 ** (-step / per_decade):.6g}") for step in range(number + 1)]
    return recall_at_far(embeddings, labels, rates, minibatch=minibatch)


def check_disjoint(trained: Labels, tested: Labels) -> None:
    """Refuse a test of classes that the model was trained on: recall on them says little of others.

    Args:
        trained, tested: labels, or the names of classes.

    Raises:
        SfumatoError: a class stands in both.
    """
    both = np.intersect1d(np.asarray(trained), np.asarray(tested))
    if len(both):
        raise SfumatoError(
            f"{len(both):,} classes of the test were trained on: {shortened(', '.join(map(str, both[:6])))}",
            "test on classes that training did not see",
        )


def _checked_rate(far: float) -> float:
    if positive("far", far) > 1:
        raise SfumatoError(f"far must be at most 1, got {far!r}", "give a share such as 1e-3")
    return float(far)


def _allowed(far: float, different: int) -> int:
    """How many pairs of different classes may be accepted; the rate is the decimal that its owner wrote."""
    return math.floor(Fraction(repr(far)) * different)


def _point(far: float, rank: int, place: int, coarse: Tensor, fine: Tensor) -> OperatingPoint:
    """The lowest threshold above the similarity of the pair of different classes that has this rank.

    Args:
        far: allowed.
        rank: so many pairs of different classes may be accepted.
        place: the upper half of that pair's similarity.
        coarse, fine: counts by upper half, and by lower half among pairs of that upper half.
    """
    above = coarse[:, place + 1 :].sum(1)
    last = _place(fine[_DIFFERENT], rank - int(above[_DIFFERENT]))
    accepted = (above + fine[:, last + 1 :].sum(1)).double() / coarse.sum(1)
    return OperatingPoint(
        at_far=far,
        far=float(accepted[_DIFFERENT]),
        recall=float(accepted[_SAME]),
        threshold=((place << _HALF) + last + 1) / STEPS,
    )


def _refuse_without(same: int, different: int, images: int, minibatch: int | None) -> None:
    if same and different:
        return
    which = "of one class" if not same else "of different classes"
    where = f" within minibatches of {minibatch:,}" if minibatch else ""
    raise SfumatoError(
        f"no two of {images:,} images{where} are {which}",
        "give at least two images of one class, and at least two classes",
    )


def _pairs(embeddings: Tensor, codes: Tensor, minibatch: int | None, side: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Block by block, of each of its pairs: the similarity in steps, int32 (pairs,), and whether it is of one class."""
    for rows, columns in blocks(len(embeddings), within=minibatch, side=side):
        steps = in_steps(unit(embeddings[rows]) @ unit(embeddings[columns]).T)
        same = codes[rows, None] == codes[None, columns]
        if rows == columns:
            once = torch.ones_like(same).triu_(1)
            yield steps[once], same[once]
        else:
            yield steps.flatten(), same.flatten()


def _lower_halves(
    pairs: Iterator[tuple[Tensor, Tensor]], wanted: Sequence[int], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of pairs whose upper half is one of those wanted, which of them it is, followed by the lower half."""
    order = torch.full((_UPPER,), -1, dtype=torch.int32, device=device)
    order[list(wanted)] = torch.arange(len(wanted), dtype=torch.int32, device=device)
    for steps, same in pairs:
        found = order[steps >> _HALF]
        kept = found >= 0
        yield (found[kept] << _HALF) + (steps[kept] & (_LOWER - 1)), same[kept]


def _counted(pairs: Iterator[tuple[Tensor, Tensor]], values: int, device: torch.device) -> Tensor:
    """How often each value occurs: int64 (2, values), for pairs of different classes and of one."""
    counts = torch.zeros(2 * values, dtype=torch.int64, device=device)
    one = torch.ones((), dtype=torch.int64, device=device)
    for value, same in pairs:
        counts.index_add_(0, value + values * same, one.expand(len(value)))
    return counts.reshape(2, values)


def _place(counts: Tensor, rank: int) -> int:
    """The largest place such that more than `rank` lie there or above it."""
    from_above = counts.flip(0).cumsum(0)
    return len(counts) - 1 - int(torch.searchsorted(from_above, rank, right=True))
