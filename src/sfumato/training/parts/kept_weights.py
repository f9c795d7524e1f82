"""Weights of single steps that a run keeps, for averages, ensembles and intervals that are made of them afterwards; and
what the last of them say beside its model, for the page: how much accuracy varies over them, each by itself and in
averages, and how far each score may be off (Shejwalkar et al. 2022, arXiv 2210.01864, section 5)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import positive_integer
from sfumato.averaging import aggregates, kept_steps, number_by_rule, uncertainty
from sfumato.data import Preparation
from sfumato.evaluation import accuracy
from sfumato.models import ensemble
from sfumato.models.losses import exclusive, probabilities
from sfumato.privacy import Circumstances
from sfumato.report import OverSteps
from sfumato.runs import kept
from sfumato.runs.checkpoint import read_safetensors
from sfumato.runs.figures.uncertain import averages, notes_of, spacing_of, widening_for
from sfumato.training.descent import trained_bytes
from sfumato.training.parts.part import Asked, Decided, Early, Ending, Part, Trained
from sfumato.training.steps import Scorer

RECORDS = 1000
"""Test records, spread evenly over the test part, on which averages are measured."""


def over_steps(
    decided: Decided,
    trained: Trained,
    scorer: Scorer,
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
    decided: Decided, trained: Trained, scorer: Scorer, kept: Mapping[int, Mapping[str, Tensor]], whole: Tensor
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


@dataclass(frozen=True, kw_only=True)
class KeptWeights(Part):
    """After which steps weights are kept.

    Args:
        asked: how many; None for a rule's number.
        of: how many steps the run has.
        steps: after which; none until the model is there.
    """

    options = ("keep",)
    asked: int | None
    total: int
    steps: tuple[int, ...] = ()

    @classmethod
    def check(cls, early: Early) -> None:
        """Refuse what is no number."""
        check_count(early.options.get("keep"))

    @classmethod
    def of(cls, asked: Asked) -> KeptWeights:
        """As many as are asked for; a candidate of a selection keeps none."""
        return cls(asked=0 if asked.candidate else asked.options.get("keep"), total=asked.plan.steps)

    @classmethod
    def recorded(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """As many as the run began with."""
        return {"keep": len(record["circumstances"]["kept"])}

    def with_model(self, module: nn.Module, transform: Preparation) -> KeptWeights:
        """With the steps, by rule from the size of what is trained."""
        count = self.asked
        if count is None:
            count = number_by_rule(trained_bytes(module))
        check_count(count)
        return replace(self, steps=kept_steps(self.total, count))

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """With the steps, whose weights are released too."""
        return replace(facts, kept=self.steps)

    def end(self, ending: Ending) -> None:
        """Drop the weights of steps that do not count, bind the others, and say how much accuracy varies over them."""
        present = kept.files(ending.run)
        reached = tuple(step for step in self.steps if step <= ending.trained.step and step in present)
        kept.drop_others(ending.run, reached)
        ending.circumstances = replace(ending.circumstances, kept=reached)
        if not reached:
            return
        ending.bound |= {"kept": kept.hashes(ending.run, reached)}
        scorer = ending.trained.scorer
        if isinstance(scorer, Scorer) and exclusive(ending.decided.settings.objective.loss):
            weights = {step: read_safetensors(kept.place(ending.run, step))[0] for step in sorted(reached)}
            found = over_steps(ending.decided, ending.trained, scorer, weights, moved=ending.reading.moved)
            ending.evaluation |= {} if found is None else {"over_steps": asdict(found)}


def check_count(keep: int | None) -> None:
    """Refuse what is no number of weights."""
    if keep:
        positive_integer("keep", keep, remedy="give a number of weights such as 20, or 0 for none")
