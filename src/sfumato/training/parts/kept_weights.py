"""Intermediate weights that a run keeps, for averages, ensembles and intervals made afterwards.

From the last of them the report shows how much accuracy varies, for single weights and averages, and the uncertainty of
scores (Shejwalkar et al. 2022, arXiv 2210.01864, section 5).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfumato import averaging
from sfumato.averaging import kept_count_by_rule, kept_steps, uncertainty
from sfumato.models import ensemble
from sfumato.models.losses import is_exclusive, probabilities
from sfumato.report import StepSpread
from sfumato.runs.checkpoint import drop_other_kept, hashes_of_kept, kept_files, kept_path, read_safetensors
from sfumato.runs.directory import RunDirectory
from sfumato.runs.prediction_intervals import noise_correction, spacing_of
from sfumato.training.parts.options import check_kept
from sfumato.training.parts.part import Measure
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
