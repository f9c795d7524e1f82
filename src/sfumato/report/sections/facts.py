"""The contents of a report, as plain data without tensors or paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError
from sfumato.report.plots.lines import Attack
from sfumato.report.sections.audit import Audit
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.multilabel import FigureInterval, MultilabelEvaluation, WordEvaluation
from sfumato.report.sections.published import NoisyFigures

Interval = tuple[float | None, float, float]
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_STATEMENT_KEYS = ("sentence", "plain", "not_covered", "epsilon", "delta")


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
        if self.over_steps and self.over_steps.intervals and len(self.over_steps.intervals) != len(self.samples):
            raise SfumatoError(
                f"there are {len(self.over_steps.intervals)} intervals for {len(self.samples)} samples", "give one each"
            )
        for record, *_ in self.samples:
            if isinstance(record, bytes) and not record.startswith(_PNG_SIGNATURE):
                raise SfumatoError(
                    f"samples must hold PNG files, got bytes that begin with {record[:8]!r}", "encode the image as PNG"
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
    `total`, which the owner chooses to publish. Put nothing in these fields that was measured on private data.
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
        persons: (number of images, epsilon for a person with that many), if the promise is for single images.
        most_exposed: the same for the person with the most images in the data, whose number of images is private.
        attack: the bound that the plan sets to any attack; None if nothing is promised.
        owner: the owner, the date, the purpose and similar facts, as far as given; for the owner's page only.
        about: the facts of this kind that the owner has published.
        model: the SHA-256 digest of the model file, in hexadecimal; empty if there is no file yet.
        total: the contents of `together`, for a public page on which the owner wants them.
        together: the total cost of all runs on the same data, in sentences. Private, as is the number of runs.
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

    def __post_init__(self) -> None:
        missing = [key for key in _STATEMENT_KEYS if key not in self.statement]
        if missing:
            raise SfumatoError(
                f"statement lacks {', '.join(missing)}", "pass the whole statement of the run, as in statement.json"
            )
        if any("step" not in row for row in self.metrics):
            raise SfumatoError("metrics has a row without 'step'", "give every row the step at which it was measured")
