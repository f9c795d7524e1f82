"""What a run releases besides its model: intermediate weights, and a table of counts of the test split, with noise.

From the last of the kept weights the report shows how much accuracy varies, for single weights and averages, and the
uncertainty of scores (Shejwalkar et al. 2022, arXiv 2210.01864, section 5).
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import averaging
from sfumato._checks import SfumatoError
from sfumato._files import write_errors
from sfumato.averaging import kept_count_by_rule, kept_steps, uncertainty
from sfumato.data.subsets import one_per_user
from sfumato.models import ensemble
from sfumato.models.losses import is_exclusive, probabilities
from sfumato.privacy import Ledger, NoisyTable
from sfumato.randomness import RunKey, noisy_counts, owner_key
from sfumato.report import NoisyFigures, StepSpread
from sfumato.runs import directory as names
from sfumato.runs import published
from sfumato.runs.checkpoint import drop_other_kept, hashes_of_kept, kept_files, kept_path, read_safetensors
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.runs.prediction_intervals import noise_correction, spacing_of
from sfumato.training.planned import Measure
from sfumato.training.preparation.start import check_kept
from sfumato.training.scorers import Scorer
from sfumato.training.weights import trained_bytes

if TYPE_CHECKING:
    from sfumato.training.job import PrivateJob


RECORDS = 1000
"""Largest number of test records, or about that of words, for evaluating averages, spread over the test split."""


def steps_to_keep(requested: int | None, steps: int, module: nn.Module) -> tuple[int, ...]:
    """The steps of a run after which its weights are kept, and so released too.

    Args:
        requested: number of weights; None for the number that follows from the size of the trained parameters.
        steps: number of steps of the run.
    """
    count = kept_count_by_rule(trained_bytes(module)) if requested is None else requested
    check_kept(count)
    return kept_steps(steps, count)


def settle(run: RunDirectory, planned: tuple[int, ...], step: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Deletes weights of other steps than the planned ones up to `step`. Returns the steps that are kept, and what the
    ledger's last line binds. If it is killed and called again, it has the same result."""
    present = kept_files(run)
    reached = tuple(number for number in planned if number <= step and number in present)
    drop_other_kept(run, reached)
    return reached, {"kept": hashes_of_kept(run, reached)} if reached else {}


def evaluate_kept(
    job: PrivateJob,
    run: RunDirectory,
    steps: tuple[int, ...],
    scorer: Measure,
    weights: Mapping[str, Tensor],
    outputs: Tensor,
) -> dict[str, Any]:
    """How accuracy varies over the kept weights of these steps, as fields of `report.Evaluation`.

    Args:
        weights, outputs: the released weights, and their outputs on the test split.
    """
    if not (steps and isinstance(scorer, Scorer) and is_exclusive(job.settings.objective.loss)):
        return {}
    kept = {step: read_safetensors(kept_path(run, step))[0] for step in sorted(steps)}
    spread = evaluate_averages(job, scorer, weights, outputs, kept)
    return {} if spread is None else {"over_steps": asdict(spread)}


def evaluate_averages(
    job: PrivateJob,
    scorer: Scorer,
    weights: Mapping[str, Tensor],
    outputs: Tensor,
    kept: Mapping[int, Mapping[str, Tensor]],
) -> StepSpread | None:
    """Accuracies of averages over the last steps, and an interval for the logit of each sample's predicted class.

    Args:
        scorer: evaluates the model.
        weights, outputs: the released weights, and their outputs on the test split.
        kept: the weights that the run kept, by step, ascending.

    Returns:
        None if fewer than two consecutive weights were kept.

    **Guarantee.** Figures of the test split, without noise: private if the test split is, like accuracy.
    """
    last = _last_consecutive(tuple(kept))
    if len(last) < 2:
        return None
    places = scorer.spread(RECORDS)
    at_release, labels = scorer.decisions(weights, outputs, places)

    def accuracy(outputs: Tensor) -> float:
        return (outputs.argmax(1) == labels).double().mean().item()

    def outputs_with(trained: Mapping[str, Tensor]) -> Tensor:
        return scorer.decisions({**weights, **trained}, None, places)[0]

    logits = {step: outputs_with(kept[step]) for step in last}
    likely = {step: probabilities(logits[step], job.settings.objective.loss) for step in last}
    width = max(2, len(last) // 2)
    windows = [last[end - width : end] for end in range(width, len(last) + 1)]
    accuracies = {
        "last": [accuracy(logits[step]) for step in last],
        "upa": [accuracy(outputs_with(averaging.mean([kept[step] for step in window]))) for window in windows],
        **{
            method: [accuracy(ensemble.METHODS[method](likely[step] for step in window)) for window in windows]
            for method in ("opa", "omv")
        },
    }
    return StepSpread(
        records=len(labels),
        steps=len(last),
        width=width,
        released=accuracy(at_release),
        rows=[
            (method, shares[-1], statistics.stdev(shares) if len(shares) > 1 else 0.0)
            for method, shares in accuracies.items()
        ],
        **_intervals(job, scorer, weights, outputs, kept),
    )


def _last_consecutive(steps: tuple[int, ...]) -> tuple[int, ...]:
    """The longest consecutive run of steps at the end.

    >>> _last_consecutive((1, 5, 8, 9, 10))
    (8, 9, 10)
    """
    gaps = [place for place, (before, after) in enumerate(pairwise(steps), 1) if after != before + 1]
    return steps[gaps[-1] if gaps else 0 :]


def _intervals(
    job: PrivateJob,
    scorer: Scorer,
    weights: Mapping[str, Tensor],
    outputs: Tensor,
    kept: Mapping[int, Mapping[str, Tensor]],
) -> dict[str, Any]:
    """For each sample, the interval of the predicted class's logit and its middle."""
    taken = max(kept)
    apart = [step for step in kept if step > taken // 2]
    if apart[-1] - apart[0] < spacing_of(taken):
        return {}
    samples = scorer.samples(outputs)
    if not samples:
        return {}
    first = outputs[samples].argmax(1, keepdim=True)
    steps = uncertainty.select_spaced(tuple(kept), taken, spacing=spacing_of(taken))
    logits = torch.stack([scorer.outputs({**weights, **kept[step]}, samples) for step in steps])
    widening, notes = noise_correction(job.plan, job.settings.to_dict(), steps, taken)
    low, high, mean, _ = uncertainty.interval(logits, widening=widening)
    ends = torch.stack([one.gather(1, first).squeeze(1) for one in (low, high, mean)], 1)
    if not ends.isfinite().all():  # training has diverged
        return {}
    return {"intervals": ends.tolist(), "notes": notes}


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
