"""The options of a training of embeddings: its rounds, its clients, and its server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sfumato._checks import below_one, not_negative, one_of, positive, positive_integer
from sfumato._choices import all_optional, optional_choice
from sfumato.averaging.choices import Averages
from sfumato.experiment.settings import Budget
from sfumato.models.choices import Network
from sfumato.optim.descent import Descent

if TYPE_CHECKING:
    from sfumato.privacy import FixedClipping, QuantileClipping

WITH_NOISE = ("fedemb", "fedavg")
"""DP-FedEmb and DP-FedAvg, by a plan."""
NOISELESS = ("fedemb-noiseless", "fedavg-noiseless")
"""DP-FedEmb and DP-FedAvg with all but the noise: on public data alone, without a plan and without a guarantee."""
UNTRAINED = "untrained"
"""Fixed public features: nothing is trained, and no private data are used."""
FEATURE_OPTIONS = ("method", "model", "pretrained", "pretrained_weights", "dimension", "far", "per_user", "seed")
"""The options of this method."""
WITHOUT_PLAN = ("central", *NOISELESS, UNTRAINED)
"""Methods without a guarantee."""
METHODS = (*WITH_NOISE, "dpsgd", *WITHOUT_PLAN)
LOCAL_HEAD = ("fedemb", "fedemb-noiseless", UNTRAINED)
"""Methods whose model has no head: each client has one of its own, or there is none."""
FEATURES_DIMENSION = 512
"""D by rule for an embedding of fixed features: so many random directions keep their similarities."""
LOCAL_HEAD_OPTIONS = ("head_scale", "client_head", "client_temperature", "reconstruction_steps")
"""Options of a client's own head alone: fedemb's, with the loss softmax."""
LOCAL_TRAINING_OPTIONS = (
    *("client_rate", "client_momentum", "client_epochs", "client_batch_size", "client_examples", "client_loss"),
    *("shuffle_buffer", *LOCAL_HEAD_OPTIONS),
)
"""Options of a client's training."""
_UNREAD: dict[str, tuple[str, ...]] = {
    "fedavg": LOCAL_HEAD_OPTIONS,
    "fedavg-noiseless": LOCAL_HEAD_OPTIONS,
    "dpsgd": ("clients", "grouping", "quantile", *LOCAL_TRAINING_OPTIONS),
    "central": ("clients", "grouping", "quantile", "max_norm", *LOCAL_TRAINING_OPTIONS),
}
EVEN = "even"
"""The grouping into clients of one size, which zero-out adjacency alone allows."""
GROUPINGS = ("random", EVEN, "group", "fixed")
LARGEST_SMALL_IMAGE = 32
"""Pixels: on images of at most this side LeNet is the model by rule, on larger ones MobileNetV2."""
DECAY = 0.9999
"""The decay of the moving average if gradients are taken at it and no decay is given."""
FEDEMB_FROM = 100_000
"""The least number of users for training a network: docs/tasks.md."""
USERS_PER_ROUND, USERS_PER_CLIENT, ROUNDS = 256, 8, 200
"""From Xu et al. 2022 for EMNIST."""


def unused_choices(method: str | None, client_loss: str | None = None) -> tuple[str, ...]:
    """The choices that a method does not read, with this loss of its clients: one that is given is refused, and one of
    a recipe for another method is left out.

    >>> unused_choices("fedavg") == unused_choices("fedemb", "triplet")
    True
    """
    if client_loss not in (None, "softmax") and method not in _UNREAD:
        return LOCAL_HEAD_OPTIONS
    return _UNREAD.get(method or METHODS[0], ())


@dataclass(frozen=True, kw_only=True)
class BudgetOfRounds(Budget):
    """Options of a plan whose steps are rounds of users."""

    batch_size: int | None = optional_choice("B", "256, and at most a quarter of them")
    """B, the expected number of users in a round; of groups, with --grouping fixed."""
    steps: int | None = optional_choice("T", "200")
    """T, the number of rounds."""
    max_norm: float | None = optional_choice(by_default="1")
    """C, the norm to which each client's update is clipped. With --quantile, that of the first round."""


@dataclass(frozen=True, kw_only=True)
class ClientChoices:
    """How virtual clients are made, and how each of them trains. An option that is None follows a written rule."""

    method: str | None = optional_choice(
        "fedemb|fedavg|dpsgd|untrained|central|fedemb-noiseless|fedavg-noiseless",
        "by the number of users; fedemb if a network, rounds or clients are chosen",
    )
    """fedemb: virtual clients that each train a head of their own (Xu et al. 2022). fedavg: one head, which is summed
    and noised too. dpsgd: the mean gradient of each user. untrained: fixed public features, without private data. On
    public data and without a guarantee: central (no clients, no clipping), fedemb-noiseless and fedavg-noiseless."""
    clients: int | None = optional_choice(by_default="an eighth of the users in a round")
    """m, the number of virtual clients in each round."""
    grouping: str | None = optional_choice("random|even|group|fixed", "random")
    """Which users share a client: drawn in each round (random), equally many (even, zero-out adjacency), those of one
    group (group), or fixed groups sampled as a whole (fixed)."""
    per_user: int | None = optional_choice(by_default="all")
    """G, the most records kept of each user."""
    client_rate: float | None = optional_choice(by_default="0.005")
    """Learning rate of the backbone in a client."""
    client_momentum: float | None = optional_choice(by_default="0.9")
    """Momentum in a client."""
    head_scale: float | None = optional_choice(by_default="1 for prototypes, 100 for random rows")
    """Learning rate of a client's head, relative to the backbone's."""
    client_epochs: int | None = optional_choice(by_default="1")
    """Number of passes of a client over its records."""
    client_batch_size: int | None = optional_choice(by_default="32")
    """Number of records in a client's step."""
    client_examples: int | None = optional_choice(by_default="2048")
    """Most records that a client uses, over all epochs."""
    shuffle_buffer: int | None = optional_choice(by_default="all")
    """Size of the buffer that a client's records are shuffled in. 0 keeps their order."""
    client_loss: str | None = optional_choice("softmax|binary|triplet|triplet-hard", "softmax")
    """softmax over the classes present in a client; or binary, triplet or triplet-hard within a batch, without a
    head."""
    client_head: str | None = optional_choice("random|prototype", "prototype, where clients have heads of their own")
    """How a client's head starts: with random rows, as in the paper, or with the mean direction of each of its classes
    (prototype)."""
    client_temperature: float | None = optional_choice(by_default="0.125 for prototypes, else none")
    """Divisor of the cosine similarities. Without one, logits are plain inner products."""
    reconstruction_steps: int | None = optional_choice(by_default="0")
    """Number of a client's first steps that train its head alone; the others train the backbone alone. With 0 all train
    both."""
    quantile: float | None = optional_choice(by_default="the norm is fixed")
    """Adapt the clipping norm to this quantile of the norms of the updates."""
    far: float | None = optional_choice(by_default="0.001")
    """False accept rate at which recall is measured."""


@dataclass(frozen=True, kw_only=True)
class ServerChoices(
    all_optional(Descent, without=("pretrained_rate",)),
    all_optional(Network, without=("head", "head_deviation", "head_bias")),
    all_optional(Averages),
):
    """The model, and the server's use of the sum of updates."""

    model: str | None = optional_choice("NAME")
    """lenet, mobilenet-v2, resnet-50, wrn-DEPTH-WIDTH, timm:NAME, or package:function for one of your own. Its last
    layer gives the embedding."""
    dimension: int | None = optional_choice(by_default="128, and 512 on fixed features")
    """D, the dimension of the embedding."""
    pretrained_weights: str | None = optional_choice("ema|last", "those that the run released")
    """Which weights of a run without privacy to start from: averaged (ema) or last."""
    trainable: tuple[str, ...] | None = optional_choice("NAME [NAME ...]", "all")
    """What is trained: all, classifier (the last layer), norm, first, or patterns of parameter names."""
    optimizer: str | None = optional_choice("NAME", "momentum; with dpsgd as in train")
    """sgd, momentum, adam, adamw or lamb."""
    learning_rate: float | None = optional_choice(
        by_default="0.02 for each round's mean update; with dpsgd as in train"
    )
    """Step size of the server, applied to the mean update of a round."""
    warmup: int | None = optional_choice(by_default="0")
    """Number of rounds of linear warm-up."""
    ema: float | None = optional_choice(by_default="0; with dpsgd 0.9999, as in train")
    """Decay of the exponential moving average of the weights. 0 releases the last weights."""


LOSSES = ("softmax", "binary", "triplet", "triplet-hard")
HEADS = ("local", "global")
FIRST_HEADS = ("random", "prototype")
TEMPERATURE = 0.125
"""The temperature of cosines for a head of prototypes: the choice among 1/32, 1/16, 1/8 and 1/4 on Omniglot
(benchmarks/accuracy/omniglot.py)."""


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """The settings of a virtual client's training.

    Args:
        learning_rate: the learning rate of the backbone.
        momentum: the momentum of backbone and head.
        head_scale: the local head's learning rate, in units of the backbone's.
        epochs: how often each record is seen if `examples` does not end training earlier.
        batch_size: the records of a step. The last step may have fewer.
        examples: the most records that a client sees over all epochs; None for no limit.
        shuffle_buffer: the size of the shuffle buffer, as in `shuffled`; None for a uniform order.
        loss: "softmax"; or a loss on the batch's embeddings, without a head: "binary" (pairs), "triplet" (all triplets
            of a batch) or "triplet-hard".
        head: "local": each client has a fresh head over the classes present and keeps it to itself (DP-FedEmb);
            "global": one head over the declared classes is part of the model and of the update (DP-FedAvg).
        reconstruction_steps: the number of first steps that train the local head alone; the others then train the
            backbone alone. 0: all steps train both.
        first_head: the initial local head: "random" (`initial_head`), or the "prototype" of each class that the client
            sees, under the initial weights.
        temperature: logits are cosines divided by it; None for logits that are products of embedding and head.
    """

    learning_rate: float = 0.005
    momentum: float = 0.9
    head_scale: float = 100.0
    epochs: int = 1
    batch_size: int = 32
    examples: int | None = None
    shuffle_buffer: int | None = None
    loss: str = "softmax"
    head: str = "local"
    reconstruction_steps: int = 0
    first_head: str = "random"
    temperature: float | None = None

    def __post_init__(self) -> None:
        positive(client_rate=self.learning_rate, head_scale=self.head_scale)
        below_one(client_momentum=self.momentum)
        positive_integer(client_epochs=self.epochs, client_batch_size=self.batch_size)
        positive_integer(optional=True, client_examples=self.examples)
        not_negative(optional=True, shuffle_buffer=self.shuffle_buffer)
        one_of(LOSSES, client_loss=self.loss)
        one_of(HEADS, head=self.head)
        not_negative(reconstruction_steps=self.reconstruction_steps)
        one_of(FIRST_HEADS, client_head=self.first_head)
        positive(optional=True, client_temperature=self.temperature)
        if self.head == "global":
            one_of(LOSSES[:1], client_loss=self.loss, remedy="use the loss softmax; or method fedemb, without a head")

    @property
    def has_local_head(self) -> bool:
        """Whether each client has a head of its own."""
        return self.head == "local" and self.loss == "softmax"


@dataclass(frozen=True, kw_only=True)
class Clients:
    """How the users of a round become a sum of updates. None of it changes epsilon, given the plan.

    Args:
        local: how each client trains.
        count: m, which the sum is divided by.
        grouping: "random", "even", "group" or "fixed".
        method: one of `METHODS`.
        dimension: D.
        far: at which false accept rate recall is measured.
    """

    local: LocalSGD = LocalSGD()
    count: int = 1
    grouping: str = "random"
    method: str = "fedemb"
    dimension: int = 128
    far: float = 1e-3

    def __post_init__(self) -> None:
        positive_integer(clients=self.count, remedy="give the number of virtual clients in a round")
        one_of(GROUPINGS, grouping=self.grouping)
        one_of(METHODS, method=self.method)
        positive_integer(dimension=self.dimension)
        positive(most=1, far=self.far, remedy="give a share such as 0.001")

    @property
    def head_in_model(self) -> bool:
        """Whether the model that is trained has a head over all classes, which is not released."""
        return self.method not in LOCAL_HEAD

    @property
    def recorded(self) -> dict[str, Any]:
        """The entries of a run's record: without virtual clients, only those that matter without them."""
        if self.method not in (UNTRAINED, "central"):
            return self.to_dict()
        return {name: getattr(self, name) for name in ("method", "dimension", "far")}

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Clients:
        """The clients of a run's record (`recorded`)."""
        return cls(**{**data, "local": LocalSGD(**data.get("local", {}))})


@dataclass(frozen=True)
class NoiselessRounds:
    """The rounds of a training without noise. There is no privacy to account for.

    Args:
        population: the number of users, or groups, from which a round is drawn.
        max_norm: the clipping norm; with a quantile, that of the first round.
        quantile: the quantile of the updates' norms that the clipping norm follows, counted exactly; None for a fixed
            norm.
        per_user: the most records kept of each user; None for all.
    """

    population: int
    max_norm: float = 1.0
    quantile: float | None = None
    per_user: int | None = None

    def __post_init__(self) -> None:
        _ = self.clipping  # refuses numbers out of range

    @property
    def clipping(self) -> FixedClipping | QuantileClipping:
        """The rule of the clipping norm, without the noise of a count: reading that raises an error."""
        return clipping_of(self.max_norm, self.quantile)


def clipping_of(
    max_norm: float | None, quantile: float | None, count_noise: float | None = None
) -> FixedClipping | QuantileClipping:
    """A fixed norm, 1 by rule, or one that follows a quantile."""
    from sfumato.privacy import FixedClipping, QuantileClipping

    norm = 1.0 if max_norm is None else max_norm
    if quantile is None:
        return FixedClipping(norm)
    return QuantileClipping(max_norm=norm, quantile=quantile, count_noise=count_noise)
