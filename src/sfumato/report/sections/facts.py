"""The contents of a report, as plain data without tensors or paths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError
from sfumato.report.sections.audit import Attack, Audit
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.numbers import percent
from sfumato.report.sections.published import NoisyFigures


class FigureInterval(NamedTuple):
    """A figure and the ends of its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """The figures of one label.

    Attributes:
        name: the name of the label.
        positives, negatives: the number of test images with the label, and without it.
        auc: the area under its ROC curve; None if all images have the label, or none has.
        sensitivity: the share of the positives with a score of at least the threshold; None without positives.
        specificity: the share of the negatives with a score below the threshold; None without negatives.
    """

    name: str
    positives: int
    negatives: int
    auc: FigureInterval | None
    sensitivity: FigureInterval | None
    specificity: FigureInterval | None


@dataclass(frozen=True, kw_only=True)
class MultilabelEvaluation:
    """The results of a multilabel classifier on the test split. An image may have none, one or many of the labels.

    Attributes:
        accuracy: the share of correct decisions, one decision per label and test image, between 0 and 1.
        exact_match: the share of test images with a correct decision on every label.
        loss: the mean over test images of the sum over labels of the binary cross-entropy, in nats.
        threshold: the least score of a positive decision.
        labels: the figures of each label.
        weighted_auc: the mean AUC of the labels, weighted by their test images; None if none has one.

    The intervals of `accuracy` and `exact_match` treat images as the independent units, since the decisions about one
    image are dependent.
    """

    accuracy: FigureInterval
    exact_match: FigureInterval
    loss: float
    threshold: float
    labels: Sequence[LabelScore]
    weighted_auc: FigureInterval | None = None

    @property
    def examples(self) -> int:
        """The number of test images."""
        return self.labels[0].positives + self.labels[0].negatives

    @property
    def baseline(self) -> float:
        """The accuracy of always giving the more frequent answer for each label."""
        return sum(max(one.positives, one.negatives) for one in self.labels) / (len(self.labels) * self.examples)

    @property
    def mean_auc(self) -> float | None:
        """The mean AUC over the labels that have one; None if none has."""
        known = [one.auc.value for one in self.labels if one.auc is not None]
        return sum(known) / len(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data that `from_dict` reads back. Its `accuracy` is a number, as for any classifier."""
        return {
            "accuracy": self.accuracy.value,
            "accuracy_interval": list(self.accuracy[1:]),
            "exact_match": list(self.exact_match),
            "mean_auc": self.mean_auc,
            "weighted_auc": None if self.weighted_auc is None else list(self.weighted_auc),
            "top5": None,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "threshold": self.threshold,
            "labels": [asdict(one) for one in self.labels],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MultilabelEvaluation:
        """The evaluation from a run's file."""
        intervals = ("auc", "sensitivity", "specificity")
        labels = [
            LabelScore(**row | {name: None if row[name] is None else FigureInterval(*row[name]) for name in intervals})
            for row in data["labels"]
        ]
        return cls(
            accuracy=FigureInterval(data["accuracy"], *data["accuracy_interval"]),
            exact_match=FigureInterval(*data["exact_match"]),
            loss=math.nan if data["loss"] is None else data["loss"],
            threshold=data["threshold"],
            labels=labels,
            weighted_auc=None if (area := data.get("weighted_auc")) is None else FigureInterval(*area),
        )

    def headline(self) -> dict[str, Any]:
        """The main figure of a page: the share of correct decisions, and its baseline."""
        value, low, high = self.accuracy
        area = "" if self.mean_auc is None else f"; mean area under the ROC curve {self.mean_auc:.3f}"
        return {
            "name": f"right decisions about {len(self.labels)} labels",
            "value": percent(value),
            "lines": [
                f"95% interval {percent(low)} to {percent(high)}, from {self.examples:,} test images{area}",
                f"always the more frequent answer {percent(self.baseline)}",
            ],
            "track": (*self.accuracy, self.baseline),
        }


@dataclass(frozen=True, kw_only=True)
class WordEvaluation:
    """The results of next-word prediction on the test split.

    Attributes:
        accuracy: the share of correctly predicted words, without padding, unknown words and ends of texts.
        top5: the share of these words that are among the five likeliest.
        loss: the mean cross-entropy over all words, unknown words and ends of texts included, in nats; None if it is
            not finite.
        texts: the number of test texts.
        users: the number of their users; None if unknown.
        words: the number of words that count for `accuracy`.
        all_words: the number of all words, unknown words and ends of texts included.
        accuracy_of_all: the share of correct predictions among all of these.
        majority: the accuracy of always predicting the most frequent word.
        over_steps: the variation over the last steps (`StepSpread`), as plain data; None if no weights were kept.
    """

    accuracy: FigureInterval
    top5: float
    loss: float | None
    texts: int
    users: int | None
    words: int
    all_words: int
    accuracy_of_all: float
    majority: float
    over_steps: Mapping[str, Any] | None = None

    @property
    def tested(self) -> str:
        """The independent units of the interval, in words."""
        return f"{self.texts:,} test texts" if self.users is None else f"the texts of {self.users:,} test users"

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.nan if self.loss is None or self.loss > 700 else math.exp(self.loss)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data that `from_dict` reads back. Its `accuracy` is a number, as for any classifier."""
        names = ("top5", "loss", "texts", "users", "words", "all_words", "accuracy_of_all", "majority")
        return {
            "accuracy": self.accuracy.value,
            "accuracy_interval": list(self.accuracy[1:]),
            **{name: getattr(self, name) for name in names},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WordEvaluation:
        """The evaluation from a run's file."""
        rest = {name: value for name, value in data.items() if name not in ("accuracy", "accuracy_interval")}
        return cls(accuracy=FigureInterval(data["accuracy"], *data["accuracy_interval"]), **rest)

    def headline(self) -> dict[str, Any]:
        """The main figure of a page: the accuracy, and its baseline."""
        value, low, high = self.accuracy
        return {
            "name": "accuracy of the next word",
            "value": percent(value),
            "lines": [
                f"95% interval {percent(low)} to {percent(high)}, from {self.words:,} words in {self.tested}",
                f"always the most frequent word {percent(self.majority)}",
            ],
            "track": (*self.accuracy, self.majority),
        }


Interval = tuple[float | None, float, float]


class Sample(NamedTuple):
    """One test image or text, with the model's prediction.

    Attributes:
        record: the image as the bytes of a PNG file, or the text.
        truth: the name of its true class.
        prediction: the name of the predicted class.
        score: the model's probability of the predicted class, between 0 and 1.
    """

    record: bytes | str
    truth: str
    prediction: str
    score: float


@dataclass(frozen=True, kw_only=True)
class StepSpread:
    """The variation of a run's results over its last steps.

    Attributes:
        records: the number of test images on which accuracies were measured.
        steps: the number of last steps.
        width: the number of weights in each average.
        released: the accuracy of the released model on these images.
        rows: for the last weights and for each average its name, its accuracy, and the standard deviation of accuracy
            over the last steps.
        intervals: for each sample of the evaluation the low and the high end of the 95% prediction interval of the
            logit of its first class, and its center; empty if the run does not allow intervals.
        notes: sources of variation that the intervals leave out.
    """

    records: int
    steps: int
    width: int
    released: float
    rows: Sequence[tuple[str, float, float]]
    intervals: Sequence[tuple[float, float, float]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The results of a trained classifier on the test split.

    Attributes:
        accuracy: the share of correctly classified test images, between 0 and 1.
        loss: the mean cross-entropy over the test images, in nats.
        classes: the class names.
        confusion: counts of test images, one row per true class, one column per predicted class, in the order of
            `classes`.
        samples: some test images, or texts, with their predictions.
        top5: the share of test images whose class is among the five likeliest; None with five classes or fewer.
        over_steps: the variation over the last steps; None if the run kept no weights.
        calibration_error: its expected calibration error: the mean over images of their bin's |confidence - accuracy|;
            None if it was not measured.
        weighted_auc: the mean area under the ROC curve of each class against all others, weighted by its test images;
            None if there is none.
        unlearnt: the classes that the noise of the training hides, with their numbers of training records.

    >>> Evaluation(accuracy=0.75, loss=0.6, classes=["cat", "dog"], confusion=[[2, 0], [1, 1]]).examples
    4
    """

    accuracy: float
    loss: float
    classes: Sequence[str]
    confusion: Sequence[Sequence[int]]
    samples: Sequence[Sample | tuple[bytes | str, str, str, float]] = ()
    top5: float | None = None
    over_steps: StepSpread | None = None
    calibration_error: float | None = None
    weighted_auc: FigureInterval | None = None
    unlearnt: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.classes)
        if count == 0 or len(self.confusion) != count or any(len(row) != count for row in self.confusion):
            shape = f"{len(self.confusion)} rows of {sorted({len(row) for row in self.confusion})} columns"
            raise SfumatoError(
                f"confusion must have one row and one column for each of the {count} classes, got {shape}",
                "count with the class list that the model was trained on",
            )

    @property
    def examples(self) -> int:
        """The number of test images."""
        return sum(sum(row) for row in self.confusion)

    @property
    def correct(self) -> int:
        """The number of correctly classified test images."""
        return sum(row[index] for index, row in enumerate(self.confusion))

    @property
    def chance(self) -> float:
        """The accuracy of guessing among the classes."""
        return 1 / len(self.classes)

    @property
    def majority(self) -> float:
        """The accuracy of always predicting the most frequent class of the test split."""
        return max(map(sum, self.confusion)) / self.examples if self.examples else 0.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The contents of a report.

    Every version of the page prints `title`, `statement`, `plan`, `environment` and `settings`, and also `about` and
    `total_cost`, which the owner chooses to publish. Put nothing in these fields that was measured on private data.
    `metrics` and `evaluation` are assumed to be measured on the test split.

    Attributes:
        title: the data and the model, such as "digits, cnn"; never a path.
        statement: the statement: `sentence`, `plain` (the promise and whom it covers, a list of sentences),
            `not_covered` (a list), `epsilon`, `delta`; and, if known, `unit`, `adjacency`, `accountant`, `theorem`,
            `citation`, `steps_taken`, `steps_planned`, and `circumstances`, whose `seeded` puts a warning first.
        plan: the privacy plan, a flat mapping of names to values.
        environment: versions, device, threads.
        settings: model, optimizer, learning rate, views and other settings.
        metrics: one row per evaluation during training: `step`, and the measured ones of `epsilon`, `accuracy`, `loss`
            and `learning_rate`.
        evaluation: the results at the end; None if they are not known yet.
        public_test: whether the test split is public data, so that figures measured on it need no protection.
        published: figures of the test split with accounted noise, which every version of the page shows.
        person_epsilons: (number of images, epsilon for a person with that many), if the promise is for single images.
        most_exposed: the same for the person with the most images in the data, whose number of images is private.
        attack: the bound that the plan sets to any attack; None if nothing is promised.
        owner: the owner, the date, the purpose and similar facts, as far as given; for the owner's page only.
        about: the facts of this kind that the owner has published.
        model: the SHA-256 digest of the model file, in hexadecimal; empty if there is no file yet.
        total_cost: the contents of `joint_costs`, for a public page on which the owner wants them.
        joint_costs: the total cost of all runs on the same data, in sentences. Private, as is the number of runs.
        audit: lower bounds of epsilon, measured on synthetic records, which every version of the page shows.
    """

    title: str
    statement: Mapping[str, Any]
    plan: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    evaluation: Evaluation | MultilabelEvaluation | WordEvaluation | EmbeddingEvaluation | None = None
    public_test: bool = False
    published: NoisyFigures | None = None
    person_epsilons: Sequence[tuple[int, float]] = ()
    most_exposed: tuple[int, float] | None = None
    attack: Attack | None = None
    owner: Mapping[str, str] = field(default_factory=dict)
    joint_costs: Sequence[str] = ()
    audit: Audit | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    total_cost: Sequence[str] = ()
