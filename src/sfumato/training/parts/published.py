"""Publishable figures of the test split: a table of counts, released once, with noise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato._files import write_errors
from sfumato.data.subsets import one_per_user
from sfumato.privacy import Ledger, NoisyTable
from sfumato.randomness import RunKey, noisy_counts, owner_key
from sfumato.report import NoisyFigures
from sfumato.runs import directory as names
from sfumato.runs import published
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.training.parts.part import Measure
from sfumato.training.scorers import Scorer

if TYPE_CHECKING:
    from sfumato.training.job import PrivateJob


def publish(
    job: PrivateJob,
    run: RunDirectory,
    ledger: Ledger,
    key: RunKey | None,
    table: NoisyTable,
    *,
    scorer: Measure,
    weights: Mapping[str, Tensor],
    step: int,
) -> dict[str, Any] | None:
    """Releases the run's table of the test split. Returns what the ledger's last line binds; None if the key is lost.

    Args:
        key: the run's key; None if it is lost.
        weights, step: the released weights, and the number of steps after which they are released.

    **Guarantee.** Of a run that protects users, one record of each user is counted (`one_per_user`).
    """
    assert isinstance(scorer, Scorer)
    test, outputs = job.source.test, scorer.per_example_outputs(weights).double().nan_to_num()
    predicted = outputs.argmax(1).numpy()
    chosen = np.ones(len(test), bool) if job.plan.users is None else one_per_user(test, owner_key())
    counts = count_cells(table, test.labels[chosen], predicted[chosen])
    figures = release_table(table, run, ledger, step, counts, classes=job.source.classes, key=key)
    return None if figures is None else {published.ENTRY: file_hash(run / names.FIGURES)}


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
    recorded = next((entry.body for entry in ledger.entries if entry.kind == published.ENTRY), None)
    own = published.body(table, step)
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
