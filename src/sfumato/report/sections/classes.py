"""Accuracy by class, from a confusion matrix. All functions are pure functions of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.report.sections.facts import Evaluation

ENOUGH = 10
"""The least number of test images for judging a class. With fewer, Wilson's interval spans 29 points or more."""


def wilson(correct: float, examples: int) -> tuple[float, float]:
    """Wilson's 95% interval for a proportion (Wilson 1927); (0, 1) without examples.

    >>> [f"{end:.3f}" for end in wilson(90, 100)]
    ['0.826', '0.945']
    """
    if not examples:
        return 0.0, 1.0
    z, share = 1.959964, correct / examples
    centre = share + z**2 / (2 * examples)
    spread = z * math.sqrt(share * (1 - share) / examples + (z / (2 * examples)) ** 2)
    scale = 1 + z**2 / examples
    low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
    return low if correct else 0.0, high if correct < examples else 1.0  # there exactly, without a rounding error


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """The number of correctly classified test images of one class. `examples` may be zero."""

    name: str
    correct: int
    examples: int

    @property
    def accuracy(self) -> float:
        """The share of correctly classified images, between 0 and 1; zero for a class without test images."""
        return self.correct / self.examples if self.examples else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval for the class's accuracy."""
        return wilson(self.correct, self.examples)

    @property
    def enough(self) -> bool:
        """Whether there are enough images to judge the class by itself."""
        return self.examples >= ENOUGH


@dataclass(frozen=True, kw_only=True)
class ConfusedPair:
    """Two classes that were confused: `count` of the `examples` test images of `truth` were classified as
    `prediction`."""

    truth: str
    prediction: str
    count: int
    examples: int


def class_scores(evaluation: Evaluation) -> list[ClassScore]:
    """The score of each class that has test images, the lowest accuracy first. Ties stay in the order of the classes.

    >>> both = class_scores(Evaluation(accuracy=0.75, loss=1, classes=["cat", "dog"], confusion=[[2, 0], [1, 1]]))
    >>> [(score.name, score.accuracy) for score in both]
    [('dog', 0.5), ('cat', 1.0)]
    """
    scores = (
        ClassScore(name=str(name), correct=int(row[index]), examples=int(sum(row)))
        for index, (name, row) in enumerate(zip(evaluation.classes, evaluation.confusion, strict=True))
    )
    return sorted((score for score in scores if score.examples), key=lambda score: score.accuracy)


def worst(scores: Sequence[ClassScore]) -> list[ClassScore]:
    """The classes with the lowest accuracy among those with enough test images; empty if all have the same accuracy."""
    known = [score for score in scores if score.enough]
    if not known or known[0].accuracy == known[-1].accuracy:
        return []
    return [score for score in known if score.accuracy == known[0].accuracy]


def confused_pairs(evaluation: Evaluation, most: int = 10) -> list[ConfusedPair]:
    """The pairs of classes that are confused most often, by count. Ties stay in the order of the classes.

    >>> confused_pairs(Evaluation(accuracy=0.75, loss=1, classes=["cat", "dog"], confusion=[[2, 0], [1, 1]]))
    [ConfusedPair(truth='dog', prediction='cat', count=1, examples=2)]
    """
    mistakes = sorted(
        (-count, row, column)
        for row, counts in enumerate(evaluation.confusion)
        for column, count in enumerate(counts)
        if row != column and count
    )
    return [
        ConfusedPair(
            truth=str(evaluation.classes[row]),
            prediction=str(evaluation.classes[column]),
            count=int(-negative),
            examples=int(sum(evaluation.confusion[row])),
        )
        for negative, row, column in mistakes[:most]
    ]
