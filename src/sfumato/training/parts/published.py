"""Publishable figures of the test split: a table of counts, released once, with noise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import write_errors
from sfumato.data import BY_CLASS
from sfumato.data.subsets import by_user, one_per_user
from sfumato.privacy import Circumstances, Ledger, NoisyTable
from sfumato.randomness import RunKey, noisy_counts, owner_key
from sfumato.report import NoisyFigures
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.runs.figures import published
from sfumato.training.parts.part import Conclusion, EarlyFacts, Part, RunRequest
from sfumato.training.scorers import Scorer


@dataclass(frozen=True, kw_only=True)
class PublishedFigures(Part):
    """Figures of the private test split, from noisy counts.

    Args:
        table: the table to release.
    """

    options = ("report_epsilon",)
    table: NoisyTable

    @classmethod
    def check(cls, early: EarlyFacts) -> None:
        """Refuse figures that are impossible for any data."""
        if (epsilon := early.options.get("report_epsilon")) is not None:
            check(epsilon, public=early.spec.is_public)

    @classmethod
    def from_request(cls, request: RunRequest) -> PublishedFigures | None:
        """The figures at the requested epsilon.

        **Guarantee.** The table depends on epsilon and the classes alone, never on the number of test records.
        """
        if (epsilon := request.options.get("report_epsilon")) is None:
            return None
        check(epsilon, public=request.source.public)
        request.source.require_classes(f"report_epsilon {epsilon:g}")
        if request.settings.seed is not None:
            raise SfumatoError(
                f"`report_epsilon` publishes figures of private data, but `seed` is {request.settings.seed}",
                "leave one of them out: seeded noise hides nothing",
            )
        if request.plan.users is not None:
            by_user(request.source.test)  # refuses a test part without users
            if request.source.user_from == BY_CLASS:
                raise SfumatoError(
                    f"`report_epsilon` is {epsilon!r}, but each class is one user, who has records in both parts",
                    "leave it out: users in the test part must not be in the training part",
                )
        return cls(table=NoisyTable(epsilon=epsilon, classes=len(request.source.classes)))

    @classmethod
    def recorded_options(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The epsilon of the run."""
        figures = record["circumstances"]["figures"]
        return {} if figures is None else {"report_epsilon": figures["epsilon"]}

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds the table."""
        return replace(facts, figures=self.table)

    def end(self, conclusion: Conclusion) -> None:
        """Releases the table.

        **Guarantee.** Of a run that protects users, one record of each user is counted (`one_per_user`).
        """
        setup, trained = conclusion.setup, conclusion.trained
        assert isinstance(trained.scorer, Scorer)
        test, outputs = setup.source.test, trained.scorer.per_example_outputs(trained.weights).double().nan_to_num()
        predicted = outputs.argmax(1).numpy()
        chosen = np.ones(len(test), bool) if setup.plan.users is None else one_per_user(test, owner_key())
        figures = release_table(
            self.table,
            conclusion.run,
            conclusion.ledger,
            trained.step,
            count_cells(self.table, test.labels[chosen], predicted[chosen]),
            classes=setup.source.classes,
            key=conclusion.key,
        )
        if figures is None:
            conclusion.circumstances = replace(conclusion.circumstances, figures=None)
        else:
            conclusion.bound |= {published.ENTRY: file_hash(conclusion.run / names.FIGURES)}


def check(epsilon: float, *, public: bool) -> None:
    """Refuse an invalid epsilon, and figures of public data."""
    if public:
        raise SfumatoError(
            f"`report_epsilon` is {epsilon!r}, but the data are public", "leave it out: all figures may be published"
        )
    NoisyTable(epsilon=epsilon, classes=2)


def release_table(
    table: NoisyTable,
    run: RunDirectory,
    ledger: Ledger,
    step: int,
    counts: np.ndarray,
    *,
    classes: tuple[str, ...],
    key: RunKey | None,
) -> NoisyFigures | None:
    """Releases the table, once in the life of a run; an existing release is read.

    Args:
        step: number of steps after which the model is released.
        counts: int64, in the table's shape. Private.
        classes: the names of the classes.
        key: the run's key; None if it is lost.

    **Guarantee.** See `NoisyTable`. The ledger records the release, safe on disk, before its noise is drawn. A run
    releases one table, of one model: another step is refused, and an existing file stays. If a run is killed before the
    file is written, the table is drawn again as a function of the run key and the counts: with the same counts it has
    the same bytes, and with other counts, which rounding on another machine may cause, its noise is independent of the
    earlier draw. So the difference of two tables always has noise.

    Returns:
        None if the run key is lost and nothing was recorded yet: then nothing is released.

    Errors: `SfumatoError` if the ledger records another table, or one that was never written and whose key is lost.
    """
    recorded, own = published.find_body(ledger.entries), published.body(table, step)
    if recorded is not None and dict(recorded) != own:
        raise SfumatoError(
            f"the ledger of {run.path} records figures of the model after step {recorded.get('step')}, not of this one",
            f"end the run at its checkpoint (sfumato finish {run.path})",
        )
    if recorded is not None and (there := published.read(run)) is not None:
        return there
    if key is None:
        if recorded is None:
            return None
        raise SfumatoError(
            f"figures of {run.path} are in the ledger but were not written, and the run key is lost",
            "restore the key from a copy",
        )
    if recorded is None:
        ledger.append(published.ENTRY, own)
    with write_errors(ledger.path):
        ledger.sync()
    noisy = noisy_counts(table, values := counts.flatten().tolist(), _key_of(key, values))
    figures = NoisyFigures(table=table, counts=np.array(noisy, np.int64).reshape(table.shape), classes=classes)
    published.save(run, figures)
    return figures


def _key_of(key: RunKey, values: list[int]) -> RunKey:
    """A key for one draw, which depends on the counts that it is drawn for."""
    return RunKey(key.uint64_words("figures counts", 0, hashlib.sha256(repr(values).encode()).hexdigest()).tobytes())


def count_cells(table: NoisyTable, labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The number of records in each cell, int64 in the table's shape. Private.

    **Guarantee.** Sensitivity 1: each record is in one cell, a function of that record and the model alone.

    Args:
        labels, predicted: int64 (N,).
    """
    classes, predictions = table.shape
    counts = np.zeros(table.shape, np.int64)
    np.add.at(counts, (labels, predicted if classes == predictions else (labels == predicted).astype(int)), 1)
    return counts
