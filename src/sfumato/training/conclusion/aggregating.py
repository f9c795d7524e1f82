"""Aggregates of a finished run's kept weights: a better model at no further cost for its training data.

Shejwalkar et al. 2022 (arXiv 2210.01864), sections 3 and 4, at inference: means of the last weights (UPA, EMA), or of
the outputs of the models with these weights (OPA, OMV). The number of weights follows from public facts, from a search
by accuracy on public records, or from a private choice on private records, which costs epsilon.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import linalg
from torch import Tensor, nn

from sfumato import optim
from sfumato._checks import SfumatoError, one_of, positive, positive_integer, within
from sfumato._files import write
from sfumato.averaging import denoising
from sfumato.data import Source, parse, supports_user_from
from sfumato.evaluation import accuracy
from sfumato.models import ensemble
from sfumato.models.losses import NEXT_WORD, is_exclusive, probabilities
from sfumato.privacy import BandedToeplitz, FixedClipping, PrivacyPlan, PrivateChoice, Tree
from sfumato.privacy.factorisation.toeplitz import toeplitz_covariance
from sfumato.privacy.factorisation.tree import tree_covariance
from sfumato.randomness import RunKey, choose
from sfumato.runs import aggregated
from sfumato.runs import directory as names
from sfumato.runs.aggregated import ENSEMBLES, METHODS, Method, Recipe
from sfumato.runs.directory import RunDirectory
from sfumato.runs.loaded import Loaded, load
from sfumato.runs.owner import uses
from sfumato.runs.owner.lines import DataIdentity

DECAYS = (0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999)
"""The decays to search, from Shejwalkar et al. 2022, section 4."""
REMEDY = "give `last`, the number of last weights to average, or public data to `score_on`"


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """A model file made from a run's kept weights.

    Args:
        path: of the file.
        recipe: how it was made.
        reason: why this recipe was chosen.
        accuracies: of all candidates, in the order of `candidates`, if they were scored on public data.
        candidates: the recipes to choose from; one without a search.
        epsilon: the cost of the choice for each record that was scored; None if these are public or there are none.
        beside_the_run: whether the file is where `verify` finds it.
    """

    path: Path
    recipe: Recipe
    reason: str
    candidates: tuple[Recipe, ...]
    accuracies: tuple[float, ...] | None = field(default=None, repr=False)
    epsilon: float | None = None
    beside_the_run: bool = True

    def __repr__(self) -> str:
        made = f"{self.recipe.method} of the weights after {len(self.recipe.steps)} steps"
        paid = "" if self.epsilon is None else f", chosen at epsilon {self.epsilon:g}"
        return f"Aggregate({str(self.path)!r}: {made}, of {len(self.candidates)} candidates{paid})"


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The data on which candidates are scored.

    Args:
        score_on: a source, of which the test split is used; None to choose by rule.
        public: declares the source's records public; those of a published collection always are.
        epsilon: for a private test split, the cost of the choice for each of its records.
    """

    score_on: str | Source | None = None
    public: bool = False
    epsilon: float | None = None

    def __post_init__(self) -> None:
        for name, given in (("epsilon", self.epsilon), ("public", self.public or None)):
            if given is not None and self.score_on is None:
                raise SfumatoError(
                    f"{name} is {given}, but there is nothing to score on", f"give `score_on`, or no {name}"
                )


def aggregate(
    directory: str | os.PathLike[str],
    method: Method = "upa",
    *,
    last: int | None = None,
    decay: float | None = None,
    output: str | os.PathLike[str] | None = None,
    model: nn.Module | str | None = None,
    **scored: Any,
) -> Aggregate:
    """Makes a model file from the kept weights of a finished run.

    Args:
        directory: of the run.
        method: see `Recipe`.
        last: k, the number of last kept weights to use; None for the number by rule (`default_last`), or for the best
            number on `score_on`.
        decay: of "ema", per step; None for the decay whose mean age of weights equals that of the mean over the number
            by rule, or for the best of `DECAYS` on `score_on`.
        output: path of the file; by default in the run directory, where `verify` finds it. Of the run's files, only
            aggregates are overwritten.
        model: as for `load`.
        scored: `score_on`, `public` and `epsilon`, see `Scored`.

    **Guarantee.** Of the run's training data only released weights are used, so their guarantee and cost stay the same.
    If private records are scored, the choice is (epsilon, 0)-differentially private for each of them (`PrivateChoice`).
    If a person has one record in each part, each record has its own part's epsilon; a record in both has the sum.

    Errors: `SfumatoError` for a run that kept no weights, and for a private source without epsilon.
    """
    run, asked = RunDirectory(directory), Scored(**scored)
    one_of(METHODS, method=method)
    steps = tuple(aggregated.kept_hashes(run))
    candidates = _candidates(method, steps, last, decay)
    score_on, epsilon = asked.score_on, asked.epsilon
    _refuse_for_labels(run, method, scored=score_on is not None)
    path = run / f"aggregate-{method}.safetensors" if output is None else Path(output)
    aggregated.refuse_to_overwrite(path)
    alone = last is None and decay is None
    if len(candidates) == 1 and score_on is not None:
        why = "a single weight was kept" if alone else "all is given"
        raise SfumatoError(f"score_on is given, but there is nothing to choose: {why}", "leave one of them out")
    told: dict[str, Any] = {}
    accuracies = None
    if len(candidates) == 1:
        chosen, reason = candidates[0], "no others were kept" if alone else "as given"
    elif score_on is None:
        chosen, reason = _default_recipe(run, method, steps, last)
        candidates = (chosen,)
    else:
        loaded = load(directory, model=model)
        source = score_on if isinstance(score_on, Source) else _open_source(loaded, score_on)
        source = replace(source, public=source.public or asked.public)
        _refuse_unpaid(run, source, epsilon)
        right, count = _right_answers(run, loaded, source, candidates)
        if epsilon is None:
            accuracies = tuple(one / count for one in right)
            place, reason = max(range(len(right)), key=lambda one: (right[one], one)), "the best on public data"
        else:
            choice = PrivateChoice(epsilon=epsilon, candidates=len(candidates))
            uses.record_choice(DataIdentity.from_source(source), choice)
            place = choose(choice, right, RunKey.fresh())
            reason = f"chosen by right answers on private records, for epsilon {epsilon:g}"
        chosen = candidates[place]
        told = {"candidates": len(candidates), "epsilon": epsilon, "public": source.public}
    write(path, aggregated.model_bytes(run, chosen, choice=told))
    return Aggregate(
        path=path,
        recipe=chosen,
        reason=reason,
        candidates=candidates,
        accuracies=accuracies,
        epsilon=epsilon,
        beside_the_run=any(path.samefile(one) for one in aggregated.files(run)),
    )


def _refuse_for_labels(run: RunDirectory, method: Method, *, scored: bool) -> None:
    """Refuse majorities and accuracy for several labels and for embeddings, and ensembles for embeddings."""
    if "embedding" in run.read_json(names.SETTINGS) and (scored or method in ENSEMBLES):
        what = "score_on counts right classes" if scored else f"the method {method} aggregates classes"
        raise SfumatoError(
            f"{what}, but the model gives embeddings", "leave score_on out, and give the method upa or ema"
        )
    loss = run.read_json(names.SETTINGS)["settings"]["loss"]
    if loss == NEXT_WORD and scored:
        raise SfumatoError(
            "score_on counts right classes, but the model predicts the next word", "leave score_on out, or give `last`"
        )
    if not is_exclusive(loss) and (scored or method == "omv"):
        what = "score_on counts right classes" if scored else "the method omv takes a majority of classes"
        raise SfumatoError(
            f"{what}, but the model predicts several labels, which may all be true",
            "leave score_on out, and give the method upa, ema or opa",
        )


def _open_source(loaded: Loaded, spec: str) -> Source:
    """Opens the source to score on. Users are identified by the same rule as in training, if it fits the source."""
    known = supports_user_from(parse(spec)[0], loaded.user_from)
    whose = {"user_from": loaded.user_from} if known else {}
    return loaded.open_source(spec, **whose)


def _refuse_unpaid(run: RunDirectory, source: Source, epsilon: float | None) -> None:
    """Refuse private records without epsilon and public ones with it, before any record is read."""
    if source.public:
        if epsilon is not None:
            raise SfumatoError(f"epsilon is {epsilon}, but {source.kind} is public", "leave it out: it costs nothing")
        return
    if PrivacyPlan.from_dict(run.read_json(names.PLAN)).users is not None:
        raise SfumatoError(
            "the run protects users, but a choice by accuracy only protects single records",
            "score on public data, or leave score_on out to choose by rule",
        )
    if epsilon is None:
        raise SfumatoError(
            f"the test split of {source.kind} is private, and a choice by accuracy on it reveals its records",
            "give `epsilon`, the cost of the choice for each of them, or score on public data (`public=True`)",
        )
    positive(epsilon=epsilon)


def _candidates(method: Method, steps: tuple[int, ...], last: int | None, decay: float | None) -> tuple[Recipe, ...]:
    """The candidates: every number of last weights, or every decay."""
    if decay is not None and method != "ema":
        raise SfumatoError(f"decay is {decay}, but the method is {method}", "give a decay only with the method ema")
    if last is not None:
        within(None, len(steps), last=positive_integer(last=last), remedy="the run kept no more weights")
    if method == "ema":
        kept = steps if last is None else steps[-last:]
        return tuple(Recipe(method="ema", steps=kept, decay=one) for one in (DECAYS if decay is None else (decay,)))
    numbers = range(1, len(steps) + 1) if last is None else (last,)
    return tuple(Recipe(method=method, steps=steps[-number:]) for number in numbers)


def _default_recipe(run: RunDirectory, method: Method, steps: tuple[int, ...], last: int | None) -> tuple[Recipe, str]:
    """The recipe by rule, from public facts alone."""
    number = default_last(run, steps)
    explained = f"the last {number} of {len(steps)}, as far as noise explains how they differ"
    if method != "ema":
        return Recipe(method=method, steps=steps[-number:]), f"by rule: {explained}"
    age = sum(steps[-1] - step for step in steps[-number:]) / number
    recipe = Recipe(method="ema", steps=steps if last is None else steps[-last:], decay=max(0.5, age / (1 + age)))
    return recipe, f"by rule: a decay as of the mean of {explained}"


def _right_answers(
    run: RunDirectory, loaded: Loaded, source: Source, candidates: Sequence[Recipe]
) -> tuple[list[int], int]:
    """The number of test records that each candidate classifies correctly, and the number of test records."""
    weights = aggregated.load_weights(run, tuple({step: None for one in candidates for step in one.steps}))
    rest = {name: value.clone() for name, value in loaded.module.state_dict().items()}
    labels = torch.from_numpy(source.test.labels)

    def outputs(state: Mapping[str, Tensor]) -> Tensor:
        loaded.module.load_state_dict(state)
        module, transform = loaded.module_for(source)
        return accuracy.logits(module, source.test, transform, torch.device("cpu"))

    try:
        if candidates[0].method in ENSEMBLES:
            each = {step: probabilities(outputs({**rest, **one}), loaded.loss) for step, one in weights.items()}
            found = [ensemble.METHODS[one.method](each[step] for step in one.steps) for one in candidates]
        else:
            found = [outputs(one.combine(weights, rest)) for one in candidates]
    finally:
        loaded.module.load_state_dict(rest)
    return [int((one.argmax(1) == labels).sum()) for one in found], len(labels)


def default_last(run: RunDirectory, steps: tuple[int, ...]) -> int:
    """The k for which the mean of the last k kept weights has the least expected loss: see `denoising.last_k`.

    Args:
        run: a finished run.
        steps: the steps after which weights were kept.

    Errors: `SfumatoError` where the rule does not apply: fewer than two weights, an optimizer other than SGD with or
    without momentum, separate learning rates for some layers, training over aggregates, an adaptive clipping norm.
    """
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    record = run.read_json(names.SETTINGS)
    settings, clients = record["settings"], record.get("embedding", {})
    for known, what in (
        (len(steps) >= 2, "a single weight was kept"),
        (settings["optimizer"] in ("sgd", "momentum"), f"the optimizer is {settings['optimizer']}"),
        (settings["pretrained_rate"] == 1, "layers have different learning rates"),
        (not settings.get("aggregate"), "it was trained over aggregates"),
        (isinstance(plan.clipping, FixedClipping), "the clipping norm follows a quantile"),
    ):
        if not known:
            raise SfumatoError(f"no rule says how many weights of the run in {run.path} to average: {what}", REMEDY)
    taken = steps[-1]
    rate = optim.schedule(settings["schedule"], steps=plan.steps, warmup=settings["warmup"])
    weights = list(aggregated.load_weights(run, steps).values())
    return denoising.last_k(
        denoising.squared_distances(weights),
        steps,
        rates=[settings["learning_rate"] * rate(step) for step in range(taken)],
        noise=_noise(plan, taken) * _scale(plan, clients) ** 2,
        parameters=sum(value.numel() for value in weights[0].values()),
        momentum=settings["momentum"] if settings["optimizer"] == "momentum" else 0.0,
    )


def _scale(plan: PrivacyPlan, clients: Mapping[str, Any]) -> float:
    """The scale of an update, in units of C / B: a sum of virtual clients' updates is only divided by their number."""
    return plan.max_norm * plan.expected_batch_size / clients["count"] if plan.unit.drawn == "clients" else 1.0


def _noise(plan: PrivacyPlan, steps: int) -> Any:
    """Noise in one coordinate of the steps' gradients, in units of C: variances (T,) or the covariance (T, T)."""
    variance, mechanism = (plan.noise_multiplier / plan.expected_batch_size) ** 2, plan.mechanism
    if isinstance(mechanism, Tree):
        whole = tree_covariance(plan.steps, steps_per_tree=mechanism.steps_per_tree, completed=mechanism.completed)
        return variance * whole[:steps, :steps]
    if not isinstance(mechanism, BandedToeplitz):
        return np.full(steps, variance)
    column = np.zeros(steps)
    first = np.asarray(mechanism.column(plan.steps), np.float64)[:steps]
    column[: len(first)] = first
    inverse = np.asarray(linalg.solve_toeplitz((column, np.zeros(steps)), np.eye(steps)[0]), np.float64)
    return variance * toeplitz_covariance(inverse)
