"""DP-FedEmb and DP-FedAvg with all but the noise, on public data: what the ablations of Xu et al. 2022 are made with.

Figures 5(a), 6 and 7 of that paper are without noise: users are drawn, grouped into virtual clients, trained and
clipped as in private training, and the clipped updates are summed as they are. Clipping alone protects nobody. So this
is no private run with a multiplier of 0: it takes no plan, it writes no ledger, and its statement promises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Source
from sfumato.embedding.choices import NOISELESS, ROUNDS, Clients
from sfumato.embedding.experiment import EmbeddingExperiment
from sfumato.experiment.settings import Pair, Settings
from sfumato.privacy import Fixed, Quantile

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
