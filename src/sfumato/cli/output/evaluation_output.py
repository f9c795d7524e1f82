"""The figures of sfumato evaluate as plain data, and the notes on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.report import Evaluation


def class_figures(measured: Evaluation, classes: Sequence[str]) -> dict[str, Any]:
    """The figures of a classifier with one class for each record."""
    from sfumato.evaluation.accuracy import finite_or_none

    rows = zip(classes, range(len(classes)), measured.confusion, strict=True)
    figures = {
        "accuracy": measured.accuracy,
        "top5": measured.top5,
        "weighted_auc": measured.weighted_auc and list(measured.weighted_auc),
        "loss": finite_or_none(measured.loss),
        "images": measured.examples,
        "accuracy_per_class": {name: row[place] / sum(row) for name, place, row in rows if sum(row)},
        "accuracy_of_label_sets": None,
        "images_with_label_sets": None,
    }
    shift = largest_shift(measured.confusion, classes)
    return figures if shift is None else figures | {"shift": shift}


def notes(figures: Mapping[str, Any], *, weighted: bool) -> Iterator[str]:
    """What to know about the figures.

    Args:
        weighted: whether the model was trained for declared class shares.
    """
    if "shift" in figures and not weighted:
        yield f"note: {shift_advice(figures['shift'])}"
    if "labels" in figures:
        yield f"note: labels with a score of at least {figures['threshold']:g} are predicted; 95% intervals"
    if "words" in figures:
        yield "note: without unknown words and ends of texts; 95% interval"
    if figures["part"] != "test":
        yield "note: if the run was trained on this source, these figures include its training images"
    if not figures["public"]:
        yield "note: measured on private data without noise; no guarantee covers these figures"


def shift_advice(shift: Mapping[str, Any]) -> str:
    """What to do about a class that is predicted more or less often than it occurs."""
    return (
        f"the model predicts {shift['class']} for {shift['named']:.0%}, but {shift['true']:.0%} are; if the class "
        "shares of the training data are known, train with --class-prevalence"
    )


LEAST_SHIFT = 0.05
"""Smallest difference of shares to report."""


def largest_shift(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> dict[str, Any] | None:
    """The class whose share of the predictions (`named`) differs most from its share of the records (`true`).

    Returns None if no difference exceeds both `LEAST_SHIFT` and three standard deviations.
    The result is as private as the accuracy.

    >>> largest_shift([[40, 60], [5, 95]], ("normal", "odd"))
    {'class': 'odd', 'named': 0.775, 'true': 0.5}
    """
    total, shifts = sum(map(sum, confusion)), []
    for place, name in enumerate(classes if confusion else ()):
        true, named = sum(confusion[place]), sum(row[place] for row in confusion)
        wrong = true + named - 2 * confusion[place][place]  # McNemar 1947: only these contribute to the difference
        if abs(named - true) > max(LEAST_SHIFT * total, 3 * wrong**0.5):
            shifts.append({"class": name, "named": named / total, "true": true / total})
    return max(shifts, key=lambda one: (abs(one["named"] - one["true"]), one["named"] - one["true"]), default=None)
