"""What a report is made of: plain data, no tensor and no path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError
from sfumato.report.plots.attack import Attack
from sfumato.report.sections.audits import Audit
from sfumato.report.sections.embedding import EmbeddingEvaluation
from sfumato.report.sections.multilabel import MultilabelEvaluation

Interval = tuple[float | None, float, float]
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_STATEMENT_KEYS = ("sentence", "plain", "not_covered", "epsilon", "delta")


class Sample(NamedTuple):
    """One test image, or text, with what the model said of it.

    Attributes:
        record: the image as the bytes of a PNG file, or the text.
        truth: the name of its true class.
        prediction: the name of the class that the model chose.
        score: the model's probability for its choice, between 0 and 1.
    """

    record: bytes | str
    truth: str
    prediction: str
    score: float


@dataclass(frozen=True, kw_only=True)
class OverSteps:
    """How much what a run says varies over its last steps.

    Attributes:
        records: the number of test images on which accuracies were measured.
        steps: the number of last steps.
        width: the number of weights in each average.
        released: the accuracy of the model that is released, on these images.
        rows: of the last weights and of each average: its name, its accuracy, and the standard deviation of accuracy
            over the last steps.
        intervals: of each sample of the evaluation: low and high end of the prediction interval at 95% of the logit of
            its first class, and the middle; empty where the run does not allow for them.
        notes: what the intervals leave out.
    """

    records: int
    steps: int
    width: int
    released: float
    rows: Sequence[tuple[str, float, float]]
    intervals: Sequence[tuple[float, float, float]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How far confidence is from how often predictions are right, on the test split, without noise.

    Attributes:
        error: expected calibration error: the mean over images of by how much confidence misses accuracy, by bins.
        bands: of each bin that holds images: where it begins and ends, how many these are, their mean confidence, and
            the share of them that is right.
    """

    error: float
    bands: Sequence[tuple[float, float, int, float, float]]


@dataclass(frozen=True, kw_only=True)
class Published:
    """Figures of the test split that may be published, from noisy counts. Each is the estimate, None where the noise
    leaves nothing of it, and the ends of its 95% interval.

    Attributes:
        epsilon: what they cost each test image.
        records: about how many images there are.
        accuracy: the share named rightly.
        per_class: the same of each class.
        auc: area under the ROC curve of each class against all others; empty where that was not counted.
        majority: about which share the most frequent class has; None where that is not known.
        roc: those curves: (false-positive rate, true-positive rate) at each threshold, rising.
        error: expected calibration error.
        bands: of each bin of confidence: where it begins and ends, about how many images it has, and their accuracy.
        temperature: that logits are divided by.
        operating: of an operating point of two classes: the class, and the score from which on an image is said to be
            of it; None where the likelier class is named.
    """

    epsilon: float
    records: Interval
    accuracy: Interval
    per_class: Mapping[str, Interval]
    auc: Mapping[str, Interval]
    error: Interval
    bands: Sequence[tuple[float, float, float, Interval]]
    temperature: float = 1.0
    roc: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    majority: float | None = None
    operating: tuple[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a trained model did on the test split.

    Attributes:
        accuracy: the share of test images named rightly, between 0 and 1.
        loss: the mean cross-entropy over the test images, in nats.
        classes: the class names.
        confusion: counts of test images, one row per true class, one column per predicted class, in the order of
            `classes`.
        samples: some test images, or texts, with their predictions.
        top5: the share of test images whose class is among the five likeliest; None with five classes or fewer.
        over_steps: how much that varies over the last steps; None where the run kept no weights.
        calibration: how far its confidence is to be trusted; None where that was not measured.

    >>> Evaluation(accuracy=0.75, loss=0.6, classes=["cat", "dog"], confusion=[[2, 0], [1, 1]]).examples
    4
    """

    accuracy: float
    loss: float
    classes: Sequence[str]
    confusion: Sequence[Sequence[int]]
    samples: Sequence[Sample | tuple[bytes | str, str, str, float]] = ()
    top5: float | None = None
    over_steps: OverSteps | None = None
    calibration: Calibration | None = None

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
        """How many of them were named rightly."""
        return sum(row[index] for index, row in enumerate(self.confusion))

    @property
    def chance(self) -> float:
        """The accuracy of whoever guesses blindly among the classes."""
        return 1 / len(self.classes)

    @property
    def majority(self) -> float:
        """The accuracy of whoever always says the class that is the most frequent in the test split."""
        return max(map(sum, self.confusion)) / self.examples if self.examples else 0.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a report tells.

    `title`, `statement`, `plan`, `environment` and `settings` are printed on every version of the page, and so are
    `about` and `total`, by the owner's wish: put nothing there that was measured on private data. `metrics` and
    `evaluation` are taken to be measured on the test split.

    Attributes:
        title: what was trained on what, such as "digits, cnn"; never a path.
        statement: the promise: `sentence`, `plain` (what is promised, to whom, a list of plain sentences),
            `not_covered` (a list), `epsilon`, `delta`; and, where known, `unit`, `adjacency`, `accountant`, `theorem`,
            `citation`, `steps_taken`, `steps_planned`, and `circumstances`, whose `seeded` puts a warning first.
        plan: the privacy plan, flat: name to value.
        environment: versions, device, threads.
        settings: model, optimizer, learning rate, views and the like.
        metrics: one row per evaluation during training: `step`, and of `epsilon`, `accuracy`, `loss`, `learning_rate`
            those that were measured.
        evaluation: how the model did at the end; None where that is not known yet.
        public_test: whether the test split is public data, so that figures measured on it are nobody's secret.
        published: figures of it with noise that is accounted for, which every version of the page shows.
        persons: of numbers of images, the epsilon for a person with so many, where the promise is for single ones.
        most_of_one: the same for the person with the most images in the data: how many these are is private.
        attack: what an attacker can find out at most, by the plan; None where nothing is promised.
        owner: of owner, date, purpose and the like those that were given: for the owner's own page.
        about: those of them that the owner has published.
        model: SHA-256 of the model file, in hexadecimal; empty where there is none yet.
        total: what stands in `together`, on a public page whose owner asks for it.
        together: what all runs on the same data cost together, in sentences: private, like the number of runs.
        audits: lower bounds of epsilon, of canaries alone, which every version of the page shows.
    """

    title: str
    statement: Mapping[str, Any]
    plan: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    evaluation: Evaluation | MultilabelEvaluation | EmbeddingEvaluation | None = None
    public_test: bool = False
    published: Published | None = None
    persons: Sequence[tuple[int, float]] = ()
    most_of_one: tuple[int, float] | None = None
    attack: Attack | None = None
    owner: Mapping[str, str] = field(default_factory=dict)
    together: Sequence[str] = ()
    audits: Sequence[Audit] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    total: Sequence[str] = ()

    def __post_init__(self) -> None:
        missing = [key for key in _STATEMENT_KEYS if key not in self.statement]
        if missing:
            raise SfumatoError(
                f"statement lacks {', '.join(missing)}", "pass the whole statement of the run, as in statement.json"
            )
        if any("step" not in row for row in self.metrics):
            raise SfumatoError("metrics has a row without 'step'", "give every row the step at which it was measured")
