"""How much a model's outputs vary because of the noise in training, estimated from the weights that its run kept.

Shejwalkar et al. 2022 (arXiv 2210.01864), section 5: the last weights of one run, spaced apart, stand in for the final
weights of independent runs. It costs no privacy and no training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import optim
from sfumato._checks import SfumatoError
from sfumato.averaging import uncertainty
from sfumato.data import Picture
from sfumato.privacy import PrivacyPlan
from sfumato.runs import aggregated
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.loaded import load

SPACINGS = 40
"""The weights of an interval are at least a fortieth of the run apart."""
MEANING = (
    "An interval says how far the noise and the draws of training alone would move this score in another run: a lower "
    "bound for what independent runs show, and not how uncertain the label is."
)


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Prediction intervals of logits.

    Args:
        low, high: (N, classes), the bounds of each image's logits.
        mean: (N, classes), the mean over the weights.
        steps: the steps after which the weights were kept.
        confidence: the confidence of each single interval.
        notes: the limitations of these intervals.
    """

    low: Tensor
    high: Tensor
    mean: Tensor
    steps: tuple[int, ...]
    confidence: float
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        images, classes = self.mean.shape
        return (
            f"Intervals({images} x {classes} logits, confidence {self.confidence:g}, from {len(self.steps)} weights, "
            f"mean half width {float((self.high - self.low).mean()) / 2:.3g})"
        )


def spacing_of(steps: int) -> int:
    """The least number of steps between two weights of an interval."""
    return max(1, steps // SPACINGS)


def noise_correction(
    plan: PrivacyPlan, settings: Mapping[str, Any], steps: Sequence[int], taken: int, *, of_mean: bool = False
) -> tuple[float, list[str]]:
    """The factor of an interval's half width for a plan's noise, 1 for independent noise; and its limitations.

    Args:
        plan: the plan of the run.
        settings: the settings in the run's record.
        steps: the steps after which the weights of the interval were kept.
        taken: the number of steps that the run took.
        of_mean: whether the interval is for the mean of kept weights, and not for the model of the run.
    """
    factor, notes, schedule, optimizer = 1.0, list[str](), settings["schedule"], settings["optimizer"]
    if not of_mean and (settings["ema"] or settings.get("aggregate") is not None):
        notes.append("the model is an average of weights, and varies less; the intervals are for single weights")
    if schedule != "constant":
        notes.append(f"the learning rate falls ({schedule}), so earlier weights vary more than the last ones")
    if of_mean:
        notes.append("the model is a mean: its interval assumes independent weights, and is too narrow")
    if plan.mechanism.independent:
        return factor, notes
    rate = optim.schedule(schedule, steps=plan.steps, warmup=settings["warmup"])
    factor = uncertainty.widening_of(
        plan.mechanism.variances,
        steps,
        rates=[rate(step) for step in range(taken)],
        total=max(plan.steps, taken),
        momentum=0.0 if optimizer == "sgd" else settings["momentum"],
    )
    note = f"the noise of {plan.mechanism.name} is correlated over steps, for which the interval is {factor:.2f} times"
    notes.append(f"{note} as wide as for independent noise")
    if optimizer not in ("sgd", "momentum"):
        notes.append(f"that factor is for SGD with momentum, but the optimizer is {optimizer}")
    return factor, notes


def intervals(
    directory: str | os.PathLike[str],
    images: Picture | Sequence[Picture],
    *,
    confidence: float = 0.95,
    model: nn.Module | str | None = None,
) -> Intervals:
    """Prediction intervals of the logits of some images: mean +- c t_{k-1} s sqrt(1 + 1/k) over k kept weights.

    Args:
        directory: a finished run that kept weights, or the file of their mean (upa), for which s is rescaled.
        images: as for `Loaded.predict`.
        confidence: in (0, 1).
        model: as for `load`.

    The weights come from the second half of the run and are at least a fortieth of it apart. This choice is fixed
    before any output is seen. c is 1 for independent noise. For correlated noise, whose variance in the weights differs
    from step to step, it is `averaging.widening_of`, from the noise's public covariance.

    **Guarantee.** Post-processing of released weights: the guarantee of the run, at no further cost.

    Errors: `SfumatoError` if the run kept too few weights, or for a file made by opa, omv or ema.
    """
    path = Path(directory)
    run = RunDirectory(path if path.is_dir() else path.parent)
    recorded = aggregated.kept_hashes(run)
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    taken = int(run.read_json(names.STATEMENT)["steps_taken"])
    steps = uncertainty.select_spaced(tuple(recorded), taken, spacing=spacing_of(taken))
    loaded = load(run.path, model=model)
    settings = run.read_json(names.SETTINGS)["settings"]
    shares: tuple[float, ...] = (1.0,)
    of_mean = False
    if path.is_file() and (recipe := aggregated.read(path)) is not None:
        if recipe.method != "upa":
            raise SfumatoError(
                f"{path} was made by {recipe.method}, for which there are no intervals",
                "give the run itself, or the mean of its last weights (upa)",
            )
        of_mean, shares = True, (1 / len(recipe.steps),) * len(recipe.steps)
    widening, notes = noise_correction(plan, settings, steps, taken, of_mean=of_mean)
    rest = {name: value.clone() for name, value in loaded.module.state_dict().items()}
    found = []
    try:
        for one in aggregated.load_weights(run, steps, recorded).values():
            loaded.module.load_state_dict({**rest, **one})
            found.append(loaded.logits(images))
    finally:
        loaded.module.load_state_dict(rest)
    low, high, mean, _ = uncertainty.interval(torch.stack(found), confidence, shares=shares, widening=widening)
    return Intervals(low=low, high=high, mean=mean, steps=steps, confidence=confidence, notes=tuple(notes))
