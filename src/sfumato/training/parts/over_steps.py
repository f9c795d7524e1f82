"""What the weights of a run's last steps say beside its model, for the page: how much accuracy varies over them, each
by itself and in averages, and how far each score may be off (Shejwalkar et al. 2022, arXiv 2210.01864, section 5)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.averaging import aggregates, uncertainty
from sfumato.evaluation import accuracy
from sfumato.models import ensemble
from sfumato.models.losses import probabilities
from sfumato.report import OverSteps
from sfumato.runs.figures.uncertain import averages, notes_of, spacing_of, widening_for
from sfumato.training.kind import OfRecords
from sfumato.training.parts.part import Decided, Trained

RECORDS = 1000
"""Test records, spread evenly over the test part, on which averages are measured."""


def over_steps(
    decided: Decided,
    trained: Trained,
    scorer: OfRecords,
    kept: Mapping[int, Mapping[str, Tensor]],
    *,
    moved: Callable[[Tensor], Tensor] = lambda outputs: outputs,
) -> OverSteps | None:
    """Accuracies of averages over the last steps, and an interval for the logit of each sample's first class.

    Args:
        decided: the run.
        trained: its model, and what that gives for the test part.
        scorer: what that model is measured by.
        kept: the weights that the run kept, by step, ascending.
        moved: from what the module gives to logits of which the largest is that of the class that is named.

    Returns:
        None where fewer than two weights in a row were kept.

    **Guarantee.** Figures on the test part, without noise: private where that is, as accuracy is.
    """
    last = _in_a_row(tuple(kept))
    if len(last) < 2:
        return None
    whole, test = moved(trained.outputs), decided.source.test
    count = len(test)
    places = np.linspace(0, count - 1, min(count, RECORDS)).round().astype(int).tolist()
    labels = torch.from_numpy(test.labels[places])

    def right(outputs: Tensor) -> float:
        return (outputs.argmax(1) == labels).double().mean().item()

    def outputs(weights: Mapping[str, Tensor]) -> Tensor:
        return moved(scorer.outputs({**trained.weights, **weights}, places))

    each = {step: outputs(kept[step]) for step in last}
    said = {step: probabilities(one, decided.settings.objective.loss) for step, one in each.items()}
    width = max(2, len(last) // 2)
    windows = [last[end - width : end] for end in range(width, len(last) + 1)]
    found = {
        "last": [right(one) for one in each.values()],
        "upa": [right(outputs(aggregates.mean([kept[step] for step in window]))) for window in windows],
        **{
            method: [right(ensemble.METHODS[method](said[step] for step in window)) for window in windows]
            for method in ("opa", "omv")
        },
    }
    return OverSteps(
        records=len(places),
        steps=len(last),
        width=width,
        released=right(whole[places]),
        rows=[
            (method, shares[-1], statistics.stdev(shares) if len(shares) > 1 else 0.0)
            for method, shares in found.items()
        ],
        **_intervals(decided, trained, scorer, kept, whole),
    )


def _in_a_row(steps: tuple[int, ...]) -> tuple[int, ...]:
    """The last steps, as far back as each follows the one before.

    >>> _in_a_row((1, 5, 8, 9, 10))
    (8, 9, 10)
    """
    gaps = [place for place, (before, after) in enumerate(pairwise(steps), 1) if after != before + 1]
    return steps[gaps[-1] if gaps else 0 :]


def _intervals(
    decided: Decided, trained: Trained, scorer: OfRecords, kept: Mapping[int, Mapping[str, Tensor]], whole: Tensor
) -> dict[str, Any]:
    """Of the class that each sample is named: the ends of its logit's interval, and the middle."""
    taken, settings = max(kept), decided.settings
    apart = [step for step in kept if step > taken // 2]
    if apart[-1] - apart[0] < spacing_of(taken):
        return {}
    samples = accuracy.shown(whole, decided.source.test)
    if not samples:
        return {}
    first = whole[samples].argmax(1, keepdim=True)
    steps = uncertainty.spaced(tuple(kept), taken, spacing=spacing_of(taken))
    logits = torch.stack([scorer.outputs({**trained.weights, **kept[step]}, samples) for step in steps])
    widening, of_noise = widening_for(decided.plan, settings.to_dict(), steps, taken)
    low, high, mean, _ = uncertainty.interval(logits, widening=widening)
    notes = [*notes_of(averaged=averages(settings.to_dict()), schedule=settings.descent.schedule), *of_noise]
    ends = torch.stack([one.gather(1, first).squeeze(1) for one in (low, high, mean)], 1)
    if not ends.isfinite().all():  # training has diverged
        return {}
    return {"intervals": ends.tolist(), "notes": notes}
