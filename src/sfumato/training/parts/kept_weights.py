"""Intermediate weights that a run keeps, for averages, ensembles and intervals made afterwards.

From the last of them the report shows how much accuracy varies, for single weights and averages, and the uncertainty of
scores (Shejwalkar et al. 2022, arXiv 2210.01864, section 5).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import positive_integer
from sfumato.averaging import aggregates, kept_count_by_rule, kept_steps, uncertainty
from sfumato.models import ensemble
from sfumato.models.losses import is_exclusive, probabilities
from sfumato.privacy import Circumstances
from sfumato.report import StepSpread
from sfumato.runs.checkpoint import drop_other_kept, hashes_of_kept, kept_files, kept_path, read_safetensors
from sfumato.runs.figures.prediction_intervals import is_averaged, noise_correction, notes_of, spacing_of
from sfumato.training.parts.part import Conclusion, EarlyFacts, Part, RunRequest, RunSetup, Trained
from sfumato.training.scorers import Scorer
from sfumato.training.weights import trained_bytes

RECORDS = 1000
"""Largest number of test records, or about that of words, for evaluating averages, spread over the test split."""


def evaluate_averages(
    setup: RunSetup, trained: Trained, scorer: Scorer, kept: Mapping[int, Mapping[str, Tensor]]
) -> StepSpread | None:
    """Accuracies of averages over the last steps, and an interval for the logit of each sample's predicted class.

    Args:
        setup: the run.
        trained: its weights and the outputs on the test split.
        scorer: evaluates the model.
        kept: the weights that the run kept, by step, ascending.

    Returns:
        None if fewer than two consecutive weights were kept.

    **Guarantee.** Figures of the test split, without noise: private if the test split is, like accuracy.
    """
    last = _last_consecutive(tuple(kept))
    if len(last) < 2:
        return None
    whole, places = trained.outputs, scorer.spread(RECORDS)
    at_release, labels = scorer.decisions(trained.weights, whole, places)

    def right(outputs: Tensor) -> float:
        return (outputs.argmax(1) == labels).double().mean().item()

    def outputs(weights: Mapping[str, Tensor]) -> Tensor:
        return scorer.decisions({**trained.weights, **weights}, None, places)[0]

    each = {step: outputs(kept[step]) for step in last}
    said = {step: probabilities(one, setup.settings.objective.loss) for step, one in each.items()}
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
    return StepSpread(
        records=len(labels),
        steps=len(last),
        width=width,
        released=right(at_release),
        rows=[
            (method, shares[-1], statistics.stdev(shares) if len(shares) > 1 else 0.0)
            for method, shares in found.items()
        ],
        **_intervals(setup, trained, scorer, kept, whole),
    )


def _last_consecutive(steps: tuple[int, ...]) -> tuple[int, ...]:
    """The longest consecutive run of steps at the end.

    >>> _last_consecutive((1, 5, 8, 9, 10))
    (8, 9, 10)
    """
    gaps = [place for place, (before, after) in enumerate(pairwise(steps), 1) if after != before + 1]
    return steps[gaps[-1] if gaps else 0 :]


def _intervals(
    setup: RunSetup, trained: Trained, scorer: Scorer, kept: Mapping[int, Mapping[str, Tensor]], whole: Tensor
) -> dict[str, Any]:
    """For each sample, the interval of the predicted class's logit and its middle."""
    taken, settings = max(kept), setup.settings
    apart = [step for step in kept if step > taken // 2]
    if apart[-1] - apart[0] < spacing_of(taken):
        return {}
    samples = scorer.samples(whole)
    if not samples:
        return {}
    first = whole[samples].argmax(1, keepdim=True)
    steps = uncertainty.select_spaced(tuple(kept), taken, spacing=spacing_of(taken))
    logits = torch.stack([scorer.outputs({**trained.weights, **kept[step]}, samples) for step in steps])
    widening, of_noise = noise_correction(setup.plan, settings.to_dict(), steps, taken)
    low, high, mean, _ = uncertainty.interval(logits, widening=widening)
    notes = [*notes_of(averaged=is_averaged(settings.to_dict()), schedule=settings.descent.schedule), *of_noise]
    ends = torch.stack([one.gather(1, first).squeeze(1) for one in (low, high, mean)], 1)
    if not ends.isfinite().all():  # training has diverged
        return {}
    return {"intervals": ends.tolist(), "notes": notes}


@dataclass(frozen=True, kw_only=True)
class KeptWeights(Part):
    """Keeps weights after some steps.

    Args:
        requested: number of weights; None for the default.
        total: number of steps of the run.
        steps: the steps after which weights are kept; empty until the model is built.
    """

    options = ("keep",)
    requested: int | None
    total: int
    steps: tuple[int, ...] = ()

    @classmethod
    def check(cls, early: EarlyFacts) -> None:
        """Refuse an invalid number."""
        check_count(early.options.get("keep"))

    @classmethod
    def from_request(cls, request: RunRequest) -> KeptWeights:
        """The requested number."""
        return cls(requested=request.options.get("keep"), total=request.plan.steps)

    @classmethod
    def recorded_options(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The number of the run."""
        return {"keep": len(record["circumstances"]["kept"])}

    def with_model(self, module: nn.Module) -> KeptWeights:
        """Determines the steps; the default number follows from the size of the trained parameters."""
        count = self.requested
        if count is None:
            count = kept_count_by_rule(trained_bytes(module))
        check_count(count)
        return replace(self, steps=kept_steps(self.total, count))

    def circumstances(self, facts: Circumstances) -> Circumstances:
        """Adds the steps, whose weights are also released."""
        return replace(facts, kept=self.steps)

    def end(self, conclusion: Conclusion) -> None:
        """Deletes weights of other steps, binds the kept ones in the ledger, and evaluates how accuracy varies."""
        present = kept_files(conclusion.run)
        reached = tuple(step for step in self.steps if step <= conclusion.trained.step and step in present)
        drop_other_kept(conclusion.run, reached)
        conclusion.circumstances = replace(conclusion.circumstances, kept=reached)
        if not reached:
            return
        conclusion.bound |= {"kept": hashes_of_kept(conclusion.run, reached)}
        scorer = conclusion.trained.scorer
        if isinstance(scorer, Scorer) and is_exclusive(conclusion.setup.settings.objective.loss):
            weights = {step: read_safetensors(kept_path(conclusion.run, step))[0] for step in sorted(reached)}
            found = evaluate_averages(conclusion.setup, conclusion.trained, scorer, weights)
            conclusion.evaluation |= {} if found is None else {"over_steps": asdict(found)}


def check_count(keep: int | None) -> None:
    """Refuse an invalid number of weights."""
    if keep:
        positive_integer("keep", keep, remedy="give a number of weights such as 20, or 0 for none")
