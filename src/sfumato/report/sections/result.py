"""The results on the test part: the main figure, those of all classes and of each, samples, and learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sfumato.privacy.planning.remarks import counted
from sfumato.report.plots.curves import curve, heat_map
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.facts import Evaluation, MultilabelEvaluation, WordEvaluation
from sfumato.report.sections.numbers import percent, significant
from sfumato.report.sections.published import NoisyFigures

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


_MOST_BARS = 40
_LOWEST_BARS = 20
_MOST_NUMBERED = 40
AVERAGES = {
    "last": "the last weights, each by itself",
    "upa": "mean of {} weights (UPA)",
    "opa": "mean of what {} models say (OPA)",
    "omv": "majority of {} models (OMV)",
}
_LONGEST_TEXT = 300
_UNFAIR = (
    "Private training can be unfair to small groups: clipping and noise cost groups most that are small or look "
    "different. Check the classes that matter to you before you rely on the average."
)


def result(evaluation: Evaluation, promised: bool) -> dict[str, Any]:
    """The values of the result section, for the page's template."""
    scores = class_scores(evaluation)
    lowest = worst(scores)
    classes = len(evaluation.classes)
    what = what_was_tested(evaluation)
    many = classes > _MOST_NUMBERED
    known, few = [score for score in scores if score.enough], [score for score in scores if not score.enough]
    bars = known if len(known) <= _MOST_BARS else known[:_LOWEST_BARS]
    return {
        "of": evaluation,
        "interval": wilson(evaluation.correct, evaluation.examples),
        "untested": classes - len(scores),
        "fairness": f"{_fairness(scores, evaluation.accuracy, what)} {_UNFAIR if promised else ''}".rstrip(),
        "unlearnt": counted(evaluation.unlearnt, f"training {what}"),
        "bars": bars,
        "lowest": lowest,
        "few": few,
        "most_few": _LOWEST_BARS,
        "enough": ENOUGH,
        "bars_left_out": len(known) - len(bars),
        "median": known[len(known) // 2].accuracy if known else None,
        "matrix": None if many else _matrix(evaluation),
        "heat_map": Markup(heat_map(evaluation.confusion)) if many else None,
        "pairs": confused_pairs(evaluation) if many else [],
        "samples": [
            drawn | dict(zip(("record", "truth", "prediction", "score"), sample, strict=True))
            for sample, drawn in zip(evaluation.samples, _intervals(evaluation), strict=True)
        ],
        "what": what,
        "longest": _LONGEST_TEXT,
    }


def what_was_tested(evaluation: Evaluation) -> str:
    """The kind of test record: "text" or "image"."""
    return "text" if any(isinstance(sample, str) for sample, *_ in evaluation.samples) else "image"


def _intervals(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The text and the position of each sample's interval, in percent of the range of all intervals."""
    found = evaluation.over_steps.intervals if evaluation.over_steps else ()
    if not found or not all(math.isfinite(end) for interval in found for end in interval):
        return [{"interval": ""} for _ in evaluation.samples]
    least, most = min(low for low, *_ in found), max(high for _, high, _ in found)
    scale = 100 / (most - least or 1)
    return [
        {
            "interval": f"{low:.1f} to {high:.1f}",
            "begin": f"{scale * (low - least):.1f}",
            "width": f"{scale * (high - low):.1f}",
            "middle": f"{scale * (mean - least):.1f}",
        }
        for low, high, mean in found
    ]


def _fairness(scores: Sequence[ClassScore], accuracy: float, what: str) -> str:
    lowest = worst(scores)
    if not any(score.enough for score in scores):
        return f"No class has {ENOUGH} test {what}s or more: too few to compare classes."
    if not lowest:
        return "No class stands out in this test."
    first = lowest[0]
    if len(lowest) == 1:
        low, high = first.interval
        return (
            f"The worst class is “{first.name}”: {percent(first.accuracy)} of its {first.examples:,} test {what}s were "
            f"classified correctly, against "
            f"{percent(accuracy)} over all classes. From so many {what}s, its true accuracy lies between "
            f"{percent(low)} and {percent(high)} with 95% confidence."
        )
    names = [f"“{score.name}”" for score in lowest[:3]]
    if len(lowest) > 3:
        names.append(f"{len(lowest) - 3:,} more")
    return (
        f"The worst classes are {', '.join(names[:-1])} and {names[-1]}: {percent(first.accuracy)} of the test "
        f"{what}s of each were classified correctly, against {percent(accuracy)} over all classes."
    )


def _matrix(evaluation: Evaluation) -> list[tuple[str, list[tuple[int, int, bool]]]]:
    """Rows of (true class, cells), with cells (count, shade, whether it lies on the diagonal). The shade goes from 0 to
    10 by the count's share of its row."""
    rows = []
    for index, (name, counts) in enumerate(zip(evaluation.classes, evaluation.confusion, strict=True)):
        total = max(1, sum(counts))
        cells = [(int(count), -(-10 * int(count) // total), column == index) for column, count in enumerate(counts)]
        rows.append((str(name), cells))
    return rows


def headline(
    evaluation: Evaluation | MultilabelEvaluation | WordEvaluation | EmbeddingEvaluation | None,
) -> dict[str, Any] | None:
    """The main figure, and the baselines for comparison."""
    if isinstance(evaluation, EmbeddingEvaluation):
        return {
            "name": f"recall at a false accept rate of {significant(evaluation.far)}",
            "value": percent(evaluation.recall),
            "lines": [
                *filter(None, [evaluation.warning]),
                *(f"{words} {value} (95% interval {between})" for words, value, between in evaluation.rows),
                f"{evaluation.pairs_of_one_class:,} pairs of test images that show the same class",
            ],
            "track": None,
        }
    if isinstance(evaluation, (WordEvaluation, MultilabelEvaluation)):
        return evaluation.headline()
    if evaluation is None or not evaluation.examples:
        return None
    low, high = wilson(evaluation.correct, evaluation.examples)
    chance, majority, what = evaluation.chance, evaluation.majority, what_was_tested(evaluation)
    return {
        "name": "accuracy",
        "value": percent(evaluation.accuracy),
        "lines": [
            f"95% interval {percent(low)} to {percent(high)}, from {evaluation.examples:,} test {what}s",
            f"by chance {percent(chance)}; always the most frequent class {percent(majority)}",
        ],
        "track": (evaluation.accuracy, low, high, chance, majority),
    }


def published_headline(found: NoisyFigures | None) -> dict[str, Any] | None:
    """The main figure of a page without exact figures: the noisy one that may be published."""
    accuracy, low, high = (None, 0.0, 1.0) if found is None else found.accuracy
    if found is None or accuracy is None:
        return None
    records, chance = max(0.0, found.records[0] or 0.0), 1 / max(1, len(found.per_class))
    return {
        "name": "accuracy",
        "value": percent(accuracy),
        "lines": [
            f"95% interval {percent(low)} to {percent(high)}, from about {records:,.0f} test images, with noise that "
            f"is worth epsilon {found.table.epsilon:g}",
            f"by chance {percent(chance)}"
            + ("" if found.majority is None else f"; always the most frequent class about {percent(found.majority)}"),
        ],
        "track": (accuracy, low, high, chance, *([] if found.majority is None else [found.majority])),
        "with_noise": True,
    }


_MOST_ROWS = 12


def learning_curves(metrics: Sequence[Mapping[str, Any]], evaluation: Evaluation | None) -> dict[str, Any] | None:
    """The values of the section, for the page's template; None without any figure."""
    levels = {} if evaluation is None else {"chance": evaluation.chance, "most frequent class": evaluation.majority}
    rows = sorted(metrics, key=lambda row: int(row["step"]))
    # Markup is safe here: the plots contain numbers and fixed texts, never a name from the data.
    plots = [
        (heading, Markup(svg))
        for heading, svg in ((name.capitalize(), curve(rows, name, levels)) for name in ("accuracy", "recall", "loss"))
        if svg
    ]
    if not plots:
        return None
    columns = [
        name for name in ("epsilon", "accuracy", "recall", "loss") if any(row.get(name) is not None for row in rows)
    ]
    measured = [row for row in rows if any(row.get(name) is not None for name in ("accuracy", "recall", "loss"))]
    stride = (len(measured) - 1) / (_MOST_ROWS - 1)
    chosen = measured if stride <= 1 else [measured[round(index * stride)] for index in range(_MOST_ROWS)]
    return {
        "plots": plots,
        "columns": columns,
        "heads": [f">{name}" for name in ("step", *columns)],
        "rows": chosen,
        "thinned": len(chosen) < len(measured),
    }
