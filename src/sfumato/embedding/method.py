"""Which method, by rule: from the number of users, the budget, and what else is asked for; never from their images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.embedding.choices import FEATURES_DIMENSION, METHODS, UNTRAINED, WHITEN, Clients
from sfumato.embedding.experiment import Decided, EmbeddingExperiment
from sfumato.embedding.noiseless import Unpromised
from sfumato.experiment import defaults
from sfumato.experiment.settings import Settings
from sfumato.privacy import FullBatch, Gaussian, PrivacyPlan, User
from sfumato.privacy.plan import default_delta

WORTH = 0.015
"""Noise multiplier for each user up to which whitening is taken: measured in docs/embeddings.md."""
FEDEMB_FROM = 100_000
"""Users from whom on a network is trained: docs/embeddings.md."""
MAX_NORM = 0.05
"""C by rule: in photographs a user's scatter has a larger norm, so all count alike."""
FEATURES, SMALLEST, PIXELS = "scattering", 8, "linear"
"""The features that are whitened, by rule; where nothing is trained, those that a classifier would begin with. And from
how many pixels a side on, below which the pixels themselves are."""
BY_RULE = ("epsilon", "delta", "dimension", "far", "per_user", "seed")
"""What may be asked for where the method follows from the number of users. Whoever chooses a network, rounds or clients
has chosen to train one."""


class Forecast(NamedTuple):
    """From how many users on what is worth its budget.

    Attributes:
        epsilon: the budget.
        whiten: a linear map of fixed features.
        fedemb: a network.
    """

    epsilon: float
    whiten: int
    fedemb: int = FEDEMB_FROM

    @property
    def words(self) -> str:
        """For a line."""
        return (
            f"at epsilon {self.epsilon:.3g} a linear map is worth its budget from {self.whiten:,} people on, a network "
            f"from {self.fedemb:,}"
        )


def forecast(epsilon: float | None, delta: float | None, users: int) -> Forecast:
    """Of so many users, whose number decides delta where none is asked for."""
    epsilon = defaults.EPSILON if epsilon is None else epsilon
    plan = _plan(users, epsilon=epsilon, delta=default_delta(users) if delta is None else delta)
    return Forecast(epsilon=epsilon, whiten=math.ceil(plan.noise_multiplier / WORTH))


def resolved(experiment: EmbeddingExperiment, source: Source) -> tuple[EmbeddingExperiment, list[str]]:
    """The experiment with its method, and in lines why it is that; as it is where something else decides it."""
    if experiment.method is not None or not by_rule(experiment):
        return experiment, []
    users = source.users or experiment.population(source)
    found = forecast(experiment.epsilon, experiment.delta, users)
    if users >= found.fedemb:
        method, why = METHODS[0], f"{users:,} people"
    elif users < found.whiten:
        method, why = UNTRAINED, f"{users:,} people; no private data are used"
    elif source.examples < 2 * users:
        method, why = UNTRAINED, f"{source.examples:,} images of {users:,} people have too little in common"
    else:
        method, why = WHITEN, f"{users:,} people"
    unused = {"epsilon": None, "delta": None} if method == UNTRAINED else {}
    return replace(experiment, method=method, **unused), [f"by rule: method {method} ({why}; {found.words})"]


def by_rule(experiment: EmbeddingExperiment) -> bool:
    """Whether nothing is asked for that says how to train."""
    return not set(experiment.given) - set(BY_RULE)


def decide_whitening(experiment: EmbeddingExperiment, source: Source) -> Decided:
    """Plan, settings and dimension of one release over all users."""
    users, reasons = experiment.population(source), []
    given = {"epsilon": experiment.epsilon, "noise_multiplier": experiment.noise_multiplier}
    if given["epsilon"] is None and given["noise_multiplier"] is None:
        given["epsilon"] = defaults.EPSILON
    if None not in given.values():
        raise SfumatoError("epsilon and noise_multiplier are both given, and each follows from the other", "give one")
    delta = default_delta(users) if experiment.delta is None else experiment.delta
    norm = MAX_NORM if experiment.max_norm is None else experiment.max_norm
    plan = _plan(users, delta=delta, max_norm=norm, at_most=experiment.per_user, **given)
    if experiment.delta is None:
        reasons.append(f"by rule: delta {plan.delta:g} (at most 1e-5 and 1/(10 N), N users)")
    settings, clients = _of_features(experiment, source, reasons, features=FEATURES)
    share = plan.noise_multiplier / users
    if share > WORTH:
        reasons.append(
            f"note: with so few people the noise leaves little of what whitening measures: it is worth its budget from "
            f"{math.ceil(plan.noise_multiplier / WORTH):,} people on"
        )
    return Decided(plan, settings, clients, reasons)


def decide_untrained(experiment: EmbeddingExperiment, source: Source) -> Unpromised:
    """Settings and dimension where nothing is trained."""
    experiment.population(source)
    reasons: list[str] = []
    features = defaults.model_rule(given={}, size=source.size, channels=source.channels).value
    settings, clients = _of_features(experiment, source, reasons, features=features)
    return Unpromised(settings=settings, clients=clients, batch_size=1, steps=0, reasons=reasons)


def _plan(
    users: int,
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    max_norm: float = MAX_NORM,
    at_most: int | None = None,
) -> PrivacyPlan:
    """One release of a sum over all users."""
    return PrivacyPlan.calibrate(
        examples=users,
        delta=delta,
        steps=1,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        max_norm=max_norm,
        unit=User(drawn="users", at_most=at_most),
        participation=FullBatch(),
        mechanism=Gaussian(noise_multiplier=1.0),
    )


def _of_features(
    experiment: EmbeddingExperiment, source: Source, reasons: list[str], *, features: str
) -> tuple[Settings, Clients]:
    """Of an embedding that begins at fixed features, by rule at these."""
    model, dimension = experiment.model, experiment.dimension
    if model is None:
        model = features if source.size >= SMALLEST else PIXELS
        reasons.append(f"by rule: model {model} (fixed public features, by a public projection)")
    if dimension is None:
        dimension = FEATURES_DIMENSION
        reasons.append(f"by rule: dimension {dimension} (keeps the features' similarities)")
    names: Mapping[str, Any] = {
        name: value
        for name in ("pretrained", "pretrained_weights", "seed", "noise")
        if (value := getattr(experiment, name)) is not None
    }
    settings = Settings(
        **{"model": model, "optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0, "ema": 0.0, **names}
    )
    clients = replace(experiment, dimension=dimension).clients_of(count=1, method=experiment.chosen)
    return settings, clients
