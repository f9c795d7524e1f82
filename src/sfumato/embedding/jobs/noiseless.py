"""DP-FedEmb and DP-FedAvg with all but the noise, on public data: what the ablations of Xu et al. 2022 are made with.

Figures 5(a), 6 and 7 of that paper are without noise: users are drawn, grouped into virtual clients, trained and
clipped as in private training, and the clipped updates are summed as they are. Clipping alone protects nobody. So this
is no private run with a multiplier of 0: it takes no plan, it writes no ledger, and its statement promises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Source
from sfumato.embedding.choices import ROUNDS, Clients
from sfumato.embedding.clients.local import LocalTraining
from sfumato.embedding.clients.query import ClippedUpdates
from sfumato.embedding.experiment import EmbeddingExperiment
from sfumato.embedding.jobs.private import KIND, OfEmbeddings, build, check_scored, check_users
from sfumato.experiment.budget import Pair
from sfumato.experiment.settings import Settings
from sfumato.privacy import ClippedAlone, Fixed, Quantile, User
from sfumato.randomness import RunKey
from sfumato.training.job import PublicJob
from sfumato.training.preparation.start import Start
from sfumato.training.public.preparing import in_common

ROUND = "round"
"""What a run's record calls the choices that a plan would hold."""


@dataclass(frozen=True, kw_only=True)
class NoiselessRounds:
    """How the rounds of a training without noise go: what is decided of it. There is nothing here to account for.

    Args:
        settings: of the model and the server.
        clients: how the users of a round become a sum of updates.
        batch_size: the expected number of users in a round, or of groups where these are fixed.
        population: how many users, or groups, are drawn from.
        steps: the number of rounds.
        clipping: one norm for all rounds, or one that follows a quantile of the updates' norms, counted exactly.
        per_user: the most records of each user that are kept; None for all.
    """

    settings: Settings
    clients: Clients
    batch_size: int
    population: int
    steps: int
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
    def from_record(cls, record: Mapping[str, Any]) -> NoiselessRounds:
        """Those of a run's record."""
        known = record[ROUND]
        return cls(
            settings=Settings.from_dict(record["settings"]),
            clients=Clients.from_dict(record[KIND]),
            batch_size=record["batch_size"],
            population=known["population"],
            steps=record["steps"],
            clipping=clipping_of(known["max_norm"], known["quantile"]),
            per_user=known["per_user"],
        )


@dataclass(frozen=True, kw_only=True)
class NoiselessJob(OfEmbeddings, PublicJob):
    """A training by clipped updates without noise that is to be.

    Args:
        gradient: the clipped update of a client.
        rounds: how they go.
    """

    gradient: ClippedUpdates
    rounds: NoiselessRounds

    @property
    def statement(self) -> ClippedAlone:
        """That nothing is promised, although updates are clipped."""
        return ClippedAlone(
            published=self.source.published,
            origins=self.origins,
            filtered=self.source.filtered,
            method=self.clients.method,
        )

    @property
    def further(self) -> dict[str, Any]:
        """How clients are made and train, who is drawn from, and how updates are clipped."""
        return super().further | {ROUND: self.rounds.to_dict()}


def clipping_of(max_norm: float, quantile: float | None) -> Fixed | Quantile:
    """A fixed norm, or one that follows a quantile. The latter has no noise for its count: reading that is refused."""
    return Fixed(max_norm) if quantile is None else Quantile(max_norm=max_norm, quantile=quantile)


def decide(experiment: EmbeddingExperiment, source: Source) -> tuple[NoiselessRounds, list[str]]:
    """How the rounds go, by the rules of private training where nothing is asked for; and in lines why.

    Errors: `SfumatoError` for whatever belongs to a promise: a budget, a mechanism, another participation than Poisson.
    """
    method, reasons = experiment.chosen, []
    experiment.refuse_clocks()
    promised = ("epsilon", "delta", "noise_multiplier", *(one.name for one in fields(Pair)))
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
    rounds = NoiselessRounds(
        settings=settings,
        clients=experiment.clients_by_rule(source, settings, batch_size, reasons),
        batch_size=batch_size,
        population=population,
        steps=ROUNDS if experiment.steps is None else positive_integer("steps", experiment.steps),
        clipping=clipping_of(1.0 if experiment.max_norm is None else experiment.max_norm, experiment.quantile),
        per_user=experiment.per_user,
    )
    return rounds, reasons


def prepare(
    source: Source,
    rounds: NoiselessRounds,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    **others: Any,
) -> NoiselessJob:
    """Everything up to the first round; arguments as for `sfumato.embedding.jobs.private.prepare`.

    **Guarantee.** None. Data that are not declared public are refused.
    """
    settings, clients = rounds.settings, rounds.clients
    if not source.public:
        raise SfumatoError(
            f"method {clients.method} trains without privacy, and this {source.kind} source is private",
            f"declare it public (`public=True`) if it is; or take method {clients.method.removesuffix('-noiseless')}",
        )
    if source.cache is not None:
        raise SfumatoError("embeddings are trained on images, and the source is a cache of features", "give the images")
    check_users(source, User(drawn="clients", at_most=rounds.per_user))
    check_scored(source)

    def built(key: RunKey) -> nn.Module:
        return build(source, settings, clients, key, model)

    start = Start.given(start, others)
    known = in_common(source, settings, built, steps=rounds.steps, start=start, micro_batch=clients.local.batch_size)
    local = LocalTraining(known["module"], clients.local)
    return NoiselessJob(
        **known,
        gradient=ClippedUpdates(local=local, max_norm=rounds.clipping.max_norm),
        rounds=rounds,
        batch_size=rounds.batch_size,
        clients=clients,
    )
