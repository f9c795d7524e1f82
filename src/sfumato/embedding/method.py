"""Which method, by rule: from the number of users, the budget, and what else is asked for; never from their images. And
what is decided for the methods without noise: DP-FedEmb and DP-FedAvg with all but the noise, on public data.

Figures 5(a), 6 and 7 of Xu et al. 2022 are without noise: users are drawn, grouped into virtual clients, trained and
clipped as in private training, and the clipped updates are summed as they are. Clipping alone protects nobody. So this
is no private run with a multiplier of 0: it takes no plan, it writes no ledger, and its statement promises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Source
from sfumato.embedding.choices import FEATURES_DIMENSION, METHODS, NOISELESS, ROUNDS, UNTRAINED, WHITEN, Clients
from sfumato.embedding.experiment import Decided, EmbeddingExperiment
from sfumato.experiment import defaults
from sfumato.experiment.settings import Pair, Settings
from sfumato.privacy import Fixed, FullBatch, Gaussian, PrivacyPlan, Quantile, User
from sfumato.privacy.plan import default_delta

BATCH_SIZE, EPOCHS = 64, 20
"""Of central training, by rule."""
ROUND = "round"
"""What a run's record calls the choices that a plan would hold."""


@dataclass(frozen=True, kw_only=True)
class Unpromised:
    """What is decided of a training without a promise; of nothing but this, where there are no clients.

    Args:
        settings: of the model and the server.
        clients: how the users of a round become a sum of updates.
        batch_size: images in a step; or the expected number of users in a round, of groups where these are fixed.
        steps: how many; or the number of rounds.
        reasons: in lines for the reader, why whatever was left out is what it is.
    """

    settings: Settings
    clients: Clients
    batch_size: int
    steps: int
    reasons: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class NoiselessRounds(Unpromised):
    """How the rounds of a training without noise go. There is nothing here to account for.

    Args:
        population: how many users, or groups, are drawn from.
        clipping: one norm for all rounds, or one that follows a quantile of the updates' norms, counted exactly.
        per_user: the most records of each user that are kept; None for all.
    """

    population: int
    clipping: Fixed | Quantile
    per_user: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """What is recorded besides settings, clients, steps and batch size, which have places of their own."""
        quantile = self.clipping.quantile if isinstance(self.clipping, Quantile) else None
        return {
            "population": self.population,
            "max_norm": self.clipping.max_norm,
            "quantile": quantile,
            "per_user": self.per_user,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **others: Any) -> NoiselessRounds:
        """Those of such data, with the others."""
        clipping = clipping_of(data["max_norm"], data["quantile"])
        return cls(population=data["population"], clipping=clipping, per_user=data["per_user"], **others)


def clipping_of(max_norm: float, quantile: float | None) -> Fixed | Quantile:
    """A fixed norm, or one that follows a quantile. The latter has no noise for its count: reading that is refused."""
    return Fixed(max_norm) if quantile is None else Quantile(max_norm=max_norm, quantile=quantile)


def refuse_private(source: Source, method: str) -> None:
    """Refuse data that are not declared public."""
    if not source.public:
        other = method.removesuffix("-noiseless") if method in NOISELESS else "fedemb"
        raise SfumatoError(
            f"method {method} trains without privacy, and this {source.kind} source is private",
            f"declare it public (`public=True`) if it is; or take method {other}",
        )


def decide_central(experiment: EmbeddingExperiment, source: Source) -> Unpromised:
    """How central training goes: `batch_size` is the number of images in a step here, `learning_rate` that step's."""
    refuse_private(source, "central")
    if not (experiment.epsilon is experiment.noise_multiplier is experiment.noise is None):
        raise SfumatoError("method central promises nothing, and a budget is given", "leave the budget out")
    images = len(source.train)
    batch_size = min(images, BATCH_SIZE if experiment.batch_size is None else experiment.batch_size)
    steps = EPOCHS * max(1, images // positive_integer("batch_size", batch_size))
    return Unpromised(
        settings=experiment.settings(source),
        clients=experiment.clients_of(count=1, method="central"),
        batch_size=batch_size,
        steps=steps if experiment.steps is None else positive_integer("steps", experiment.steps),
    )


def decide_noiseless(experiment: EmbeddingExperiment, source: Source) -> NoiselessRounds:
    """How the rounds go, by the rules of private training where nothing is asked for.

    Errors: `SfumatoError` for whatever belongs to a promise: a budget, a mechanism, another participation than Poisson.
    """
    method, reasons = experiment.chosen, []
    experiment.refuse_clocks()
    promised = ("epsilon", "delta", "noise_multiplier", "noise", *(one.name for one in fields(Pair)))
    given = {name: getattr(experiment, name) for name in promised if getattr(experiment, name) is not None}
    for name, value in given.items():
        if (name, value) != ("participation", "poisson"):
            raise SfumatoError(
                f"method {method} adds no noise and promises nothing, and `{name}={value}` is given",
                f"leave {name} out, or take method {method.removesuffix('-noiseless')}",
            )
    population = experiment.population(source)
    batch_size = experiment.size_of_round(population, reasons)
    if batch_size > population:
        raise SfumatoError(
            f"batch_size must not exceed the number of users or groups, got {batch_size} of {population}",
            "give a smaller one",
        )
    if experiment.steps is None:
        reasons.append(f"by rule: steps {ROUNDS} (rounds, as in Xu et al. 2022 for EMNIST)")
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
