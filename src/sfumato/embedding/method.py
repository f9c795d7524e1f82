"""The choice of the method by rule, from the number of users, the budget and the other options, never from the images;
and the settings of the methods without noise: DP-FedEmb and DP-FedAvg without noise, on public data.

Figures 5(a), 6 and 7 of Xu et al. 2022 are without noise: users are drawn, grouped into virtual clients, trained and
clipped as in private training, but the clipped updates are summed without noise. Clipping alone protects nobody. So
this is not a private run with noise multiplier 0: it has no plan and no ledger, and its statement promises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Source
from sfumato.embedding.choices import FEATURES_DIMENSION, METHODS, NOISELESS, ROUNDS, UNTRAINED, Clients
from sfumato.embedding.experiment import EmbeddingExperiment
from sfumato.experiment import defaults
from sfumato.experiment.settings import Pair, Settings
from sfumato.privacy import FixedClipping, QuantileClipping

BATCH_SIZE, EPOCHS = 64, 20
"""Batch size and epochs of central training, by rule."""
ROUND = "round"
"""The key in a run's record of the settings that a plan would hold."""


@dataclass(frozen=True, kw_only=True)
class PublicDecision:
    """The settings of a training without a promise.

    Args:
        settings: the settings of the model and the server.
        clients: how the users of a round become a sum of updates.
        batch_size: the images of a step; or the expected number of users in a round, or of groups if these are fixed.
        steps: the number of steps or rounds.
        reasons: the reasons, as lines of text, for what the rules chose.
    """

    settings: Settings
    clients: Clients
    batch_size: int
    steps: int
    reasons: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class NoiselessRounds(PublicDecision):
    """The settings of the rounds of a training without noise. There is no privacy to account for.

    Args:
        population: the number of users, or groups, from which a round is drawn.
        clipping: a fixed clipping norm, or one that follows a quantile of the updates' norms, counted exactly.
        per_user: the most records kept of each user; None for all.
    """

    population: int
    clipping: FixedClipping | QuantileClipping
    per_user: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record of the rounds, without settings, clients, steps and batch size, which are recorded separately."""
        quantile = self.clipping.quantile if isinstance(self.clipping, QuantileClipping) else None
        return {
            "population": self.population,
            "max_norm": self.clipping.max_norm,
            "quantile": quantile,
            "per_user": self.per_user,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **others: Any) -> NoiselessRounds:
        """The rounds from `to_dict` and the other settings."""
        clipping = clipping_of(data["max_norm"], data["quantile"])
        return cls(population=data["population"], clipping=clipping, per_user=data["per_user"], **others)


def clipping_of(max_norm: float, quantile: float | None) -> FixedClipping | QuantileClipping:
    """A fixed norm, or one that follows a quantile. The latter has no count noise; reading that raises an error."""
    return FixedClipping(max_norm) if quantile is None else QuantileClipping(max_norm=max_norm, quantile=quantile)


def refuse_private(source: Source, method: str) -> None:
    """Refuse data that are not declared public."""
    if not source.public:
        other = method.removesuffix("-noiseless") if method in NOISELESS else "fedemb"
        raise SfumatoError(
            f"method {method} trains without privacy, but this {source.kind} source is private",
            f"declare it public (`public=True`) if it is; or use method {other}",
        )


def decide_central(experiment: EmbeddingExperiment, source: Source) -> PublicDecision:
    """The settings of central training. Here `batch_size` and `learning_rate` are those of a step on images."""
    refuse_private(source, "central")
    given = (experiment.target, experiment.accountant, experiment.noise_multiplier, experiment.noise)
    if any(value is not None for value in given):
        raise SfumatoError("method central has no guarantee, but a budget is given", "leave the budget out")
    images = len(source.train)
    batch_size = min(images, BATCH_SIZE if experiment.batch_size is None else experiment.batch_size)
    steps = EPOCHS * max(1, images // positive_integer("batch_size", batch_size))
    return PublicDecision(
        settings=experiment.settings(source),
        clients=experiment.clients_of(count=1, method="central"),
        batch_size=batch_size,
        steps=steps if experiment.steps is None else positive_integer("steps", experiment.steps),
    )


def decide_noiseless(experiment: EmbeddingExperiment, source: Source) -> NoiselessRounds:
    """The settings of rounds without noise, by the rules of private training for options that are left out.

    Errors: `SfumatoError` for options of a promise: a budget, a mechanism, or another participation than Poisson.
    """
    method, reasons = experiment.chosen, []
    experiment.refuse_orders()
    promised = ("epsilon", "delta", "accountant", "noise_multiplier", "noise", *(one.name for one in fields(Pair)))
    given = {name: getattr(experiment, name) for name in promised if getattr(experiment, name) is not None}
    for name, value in given.items():
        if (name, value) != ("participation", "poisson"):
            raise SfumatoError(
                f"method {method} adds no noise and has no guarantee, but `{name}={value}` is given",
                f"leave {name} out, or use method {method.removesuffix('-noiseless')}",
            )
    population = experiment.population(source)
    batch_size = experiment.size_of_round(population, reasons)
    if batch_size > population:
        raise SfumatoError(
            f"batch_size must not exceed the number of users or groups, got {batch_size} of {population}",
            "give a smaller one",
        )
    if experiment.steps is None:
        reasons.append(f"steps {ROUNDS} (by rule: rounds, as in Xu et al. 2022 for EMNIST)")
    settings = experiment.settings(source)
    return NoiselessRounds(
        settings=settings,
        clients=experiment.clients_by_rule(source, settings, batch_size, reasons),
        batch_size=batch_size,
        population=population,
        steps=ROUNDS if experiment.steps is None else positive_integer("steps", experiment.steps),
        clipping=clipping_of(1.0 if experiment.max_norm is None else experiment.max_norm, experiment.quantile),
        per_user=experiment.per_user,
        reasons=reasons,
    )


FEDEMB_FROM = 100_000
"""The least number of users for training a network: docs/tasks.md."""
SMALLEST, PIXELS = 8, "linear"
"""The least image side in pixels for the features of a classifier's rule, and the features of smaller images: the
pixels themselves."""
BY_RULE = ("epsilon", "delta", "dimension", "far", "per_user", "seed")
"""The options with which the method still follows from the number of users. Options of a network, rounds or clients
imply training a network."""


def resolve_method(experiment: EmbeddingExperiment, source: Source) -> tuple[EmbeddingExperiment, list[str]]:
    """The experiment with the method chosen by rule, and the reasons; unchanged if the options decide the method."""
    if experiment.method is not None or not is_by_rule(experiment):
        return experiment, []
    users = source.users or experiment.population(source)
    if users >= FEDEMB_FROM:
        return replace(experiment, method=METHODS[0]), [f"method {METHODS[0]} (by rule: {users:,} people)"]
    why = f"{users:,} people; no private data are used; a network is worth its budget from {FEDEMB_FROM:,} on"
    return replace(experiment, method=UNTRAINED, epsilon=None, delta=None), [f"method {UNTRAINED} (by rule: {why})"]


def is_by_rule(experiment: EmbeddingExperiment) -> bool:
    """Whether no option says how to train."""
    return not set(experiment.given) - set(BY_RULE)


def decide_untrained(experiment: EmbeddingExperiment, source: Source) -> PublicDecision:
    """Settings and dimension of an untrained embedding, by rule on a classifier's fixed features."""
    experiment.population(source)
    reasons: list[str] = []
    model, dimension = experiment.model, experiment.dimension
    if model is None:
        by_rule = defaults.model_rule(given={}, size=source.size, channels=source.channels).value
        model = by_rule if source.size >= SMALLEST else PIXELS
        reasons.append(f"model {model} (by rule: fixed public features, by a public projection)")
    if dimension is None:
        dimension = FEATURES_DIMENSION
        reasons.append(f"dimension {dimension} (by rule: keeps the features' similarities)")
    names = {name: getattr(experiment, name) for name in ("pretrained", "pretrained_weights", "seed")}
    known: Mapping[str, Any] = {name: value for name, value in names.items() if value is not None}
    settings = Settings(
        **{"model": model, "optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0, "ema": 0.0, **known}
    )
    clients = replace(experiment, dimension=dimension).clients_of(count=1, method=experiment.chosen)
    return PublicDecision(settings=settings, clients=clients, batch_size=1, steps=0, reasons=reasons)
