"""The output of sfumato evaluate, as plain data and as rows of text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from sfumato.cli.output.console import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfumato.data import Source
    from sfumato.evaluation.diagnostic import Diagnostic
    from sfumato.evaluation.groups import GroupScore
    from sfumato.report import Evaluation, LabelScore, MultilabelEvaluation, WordEvaluation
    from sfumato.runs.reading import Reading

AREA = "{weighted_auc[0]:.4f} ({weighted_auc[1]:.4f} to {weighted_auc[2]:.4f})"
CLASS_FACTS = {
    "accuracy": "{accuracy:.2%} of {images} {what} ({of})",
    "top five": "{top5:.2%}",
    "weighted area under ROC": AREA,
    "label sets": "{accuracy_of_label_sets:.2%} of {images_with_label_sets} images with a set",
    "loss": "{loss:.4f}",
}
LABEL_FACTS = {
    "accuracy of labels": "{accuracy:.2%} ({interval[0]:.2%} to {interval[1]:.2%}) of {images} x {count}",
    "  always the more frequent answer": "{baseline:.2%}",
    "exact match": "{exact_match[0]:.2%} ({exact_match[1]:.2%} to {exact_match[2]:.2%}) of {images} images ({of})",
    "mean area under ROC": "{mean_auc:.4f}",
    "weighted area under ROC": AREA,
    "loss": "{loss:.4f}",
}
WORD_FACTS = {
    "accuracy": "{accuracy:.2%} ({interval[0]:.2%} to {interval[1]:.2%}) of {words:,} next words in {tested} ({of})",
    "  with unknown words and ends": "{accuracy_of_all:.2%} of {all_words:,}",
    "  by the most frequent word": "{majority:.2%}",
    "top five": "{top5:.2%}",
    "loss": "{loss:.4f} (perplexity {perplexity:.1f})",
}
EMBEDDING_FACTS = {
    "recall": "{recall:.2%} at a false accept rate of {far:g} ({of})",
    "threshold": "similarity {threshold:.4f}",
    "pairs": "{pairs_of_one_class:,} pairs of one class, {pairs_of_two_classes:,} of two, of {images:,} images",
}
PARTS = {"test": "test part", "train": "training part", "all": "both parts"}
TRAINED_ON = "note: if the run was trained on this source, these figures include its training images"
PRIVATE = "note: measured on private data without noise; no guarantee covers these figures"


class Measured(NamedTuple):
    """Figures on a part of a source."""

    data: dict[str, Any]
    facts: Facts
    notes: tuple[str, ...] = ()

    def with_shift(self, reading: Reading) -> Measured:
        """Add how the scores were shifted. If the shares in training are known, drop the notes that advise them."""
        notes = tuple(f"note: {words}" for words in reading.notes)
        kept = self.notes if reading.shares is None else ()
        return self._replace(data=self.data | reading.as_data, notes=(*kept, *notes))

    def with_groups(self, groups: Sequence[GroupScore]) -> Measured:
        """Add the figures of each group, if they were requested."""
        from sfumato.evaluation.groups import smallest_group
        from sfumato.report.sections.numbers import estimate

        if not groups:
            return self
        rows = [
            (
                f"group {one.name}",
                f"accuracy {estimate(one.accuracy)} of {one.records:,}, weighted area under ROC {estimate(one.auc)}, "
                f"calibration error {estimate(one.calibration_error)}",
            )
            for one in groups
        ]
        return self._replace(
            data=self.data | {"groups": [asdict(one) for one in groups]},
            facts=self.facts._replace(more=[*self.facts.more, *rows]),
            notes=(*self.notes, f"note: {smallest_group(groups)}"),
        )

    def with_test(self, positive: str | None, test: Diagnostic | None) -> Measured:
        """Add the figures of a test for one class, if they were requested."""
        if test is None:
            return self
        data = self.data | {"test": {"positive": positive, **test.to_dict()}}
        return self._replace(
            data=data, facts=self.facts._replace(more=[*self.facts.more, *_rows_of_test(test, str(positive))])
        )

    def remarks(self) -> list[str]:
        """The notes on the figures, such as that they include training images or that no promise covers them."""
        trained_on = [TRAINED_ON] if self.data["part"] != "test" else []
        return [*self.notes, *trained_on, *([] if self.data["public"] else [PRIVATE])]


def class_figures(
    found: Evaluation, classes: Sequence[str], source: Source, part: str, set_accuracy: tuple[float, int] | None
) -> Measured:
    """The figures of a classifier with one class for each record.

    Args:
        set_accuracy: the accuracy by sets of correct labels, and the number of records that have a set.
    """
    from sfumato.evaluation.accuracy import finite_or_none

    counts = [
        (name, row[place], sum(row)) for place, (name, row) in enumerate(zip(classes, found.confusion, strict=True))
    ]
    shares = {name: right / count for name, right, count in counts if count}
    share, with_set = set_accuracy or (None, None)
    data = {
        "accuracy": found.accuracy,
        "top5": found.top5,
        "weighted_auc": found.weighted_auc and list(found.weighted_auc),
        "loss": finite_or_none(found.loss),
        "images": found.examples,
        "part": part,
        "accuracy_per_class": shares,
        "accuracy_of_label_sets": share,
        "images_with_label_sets": with_set,
        "public": source.public,
    }
    words = {"of": PARTS[part], "what": "images" if source.tokens is None else "texts"}
    facts = Facts(data | words, CLASS_FACTS, [(f"  {name}", f"{share:.2%}") for name, share in shares.items()])
    shift = largest_shift(found.confusion, classes)
    return Measured(
        data | ({} if shift is None else {"shift": shift.data}),
        facts,
        () if shift is None else (f"note: {shift.advice}",),
    )


class Shift(NamedTuple):
    """A class that a model predicts more or less often than it occurs. As private as the accuracy, since it is exact.

    Args:
        name: the class.
        named: its share of the predictions.
        true: its share of the records.
    """

    name: str
    named: float
    true: float

    @property
    def data(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {"class": self.name, "named": self.named, "true": self.true}

    @property
    def advice(self) -> str:
        """What to do about it."""
        return (
            f"the model predicts {self.name} for {self.named:.0%}, but {self.true:.0%} are; if the class shares of the "
            "training data are known, train with --class-prevalence"
        )


LEAST_SHIFT = 0.05
"""Smallest difference of shares to report."""


def largest_shift(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Shift | None:
    """The class whose share of the predictions differs most from its share of the records.

    Returns None if no difference exceeds both `LEAST_SHIFT` and three standard deviations.

    >>> largest_shift([[40, 60], [5, 95]], ("normal", "odd"))
    Shift(name='odd', named=0.775, true=0.5)
    """
    total, found = sum(map(sum, confusion)), []
    for place, name in enumerate(classes if confusion else ()):
        true, named = sum(confusion[place]), sum(row[place] for row in confusion)
        wrong = true + named - 2 * confusion[place][place]  # McNemar 1947: only these contribute to the difference
        if abs(named - true) > max(LEAST_SHIFT * total, 3 * wrong**0.5):
            found.append(Shift(name, named / total, true / total))
    return max(found, key=lambda one: (abs(one.named - one.true), one.named - one.true), default=None)


def label_figures(found: MultilabelEvaluation, source: Source, part: str, threshold: float) -> Measured:
    """The figures of a multilabel model, for each label."""
    data = found.to_dict() | {"images": found.examples, "part": part, "public": source.public}
    words = {"of": PARTS[part], "count": len(found.labels), "baseline": found.baseline, "interval": found.accuracy[1:]}
    facts = Facts(data | words, LABEL_FACTS, [(f"  {one.name}", _label_text(one)) for one in found.labels])
    note = f"note: labels with a score of at least {threshold:g} are predicted; 95% intervals"
    return Measured(data, facts, (note,))


def word_figures(found: WordEvaluation, source: Source, part: str) -> Measured:
    """The figures of next-word prediction."""
    data = found.to_dict() | {"images": found.texts, "part": part, "public": source.public}
    words = {"of": PARTS[part], "tested": found.tested, "interval": found.accuracy[1:], "perplexity": found.perplexity}
    note = "note: without unknown words and ends of texts; 95% interval"
    return Measured(data, Facts(data | words, WORD_FACTS), (note,))


def embedding_figures(found: dict[str, Any], source: Source, part: str) -> Measured:
    """Recall at a false accept rate, and how often one of the nearest neighbours has the same class."""
    nearest = [
        (f"nearest {k}", f"{share:.2%} have a neighbour of their class") for k, share in found["retrieval"].items()
    ]
    facts = Facts(found | {"of": PARTS[part]}, EMBEDDING_FACTS, nearest)
    return Measured(found | {"part": part, "public": source.public}, facts)


def _interval(found: tuple[float, float, float]) -> str:
    return f"{found[0]:.2%} ({found[1]:.2%} to {found[2]:.2%})"


def _label_text(score: LabelScore) -> str:
    """The figures of one label."""
    area = "unknown" if score.auc is None else "{:.4f} ({:.4f} to {:.4f})".format(*score.auc)
    shares = {"sensitivity": score.sensitivity, "specificity": score.specificity}
    figures = (f"{name} {'unknown' if share is None else _interval(share)}" for name, share in shares.items())
    return "; ".join(
        [f"area under ROC {area}", *figures, f"{score.positives} of {score.positives + score.negatives} images"]
    )


def _rows_of_test(test: Diagnostic, positive: str) -> list[tuple[str, str]]:
    """The figures of a test for one class."""
    rows = [
        (f"test for {positive}", f"{test.positives} positives, {test.negatives} negatives; 95% intervals"),
        ("  area under ROC", f"{test.auc.value:.4f} ({test.auc.low:.4f} to {test.auc.high:.4f})"),
        ("  sensitivity", f"{_interval(test.sensitivity)}, at the threshold {test.threshold:g}"),
        ("  specificity", _interval(test.specificity)),
    ]
    if test.positive_value is not None and test.negative_value is not None:
        where = f"at a prevalence of {test.prevalence:g}"
        rows += [
            ("  positive predictive value", f"{_interval(test.positive_value)}, {where}"),
            ("  negative predictive value", f"{_interval(test.negative_value)}, {where}"),
        ]
    return rows
