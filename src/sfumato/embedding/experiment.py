"""The options of an embedding training, from the command line, a recipe or Python."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sfumato import data
from sfumato._checks import SfumatoError, one_of, positive, positive_integer
from sfumato._choices import choices_of
from sfumato.embedding.choices import (
    DECAY,
    FEATURE_OPTIONS,
    GROUPINGS,
    LARGEST_SMALL_IMAGE,
    LOCAL_HEAD,
    METHODS,
    NOISELESS,
    ROUNDS,
    UNTRAINED,
    USERS_PER_CLIENT,
    USERS_PER_ROUND,
    WITHOUT_PLAN,
    BudgetOfRounds,
    ClientChoices,
    Clients,
    ServerChoices,
    unused_choices,
)
from sfumato.experiment.settings import (
    MOST_EXAMPLES,
    NoiseMade,
    Pair,
    Settings,
    check_plan,
    make_plan,
    refuse_noise,
)
from sfumato.privacy.planning.target import Epsilon

if TYPE_CHECKING:
    import numpy as np

    from sfumato.data import Source, SourceSpec
    from sfumato.embedding.local import LocalSGD
    from sfumato.privacy import PrivacyPlan


CLIENT_OPTIONS = {
    **{f"client_{name}": name for name in ("momentum", "epochs", "batch_size", "examples", "loss", "temperature")},
    **{name: name for name in ("head_scale", "shuffle_buffer", "reconstruction_steps")},
    "client_rate": "learning_rate",
    "client_head": "first_head",
}
"""The options of clients, with their names in `LocalSGD`."""


class EmbeddingDecision(NamedTuple):
    """The plan, the server's and the clients' settings, and the reasons, as lines of text, for what the rules chose."""

    plan: PrivacyPlan
    settings: Settings
    clients: Clients
    reasons: list[str]


@dataclass(frozen=True, kw_only=True)
class EmbeddingExperiment(ClientChoices, ServerChoices, Pair, NoiseMade, BudgetOfRounds):
    """The options of a private embedding training. The promise is for users.

    `batch_size` is the expected number of users in a round (of groups, if these are fixed), `steps` is the number of
    rounds, and `max_norm` bounds a client's update.
    """

    seed: int | None = None

    def refuse_early(self, spec: SourceSpec | None = None) -> None:
        """Refuse, before any data are read, options that cannot work for any source, or for this one."""
        from sfumato.privacy import QuantileClipping, User

        self.check_numbers()
        method = self.chosen
        if method not in WITHOUT_PLAN:
            self.refuse_no_noise()
            self.refuse_orders()
        self.refuse_others()
        if self.per_user is not None:
            positive_integer("per_user", self.per_user)
        settings = Settings.provisional(vars(self), ema=DECAY if self.aggregate == "ema" else 0.0)
        settings.check_steps(self.steps)
        if spec is not None:
            settings.check_source(spec, self.model)
        self.clients_of(
            count=1 if self.clients is None else self.clients, grouping=self.grouping or GROUPINGS[0], method=method
        )
        if method != "central" and spec is not None:
            spec.refuse_without_users()
        if method not in WITHOUT_PLAN:
            request, clipping = self.request(MOST_EXAMPLES, momentum=0.0), None
            if self.quantile is not None:  # the real count noise depends on the number of clients
                norm = 1.0 if self.max_norm is None else self.max_norm
                clipping = QuantileClipping(max_norm=norm, quantile=self.quantile, count_noise=1e6)
            refuse_noise(self.noise, request.mechanism, clipping)
            fixed = {} if clipping is None else {"clipping": clipping, "max_norm": None}
            check_plan(self, User(clients=True, at_most=self.per_user), request, **fixed)

    def decide(self, source: Source) -> EmbeddingDecision:
        """Plan, settings and clients for this source.

        Errors: `SfumatoError` for impossible options, before anything is spent.
        """
        from sfumato.privacy.statements.display import rounded_up

        self.refuse_no_noise()
        if self.chosen in WITHOUT_PLAN:
            raise SfumatoError(f"method {self.chosen} has no plan and no guarantee", "use method fedemb")
        self.refuse_orders()
        plan, reasons = self._plan(source)
        settings = self.settings(source)
        clients = self.clients_by_rule(source, settings, plan.expected_batch_size, reasons)
        if self.delta is None:
            reasons.append(f"delta {plan.delta:g} (by rule: at most 1e-5 and 1/(10 N), N users)")
        if self.noise_multiplier is not None:
            reasons.append(
                f"note: noise multiplier {plan.noise_multiplier:g} comes to epsilon {rounded_up(plan.epsilon())}"
            )
        return EmbeddingDecision(plan, settings, clients, reasons)

    @property
    def chosen(self) -> str:
        """The requested method, or the default."""
        return one_of("method", self.method or METHODS[0], METHODS)

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def refuse_others(self) -> None:
        """Refuse options that the method does not have."""
        self._refuse_unread(self.chosen)
        odd = next((f"`{name}={value}`" for name, value in self.given.items() if name not in FEATURE_OPTIONS), None)
        if odd is not None and self.chosen == UNTRAINED:
            raise SfumatoError(
                f"method {UNTRAINED} trains nothing and uses no private data, but {odd} is given",
                f"leave it out, or use method {METHODS[0]}",
            )

    def _refuse_unread(self, method: str) -> None:
        """Refuse an option that the method ignores: comparing two of its values would compare a run with itself."""
        for name in unused_choices(method, self.client_loss):
            if name in self.given:
                loss = f" with the loss {self.client_loss}" if self.client_loss and name != "client_loss" else ""
                raise SfumatoError(
                    f"method {method}{loss} does not use {name}, but `{name}={self.given[name]}` is given",
                    f"leave {name} out",
                )

    def refuse_no_noise(self) -> None:
        """Refuse a noise multiplier of 0.

        **Guarantee.** No number turns a private run into one without noise: that takes a method of another name.
        """
        if self.noise_multiplier == 0:
            noiseless = f"{self.chosen}-noiseless"
            raise SfumatoError(
                "`noise_multiplier=0` adds no noise, and without noise there is no guarantee",
                f"give a positive number; or train without noise, on public data alone, with method "
                f"{noiseless if noiseless in NOISELESS else NOISELESS[0]}",
            )

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
        return self.clients_of(
            count=counted if self.clients is None else self.clients,
            grouping=self.grouping or GROUPINGS[0],
            method=self.chosen,
        )

    def size_of_round(self, population: int, reasons: list[str]) -> int:
        """The expected number of users (groups, if these are fixed) in a round. Adds to `reasons`."""
        if self.batch_size is not None:
            return positive_integer("batch_size", self.batch_size)
        size = max(1, min(USERS_PER_ROUND, population // 4))
        what = "groups" if self.grouping == "fixed" else "users"
        reasons.append(f"batch size {size} (by rule: {what} in a round: {USERS_PER_ROUND}, a quarter at most)")
        return size

    def population(self, source: Source) -> int:
        """The number of users from which a round is drawn, or of groups if these are fixed."""
        if source.users is None:
            data.refuse_without_users()
        return groups_of(source) if self.grouping == "fixed" else source.users

    def refuse_orders(self) -> None:
        """Refuse an order or a drift of records: here users take part, with all of their records at once.

        **Guarantee.** A user's place in a file would depend on who else is in it. With secret draws each user takes
        part independently of all others.
        """
        if self.participation == "drifting":
            raise SfumatoError(
                "`participation=drifting` uses the group of each record, but here users take part, whose records may "
                "be of both groups",
                "use poisson",
            )
        if self.order not in (None, "random"):
            raise SfumatoError(
                f"`order={self.order}` is for records in the order of a file, but here users take part, who have no "
                "place in it",
                "leave order out; a fixed order of users is drawn at random (participation fixed-order)",
            )

    def clients_of(self, **others: Any) -> Clients:
        """The clients with the requested dimension and false accept rate."""
        asked = {"dimension": self.dimension, "far": self.far}
        known = {name: value for name, value in asked.items() if value is not None}
        return Clients(**{"local": self.local(), **known, **others})

    def local(self) -> LocalSGD:
        """The settings of a client's training."""
        from sfumato.embedding.local import LOSSES, TEMPERATURE, LocalSGD

        given = {name: getattr(self, name) for name in CLIENT_OPTIONS if getattr(self, name) is not None}
        for name, value in given.items():
            if name in ("client_rate", "head_scale", "client_temperature"):
                positive(name, value)
            if name in ("client_epochs", "client_batch_size", "client_examples"):
                positive_integer(name, value)
            if name == "client_loss":
                one_of(name, value, LOSSES)
        first = self._first_head()
        by_rule = {"learning_rate": 0.005, "examples": 2048, "first_head": first}
        if first == "prototype":
            by_rule |= {"head_scale": 1.0, "temperature": TEMPERATURE}
        known = {CLIENT_OPTIONS[name]: value for name, value in given.items()}
        head = "global" if self.method in ("fedavg", "fedavg-noiseless") else "local"
        return LocalSGD(**{**by_rule, **known}, head=head)

    def _first_head(self) -> str:
        """The initial weights of a client's own head: prototypes by rule."""
        from sfumato.embedding.local import FIRST_HEADS

        loss = self.client_loss or "softmax"
        own = self.chosen in LOCAL_HEAD and loss == "softmax"
        return one_of("client_head", self.client_head or ("prototype" if own else "random"), FIRST_HEADS)

    def settings(self, source: Source) -> Settings:
        """The settings of model and server."""
        from sfumato.experiment.settings import Settings

        by_rule = {
            "model": "lenet" if source.size <= LARGEST_SMALL_IMAGE else "mobilenet-v2",
            "learning_rate": 0.02,
            "ema": DECAY if self.aggregate == "ema" else 0.0,
        }
        names = set(choices_of(Settings))
        given = {name: value for name, value in asdict(self).items() if name in names and value is not None}
        return Settings(**{**by_rule, **given})

    def _plan(self, source: Source) -> tuple[PrivacyPlan, list[str]]:
        from sfumato.experiment import defaults
        from sfumato.privacy import QuantileClipping, User

        population, grouped = self.population(source), self.grouping == "fixed"
        users = source.users or population
        reasons: list[str] = []
        given: dict[str, Any] = {"steps": self.steps, "batch": self.batch_size}
        target = self.target
        if target is None and self.noise_multiplier is None:
            target = Epsilon(defaults.EPSILON)
        if given["steps"] is None and None in (target, self.noise_multiplier):
            given["steps"] = ROUNDS
            reasons.append(f"steps {ROUNDS} (by rule: rounds, as in Xu et al. 2022 for EMNIST)")
        if given["batch"] is None:
            given["batch"] = self.size_of_round(population, reasons)
        unit = User(clients=True, at_most=self.per_user, users=users if grouped else None, grouped=grouped)
        norm = 1.0 if self.max_norm is None else self.max_norm
        m = self.clients or max(1, given["batch"] // (1 if grouped else USERS_PER_CLIENT))
        adaptive = (
            None
            if self.quantile is None
            else QuantileClipping(max_norm=norm, quantile=self.quantile, count_noise=m / 20)
        )
        try:
            plan = make_plan(
                self,
                population,
                unit,
                self.request(population),
                batch_size=given["batch"],
                steps=given["steps"],
                max_norm=norm if adaptive is None else None,
                clipping=adaptive,
                epsilon=None if target is None else target.limit,
            )
        except SfumatoError as error:
            if adaptive is None or "count_noise" not in str(error):
                raise
            raise SfumatoError(
                f"{error.problem}: with a quantile the count of {m} clients is also released, with noise of {m / 20:g}",
                "give more clients and more users in a round, give a larger epsilon, or leave quantile out",
            ) from None
        return plan, reasons


def groups_of(source: Source) -> int:
    """The number of groups of users in the training part."""
    import numpy as np

    return len(np.unique(known_groups(source)))


def known_groups(source: Source) -> np.ndarray:
    """The group of each training record's user, text (N,). Refuses a source without groups."""
    if source.train.groups is None:
        raise SfumatoError(
            "grouping is by groups, but the source does not name the group of each user",
            "give a table with the column group, or an archive with groups_train; or use random grouping",
        )
    return source.train.groups
