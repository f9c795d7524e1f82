"""The options of an embedding training, from the command line, a recipe or Python, and what they decide.

By rule the number of users, the budget and the other options choose the method, never the images. Figures 5(a), 6 and 7
of Xu et al. 2022 are without noise: users are drawn, grouped into virtual clients, trained and clipped as in private
training, but the clipped updates are summed without noise. Clipping alone protects nobody. So this is not a private run
with noise multiplier 0: it has no plan and no ledger, and its statement says that there is no guarantee.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sfumato import data
from sfumato._checks import SfumatoError, one_of, positive_integer, within
from sfumato._choices import choices_of
from sfumato.averaging.choices import Averages
from sfumato.experiment.client_choices import (
    DECAY,
    FEATURE_OPTIONS,
    FEATURES_DIMENSION,
    FEDEMB_FROM,
    FIRST_HEADS,
    LARGEST_SMALL_IMAGE,
    LOCAL_HEAD,
    METHODS,
    NOISELESS,
    ROUNDS,
    TEMPERATURE,
    UNTRAINED,
    USERS_PER_CLIENT,
    USERS_PER_ROUND,
    WITHOUT_PLAN,
    BudgetOfRounds,
    ClientChoices,
    Clients,
    LocalSGD,
    NoiselessRounds,
    ServerChoices,
    clipping_of,
    unused_choices,
)
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import (
    MOST_EXAMPLES,
    Budget,
    NoiseMade,
    Pair,
    Settings,
    check_plan,
    make_plan,
    refuse_noise,
)
from sfumato.optim.descent import Descent
from sfumato.privacy.planning.target import Epsilon

if TYPE_CHECKING:
    from sfumato.data import Source, SourceSpec
    from sfumato.privacy import PrivacyPlan

CLIENT_OPTIONS = {
    **{f"client_{name}": name for name in ("momentum", "epochs", "batch_size", "examples", "loss", "temperature")},
    **{name: name for name in ("head_scale", "shuffle_buffer", "reconstruction_steps")},
    "client_rate": "learning_rate",
    "client_head": "first_head",
}
"""The options of clients, with their names in `LocalSGD`."""
CENTRAL_BATCH, CENTRAL_EPOCHS = 64, 20
"""Batch size and epochs of central training, by rule."""
SMALLEST, PIXELS = 8, "linear"
"""The least image side in pixels for the features of a classifier's rule, and the features of smaller images: the
pixels themselves."""
PARTICIPATIONS = ("poisson", "full-batch", "fixed-order", "cyclic", "truncated")
"""Rules of who takes part that treat all users alike."""
OF_A_GUARANTEE = (
    *("epsilon", "delta", "accountant", "noise_multiplier", "noise"),
    *(field.name for field in fields(Pair)),
)
"""Options that methods without a plan refuse."""
BY_RULE = ("epsilon", "delta", "dimension", "far", "per_user", "seed")
"""The options with which the method still follows from the number of users. Options of a network, rounds or clients
imply training a network."""


class EmbeddingDecision(NamedTuple):
    """The plan, the server's and the clients' settings, and the reasons, as lines of text, for what the rules chose."""

    plan: PrivacyPlan
    settings: Settings
    clients: Clients
    reasons: list[str]


class PublicDecision(NamedTuple):
    """The settings of a training without a guarantee.

    Args:
        settings: the settings of the model and the server.
        clients: how the users of a round become a sum of updates.
        batch_size: the images of a step; or the expected number of users in a round, or of groups if these are fixed.
        steps: the number of steps or rounds.
        reasons: the reasons, as lines of text, for what the rules chose.
        rounds: the rounds of virtual clients, if there are any.
    """

    settings: Settings
    clients: Clients
    batch_size: int
    steps: int
    reasons: list[str]
    rounds: NoiselessRounds | None = None


@dataclass(frozen=True, kw_only=True)
class EmbeddingExperiment(ClientChoices, ServerChoices, Pair, NoiseMade, BudgetOfRounds):
    """The options of an embedding training. The guarantee is for users.

    `batch_size` is the expected number of users in a round (of groups, if these are fixed), `steps` is the number of
    rounds, and `max_norm` bounds a client's update.
    """

    seed: int | None = None

    def decide(self, source: Source) -> EmbeddingDecision | PublicDecision:
        """The settings for this source, with a plan where the method has one.

        Errors: `SfumatoError` for impossible options, before anything is spent.
        """
        experiment, why = self.with_method(source)
        experiment.refuse_others()
        by_method = {
            "central": _central,
            UNTRAINED: _untrained,
            "dpsgd": _dpsgd,
            **dict.fromkeys(NOISELESS, _noiseless),
        }
        decided = by_method.get(experiment.chosen, _private)(experiment, source)
        return decided._replace(reasons=[*why, *decided.reasons])

    def select_records(self, source: Source) -> Source:
        """The source to train on, with at most `per_user` records of each user. Refuses a source without classes."""
        from sfumato.experiment import users

        source = users.cap_records(source, self.per_user)
        source.require_classes("a training of embeddings")
        return source

    def check_source(self, spec: SourceSpec | None = None) -> None:
        """Refuse options that are impossible for any data, or for this source as declared."""
        from sfumato.privacy import User

        self.check_numbers()
        self.refuse_others()
        positive_integer(optional=True, per_user=self.per_user)
        settings = Settings.provisional(vars(self), ema=DECAY if self.aggregate == "ema" else 0.0)
        settings.check_steps(self.steps)
        self.clients_of(**{} if self.clients is None else {"count": self.clients})
        if spec is not None:
            settings.check_source(spec, self.model)
            if self.chosen != "central":
                spec.refuse_without_users()
        if self.chosen not in WITHOUT_PLAN:
            request = self.request(MOST_EXAMPLES, momentum=0.0)
            clipping = clipping_of(self.max_norm, self.quantile, count_noise=1e6)  # the real one depends on the clients
            refuse_noise(self.noise, request.mechanism, None if self.quantile is None else clipping)
            unit = User(clients=True, at_most=self.per_user)
            check_plan(self, unit, request, clipping=clipping, max_norm=None)

    def with_method(self, source: Source) -> tuple[EmbeddingExperiment, list[str]]:
        """The experiment with the method by rule, and the reasons; unchanged if the options decide the method."""
        if self.method is not None or set(self.given) - set(BY_RULE):
            return self, []
        users = source.users or self.population(source)
        if users >= FEDEMB_FROM:
            return replace(self, method=METHODS[0]), [f"method {METHODS[0]} (by rule: {users:,} people)"]
        why = f"{users:,} people; no private data are used; a network is worth its budget from {FEDEMB_FROM:,} on"
        return replace(self, method=UNTRAINED, epsilon=None, delta=None), [f"method {UNTRAINED} (by rule: {why})"]

    @property
    def chosen(self) -> str:
        """The requested method, or the default."""
        return one_of(METHODS, method=self.method or METHODS[0])

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def refuse_others(self) -> None:
        """Refuse options that the method ignores, and what no training of embeddings allows.

        Comparing two values of an ignored option would compare a run with itself.

        **Guarantee.** No number turns a private run into one without noise: that takes a method of another name. Users
        take part, with all of their records at once, by secret draws: each independently of all others. A user's place
        in a file would depend on who else is in it.
        """
        method, options, noiseless = self.chosen, self.given, f"{self.chosen}-noiseless"
        unused = set(unused_choices(method, self.client_loss))
        if method == UNTRAINED:
            unused |= set(options) - set(FEATURE_OPTIONS)
        elif method in WITHOUT_PLAN:
            unused |= set(OF_A_GUARANTEE)
        for name in options:
            if name in unused:
                loss = f" with the loss {self.client_loss}" if self.client_loss and name != "client_loss" else ""
                raise SfumatoError(
                    f"method {method}{loss} does not use {name}, but `{name}={options[name]}` is given",
                    f"leave {name} out, or use another method",
                )
        if self.noise_multiplier == 0:
            raise SfumatoError(
                "`noise_multiplier=0` adds no noise, and without noise there is no guarantee",
                f"give a positive number; or train without noise, on public data alone, with method "
                f"{noiseless if noiseless in NOISELESS else NOISELESS[0]}",
            )
        one_of(PARTICIPATIONS, optional=True, participation=self.participation)
        one_of(("random",), optional=True, order=self.order, remedy="leave it out: users have no place in a file")

    def population(self, source: Source) -> int:
        """The number of users from which a round is drawn, or of groups if these are fixed."""
        from sfumato.experiment import users

        if source.users is None:
            data.refuse_without_users()
        return users.groups_of(source) if self.grouping == "fixed" else source.users

    def size_of_round(self, population: int, reasons: list[str]) -> int:
        """The expected number of users (groups, if these are fixed) in a round. Adds to `reasons`."""
        if self.batch_size is not None:
            return positive_integer(batch_size=self.batch_size)
        size = max(1, min(USERS_PER_ROUND, population // 4))
        units = "groups" if self.grouping == "fixed" else "users"
        reasons.append(f"batch size {size} (by rule: {units} in a round: {USERS_PER_ROUND}, a quarter at most)")
        return size

    def clients_by_rule(self, source: Source, settings: Settings, expected: int, reasons: list[str]) -> Clients:
        """The virtual clients of rounds with `expected` users (groups, if these are fixed). Adds to `reasons`."""
        if self.model is None:
            reasons.append(f"model {settings.model} (by rule: for images of {source.size} pixels)")
        grouped = self.grouping == "fixed"
        counted = max(1, expected // (1 if grouped else USERS_PER_CLIENT))
        if self.clients is None:
            why = "one for each group" if grouped else f"{USERS_PER_CLIENT} users in each"
            reasons.append(f"clients {counted} (by rule: {why})")
        elif grouped and self.clients != counted:
            raise SfumatoError(
                f"clients {self.clients} and {counted} groups in a round are both given",
                "leave clients out: each fixed group is a client",
            )
        return self.clients_of(count=counted if self.clients is None else self.clients)

    def clients_of(self, **others: Any) -> Clients:
        """The clients with the requested method, grouping, dimension and false accept rate."""
        options = {name: value for name, value in self.given.items() if name in ("grouping", "dimension", "far")}
        return Clients(**{"local": self.local(), "method": self.chosen, **options, **others})

    def local(self) -> LocalSGD:
        """The settings of a client's training."""
        options = {name: getattr(self, name) for name in CLIENT_OPTIONS if getattr(self, name) is not None}
        has_heads = self.chosen in LOCAL_HEAD and self.client_loss in (None, "softmax")
        by_rule: dict[str, Any] = {"examples": 2048, "first_head": "prototype" if has_heads else "random"}
        by_rule["head"] = "global" if self.chosen in ("fedavg", "fedavg-noiseless") else "local"
        if one_of(FIRST_HEADS, client_head=self.client_head or by_rule["first_head"]) == "prototype":
            by_rule |= {"head_scale": 1.0, "temperature": TEMPERATURE}
        return LocalSGD(**by_rule | {CLIENT_OPTIONS[name]: value for name, value in options.items()})

    def settings(self, source: Source) -> Settings:
        """The settings of model and server."""
        by_rule = {
            "model": "lenet" if source.size <= LARGEST_SMALL_IMAGE else "mobilenet-v2",
            "learning_rate": 0.02,
            "ema": DECAY if self.aggregate == "ema" else 0.0,
        }
        names = set(choices_of(Settings))
        return Settings(**by_rule | {name: value for name, value in self.given.items() if name in names})


def refuse_private(source: Source, method: str) -> None:
    """Refuse data that are not declared public."""
    if not source.public:
        other = method.removesuffix("-noiseless") if method in NOISELESS else "fedemb"
        raise SfumatoError(
            f"method {method} trains without privacy, but this {source.kind} source is private",
            f"declare it public (`public=True`) if it is; or use method {other}",
        )


def _private(experiment: EmbeddingExperiment, source: Source) -> EmbeddingDecision:
    """Plan, settings and clients of DP-FedEmb and DP-FedAvg."""
    from sfumato.privacy.statements.display import rounded_up

    reasons: list[str] = []
    plan = _plan(experiment, source, reasons)
    settings = experiment.settings(source)
    clients = experiment.clients_by_rule(source, settings, plan.expected_batch_size, reasons)
    if experiment.delta is None:
        reasons.append(f"delta {plan.delta:g} (by rule: at most 1e-5 and 1/(10 N), N users)")
    if experiment.noise_multiplier is not None:
        epsilon = rounded_up(plan.epsilon())
        reasons.append(f"note: noise multiplier {plan.noise_multiplier:g} comes to epsilon {epsilon}")
    return EmbeddingDecision(plan, settings, clients, reasons)


def _plan(experiment: EmbeddingExperiment, source: Source, reasons: list[str]) -> PrivacyPlan:
    """The plan of the rounds. Adds to `reasons`."""
    from sfumato.experiment import defaults
    from sfumato.privacy import User

    population, grouped = experiment.population(source), experiment.grouping == "fixed"
    steps, target = experiment.steps, experiment.target
    if target is None and experiment.noise_multiplier is None:
        target = Epsilon(defaults.EPSILON)
    if steps is None and None in (target, experiment.noise_multiplier):
        steps = ROUNDS
        reasons.append(f"steps {ROUNDS} (by rule: rounds, as in Xu et al. 2022 for EMNIST)")
    size = experiment.size_of_round(population, reasons)
    users = source.users or population
    count = experiment.clients or max(1, size // (1 if grouped else USERS_PER_CLIENT))
    try:
        return make_plan(
            experiment,
            population,
            User(clients=True, at_most=experiment.per_user, users=users if grouped else None, grouped=grouped),
            experiment.request(population),
            batch_size=size,
            steps=steps,
            max_norm=None,
            clipping=clipping_of(experiment.max_norm, experiment.quantile, count / 20),
            epsilon=None if target is None else target.limit,
        )
    except SfumatoError as error:
        if experiment.quantile is None or "count_noise" not in str(error):
            raise
        noise = f"with noise of {count / 20:g}"
        raise SfumatoError(
            f"{error.problem}: with a quantile the count of {count} clients is also released, {noise}",
            "give more clients and more users in a round, give a larger epsilon, or leave quantile out",
        ) from None


def _dpsgd(experiment: EmbeddingExperiment, source: Source) -> EmbeddingDecision:
    """Plan and settings that `sfumato train --unit user` would have with these options."""
    from sfumato.privacy.unit import ALL

    names = {field.name for kind in (Budget, Pair) for field in fields(kind)}
    names |= {*choices_of(Descent), *choices_of(Averages), "seed", "noise"}
    options = {name: getattr(experiment, name) for name in names - {"pretrained_rate"}}
    classifier = Experiment(**options, unit="user", per_user=experiment.per_user, per_step=ALL, views=1, model="cnn")
    plan, settings, reasons = classifier.decide(source)
    network = experiment.settings(source).network
    named = {name: getattr(network, name) for name in ("model", "pretrained", "pretrained_weights")}
    settings = replace(settings, **named)
    clients = experiment.clients_of(local=replace(experiment.local(), head="global"))
    return EmbeddingDecision(plan, settings, clients, reasons)


def _central(experiment: EmbeddingExperiment, source: Source) -> PublicDecision:
    """The settings of central training. Here `batch_size` and `learning_rate` are those of a step on images."""
    refuse_private(source, "central")
    images = len(source.train)
    batch_size = min(images, CENTRAL_BATCH if experiment.batch_size is None else experiment.batch_size)
    steps = CENTRAL_EPOCHS * max(1, images // positive_integer(batch_size=batch_size))
    return PublicDecision(
        settings=experiment.settings(source),
        clients=experiment.clients_of(),
        batch_size=batch_size,
        steps=steps if experiment.steps is None else positive_integer(steps=experiment.steps),
        reasons=[],
    )


def _noiseless(experiment: EmbeddingExperiment, source: Source) -> PublicDecision:
    """The settings of rounds without noise, by the rules of private training for options that are left out."""
    reasons: list[str] = []
    population = experiment.population(source)
    batch_size = experiment.size_of_round(population, reasons)
    within(None, population, batch_size=batch_size, remedy="give at most the number of users, or of fixed groups")
    if experiment.steps is None:
        reasons.append(f"steps {ROUNDS} (by rule: rounds, as in Xu et al. 2022 for EMNIST)")
    settings = experiment.settings(source)
    norm = 1.0 if experiment.max_norm is None else experiment.max_norm
    return PublicDecision(
        settings=settings,
        clients=experiment.clients_by_rule(source, settings, batch_size, reasons),
        batch_size=batch_size,
        steps=ROUNDS if experiment.steps is None else positive_integer(steps=experiment.steps),
        reasons=reasons,
        rounds=NoiselessRounds(population, norm, experiment.quantile, experiment.per_user),
    )


def _untrained(experiment: EmbeddingExperiment, source: Source) -> PublicDecision:
    """Settings and dimension of an untrained embedding, by rule on a classifier's fixed features."""
    from sfumato.experiment import defaults

    experiment.population(source)
    reasons: list[str] = []
    model, dimension = experiment.model, experiment.dimension
    if model is None:
        by_rule = defaults.model_rule(defaults.Records(source.size, source.channels), {}).value
        model = by_rule if source.size >= SMALLEST else PIXELS
        reasons.append(f"model {model} (by rule: fixed public features, by a public projection)")
    if dimension is None:
        dimension = FEATURES_DIMENSION
        reasons.append(f"dimension {dimension} (by rule: keeps the features' similarities)")
    options = {name: experiment.given.get(name) for name in ("pretrained", "pretrained_weights", "seed")}
    settings = Settings(model=model, optimizer="sgd", learning_rate=1.0, momentum=0.0, ema=0.0, **options)
    return PublicDecision(settings, experiment.clients_of(dimension=dimension), batch_size=1, steps=0, reasons=reasons)
