"""The figure that a reader looks for first, and what it has to be compared with."""

from __future__ import annotations

from typing import Any

from sfumato.report.sections.classes import wilson
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.facts import Evaluation, Published
from sfumato.report.sections.multilabel import MultilabelEvaluation
from sfumato.report.sections.numbers import percent
from sfumato.report.sections.result import what_was_tested


def headline(evaluation: Evaluation | MultilabelEvaluation | EmbeddingEvaluation | None) -> dict[str, Any] | None:
    """The figure that a reader looks for first, and what it has to be compared with."""
    if isinstance(evaluation, EmbeddingEvaluation):
        figures = evaluation.presented()
        return {
            "name": f"recall at a false accept rate of {figures['far']}",
            "value": figures["recall"],
            "lines": [f"{figures['same']} pairs of test images that show the same class"],
            "track": None,
            "with_noise": False,
        }
    if isinstance(evaluation, MultilabelEvaluation):
        track = _track(*evaluation.accuracy, evaluation.baseline)
        return evaluation.headline() | {"track": track, "with_noise": False}
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
        "track": _track(evaluation.accuracy, low, high, chance, majority),
        "with_noise": False,
    }


def published_headline(found: Published | None) -> dict[str, Any] | None:
    """The same of a page whose exact figures are left out: with the noise by which it may be published."""
    accuracy, low, high = (None, 0.0, 1.0) if found is None else found.accuracy
    if found is None or accuracy is None:
        return None
    records, chance = max(0.0, found.records[0] or 0.0), 1 / max(1, len(found.per_class))
    return {
        "name": "accuracy",
        "value": percent(accuracy),
        "lines": [
            f"95% interval {percent(low)} to {percent(high)}, from about {records:,.0f} test images, with noise that "
            f"is worth epsilon {found.epsilon:g}",
            f"by chance {percent(chance)}"
            + ("" if found.majority is None else f"; always the most frequent class about {percent(found.majority)}"),
        ],
        "track": _track(accuracy, low, high, chance, *([] if found.majority is None else [found.majority])),
        "with_noise": True,
    }


def _track(value: float, low: float, high: float, *marks: float) -> dict[str, Any]:
    """A share as a bar, with its interval and marks of what it has to be compared with."""
    return {
        "width": f"{100 * value:.2f}",
        "low": f"{100 * low:.2f}",
        "spread": f"{100 * (high - low):.2f}",
        "marks": [f"{100 * mark:.2f}" for mark in marks],
    }
