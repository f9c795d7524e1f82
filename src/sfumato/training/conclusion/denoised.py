"""How many of a run's last weights are averaged by rule: from its record and the weights that it released."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from sfumato import optim
from sfumato._checks import SfumatoError
from sfumato.averaging import denoising
from sfumato.privacy import BandedToeplitz, BufferedToeplitz, PrivacyPlan, Tree
from sfumato.privacy.factorisation.toeplitz import toeplitz_covariance
from sfumato.privacy.factorisation.tree import tree_covariance
from sfumato.runs import aggregated
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory

REMEDY = "give `last`, how many of the last weights are taken, or public data to `score_on`"


def last_by_rule(run: RunDirectory, steps: tuple[int, ...]) -> int:
    """k, by which the mean of the last k kept weights has the least expected loss: see `denoising.last_k`.

    Args:
        run: a finished run.
        steps: after which weights were kept.

    Errors: `SfumatoError` where the rule says nothing of the run: fewer than two weights, an optimizer other than SGD
    with or without momentum, rates of their own for some layers, training over aggregates.
    """
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    settings = run.read_json(names.SETTINGS)["settings"]
    for known, what in (
        (len(steps) >= 2, "a single weight was kept"),
        (settings["optimizer"] in ("sgd", "momentum"), f"the optimizer is {settings['optimizer']}"),
        (settings["pretrained_rate"] == 1, "layers have learning rates of their own"),
        (not settings.get("aggregate"), "it was trained over aggregates"),
    ):
        if not known:
            raise SfumatoError(f"no rule says how many weights of the run in {run.path} to average: {what}", REMEDY)
    taken = steps[-1]
    rate = optim.schedule(settings["schedule"], steps=plan.steps, warmup=settings["warmup"])
    weights = list(aggregated.weights_of(run, steps).values())
    return denoising.last_k(
        denoising.squared_distances(weights),
        steps,
        rates=[settings["learning_rate"] * rate(step) for step in range(taken)],
        noise=_noise(plan, taken),
        parameters=sum(value.numel() for value in weights[0].values()),
        momentum=settings["momentum"] if settings["optimizer"] == "momentum" else 0.0,
    )


def _noise(plan: PrivacyPlan, steps: int) -> Any:
    """Of one coordinate of the steps' noisy gradients, over C: variances (T,), or their covariance (T, T)."""
    variance, mechanism = (plan.noise_multiplier / plan.expected_batch_size) ** 2, plan.mechanism
    if isinstance(mechanism, Tree):
        whole = tree_covariance(plan.steps, steps_per_tree=mechanism.steps_per_tree, completed=mechanism.completed)
        return variance * whole[:steps, :steps]
    if not isinstance(mechanism, (BandedToeplitz, BufferedToeplitz)):
        return np.full(steps, variance)
    column = np.zeros(steps)
    first = np.asarray(mechanism.column(plan.steps), np.float64)[:steps]
    column[: len(first)] = first
    inverse = np.asarray(linalg.solve_toeplitz((column, np.zeros(steps)), np.eye(steps)[0]), np.float64)
    return variance * toeplitz_covariance(inverse)
