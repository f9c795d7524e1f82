"""Jobs: runs that are decided and checked but not begun, private by a plan or without privacy on public data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import optim
from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.averaging import Average, TrainingOverAggregates
from sfumato.data import Preparation, Source, Views, most_of_one_user
from sfumato.experiment.client_choices import UNTRAINED, Clients, NoiselessRounds
from sfumato.experiment.settings import STANDARD, Settings
from sfumato.models import Trunk
from sfumato.privacy import ClippedWithoutNoise, NoGuarantee, NoPrivateData, User
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner.lines import DataIdentity
from sfumato.training.planned import Job, PlannedJob
from sfumato.training.public_examples import PublicNormalisation
from sfumato.training.weights import average_for, optimizer_for, training_over

Shape = tuple[int, ...] | Tensor
"""The shape of one synthetic example, or the example itself where inputs are integers."""

SYNTHETIC = 8
"""Number of synthetic texts whose words are targets."""
PUBLIC = "public training"
"""The kind, in a run's record, of training without privacy; that of a model without training is its method."""
MICRO_BATCH = 256
"""Examples of a micro-batch without privacy, by rule."""
EMBEDDING, ROUND = "embedding", "round"
"""The keys in a run's record of its clients, and of rounds without a plan; the former, in a model file, of D."""


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The facts of a training of embeddings, which releases a backbone.

    Args:
        clients: how the users of a round become a sum of updates. For methods without clients only the dimension, the
            method and the false accept rate count.
        initial_weights: all initial weights of the model. The result is compared with them.
        rounds: the rounds of a training with clients and without noise; else None.
    """

    clients: Clients
    initial_weights: Mapping[str, Tensor]
    rounds: NoiselessRounds | None = None

    @classmethod
    def at_start(cls, clients: Clients, module: nn.Module, rounds: NoiselessRounds | None = None) -> Embedding:
        """The facts of a run that begins at the module's weights."""
        weights = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
        return cls(clients=clients, initial_weights=weights, rounds=rounds)

    @property
    def record(self) -> dict[str, Any]:
        """The clients' settings and the rounds without a plan, for the run's record."""
        return {EMBEDDING: self.clients.recorded} | ({} if self.rounds is None else {ROUND: asdict(self.rounds)})

    @property
    def model_facts(self) -> dict[str, Any]:
        """The dimension of the embeddings. The classes are left out, since they may be names of people."""
        return {"embedding": self.clients.dimension, "classes": []}

    def backbone_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of the backbone, by their names in it. A head over classes is not released."""
        if not self.clients.head_in_model:
            return dict(weights)
        inside = "backbone."
        return {name.removeprefix(inside): value for name, value in weights.items() if name.startswith(inside)}


@dataclass(frozen=True, kw_only=True)
class SourceJob(Job):
    """A run on a source, by settings.

    Args:
        source, settings: as given.
        transform: maps stored images to the model's inputs.
        trunk: the frozen first part of the module, whose features are computed once; else None.
        request: the user's request as plain data (source and its options).
        embedding: the facts of a training of embeddings; else None.
    """

    source: Source
    settings: Settings
    transform: Preparation
    trunk: Trunk | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    embedding: Embedding | None = None
    has_statistics: ClassVar[bool] = True
    pinned: ClassVar[Mapping[str, str]] = {
        "data": "give the original data of the run, unchanged, or another `directory`",
        "settings": "",
        "transform": "",
        "performance": "",
        "circumstances": "",
        "origin": "",
    }

    @cached_property
    def views(self) -> Views:
        """How the views of an example are made."""
        return self.settings.views

    @cached_property
    def averaging(self) -> Average | None:  # type: ignore[override]
        """As the settings name it."""
        return average_for(self.settings.averages)

    @cached_property
    def training_over(self) -> TrainingOverAggregates | None:  # type: ignore[override]
        """As the settings name it."""
        return training_over(self.settings.averages)

    def optimizer(self) -> torch.optim.Optimizer:
        """A new optimizer, as the settings name it."""
        return optimizer_for(self.module, self.settings.descent)

    @cached_property
    def learning_rate(self) -> Callable[[int], float]:  # type: ignore[override]
        """The learning rate of a step, by the schedule."""
        descent = self.settings.descent
        multiplier = optim.schedule(descent.schedule, steps=max(1, self.steps), warmup=descent.warmup)
        return lambda step: descent.learning_rate * multiplier(step)

    @property
    def step_facts(self) -> dict[str, Any]:
        """The clients."""
        return super().step_facts | ({} if self.embedding is None else self.embedding.record)

    @property
    def model_facts(self) -> dict[str, Any]:
        """Additional facts for the model file."""
        return {} if self.embedding is None else self.embedding.model_facts

    def released_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights that go into the model file."""
        return weights if self.embedding is None else self.embedding.backbone_weights(weights)

    def record(self, run: str) -> dict[str, Any]:
        """The content of settings.json."""
        return {
            "run": run,
            "request": dict(self.request),
            "settings": self.settings.to_dict(),
            "performance": self.performance.to_dict(),
            "environment": pins.environment(),
            "transform": self.transform.to_dict(),
            "code": {},  # kept: the ledger commits to each field
            **self.step_facts,
        }


def synthetic_targets(source: Source, device: torch.device | str) -> Tensor | None:
    """Synthetic labels (M, L) or (M, T) for sources with several labels per record, or words to predict; None for one
    label per record."""
    if not (source.multilabel or source.next_words):
        return None
    count = SYNTHETIC if source.next_words else len(source.classes) + 3
    return torch.from_numpy(source.synthetic_labels(count)).to(device)


@dataclass(frozen=True, kw_only=True)
class PrivateJob(SourceJob, PlannedJob):
    """A private run on a source.

    Args:
        gradient: the clipped sum that noise is added to, over the units that the plan draws: of gradients of `module`,
            or of its head where there is a trunk; or of the updates of virtual clients.
        input_shape: of one view of one example, as `gradient` takes it.
        notes: messages about defaults chosen for this machine, reported before the run begins.
        public_examples: the public examples of the model's normalisation.
        groups: whether each training record is in the second group of a plan with a drift, bool (N,).
    """

    input_shape: Shape
    notes: tuple[str, ...] = ()
    public_examples: PublicNormalisation | None = None
    groups: np.ndarray | None = field(default=None, repr=False)

    @property
    def step_facts(self) -> dict[str, Any]:  # type: ignore[override]
        """The clients, the digest of the public examples, and the budget's name."""
        public = {} if self.public_examples is None else self.public_examples.pin
        return super().step_facts | public | self.budget_fact

    @property
    def noise(self) -> str:  # type: ignore[override]
        """As the settings name it."""
        return self.settings.noise

    @cached_property
    def identity(self) -> DataIdentity:  # type: ignore[override]
        """By what the owner's list recognises the source."""
        return DataIdentity.from_source(self.source)

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """The source's."""
        return self.source.fingerprint

    @cached_property
    def decided(self) -> Any:  # type: ignore[override]
        """As of `PlannedJob`."""
        named = self.settings.to_dict(), self.transform.to_dict(), self.source.features
        return *named, self.step_facts, self.performance.precision

    @property
    def synthetic_targets(self) -> Tensor | None:
        """Targets for trying out `gradient`; None for class numbers."""
        return synthetic_targets(self.source, self.device)

    @cached_property
    def records_of_a_step(self) -> tuple[int, int | None]:
        """Average number of records in a step, and of each user where the plan draws users (else None)."""
        expected = self.plan.participation.padded_size or self.plan.expected_batch_size
        if self.plan.unit.drawn != "users":
            return expected, None
        each = max(1, round(len(self.source.train) / self.plan.population))
        each = min(each, self.plan.unit.per_step or each)
        return expected * each, each

    @property
    def client_count(self) -> int | None:
        """m, the declared number of virtual clients in a round, which their sum is divided by; None without clients."""
        if self.embedding is None or self.plan.unit.drawn != "clients":
            return None
        return self.embedding.clients.count

    @property
    def micro_batch_count(self) -> int:
        """Average number of micro-batches in a step, or of virtual clients; each is computed by one process."""
        if self.client_count is not None:
            return self.client_count
        return -(-self.records_of_a_step[0] // self.performance.micro_batch)

    @property
    def sampler_inputs(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """As of `PlannedJob`."""
        excluded = None if self.public_examples is None else self.public_examples.excluded
        inputs = {"groups": self.groups, "excluded": excluded}
        return {name: entries for name, entries in inputs.items() if entries is not None}

    @property
    def max_user_records(self) -> int | None:
        """The largest number of training records of one user, if the unit is one example and the users are known.

        A private figure.
        """
        if self.source.train.users is None or isinstance(self.plan.unit, User):
            return None
        return most_of_one_user(self.source.train)

    def record(self, run: str) -> dict[str, Any]:
        """The content of settings.json."""
        return super().record(run) | {
            "most_of_one_user": self.max_user_records,
            "assignment": self.source.assignment,
            "places": list(self.source.places),
            "circumstances": self.circumstances.to_dict(),
            "data": {
                "kind": self.source.kind,
                "fingerprint": self.source.fingerprint,
                "material": self.source.stored_digest,
                "pixels": self.source.pixels,
                "classes": list(self.source.classes),
                "channels": self.source.channels,
                "size": self.source.size,
                "features": self.source.features,
                "backbone": self.source.backbone,
            },
        }


@dataclass(frozen=True, kw_only=True)
class PublicTraining:
    """The settings of training without privacy.

    Args:
        settings: as for private training.
        steps: number of steps.
        batch_size: examples in a step: epochs are shuffled and cut into batches of this size.
        max_norm: largest L2 norm of a step's mean gradient over all parameters; longer ones are scaled down. None for
            no clipping. It does not bound the contribution of an example.
        agc: adaptive gradient clipping (Brock et al. 2021, arXiv 2102.06171, section 4.1) of all layers except the
            classifier: largest norm of the mean gradient of each output unit, relative to the norm of its weights (at
            least 1e-3). None for none. It bounds nothing either.
    """

    settings: Settings
    steps: int
    batch_size: int
    max_norm: float | None = None
    agc: float | None = None

    def __post_init__(self) -> None:
        if self.settings.objective.class_prevalence is not None:
            raise SfumatoError("`class_prevalence` is for private training only", "leave it out")
        if self.settings.noise != STANDARD:
            raise SfumatoError(
                f"`noise` is {self.settings.noise}, but training without privacy has no noise", "leave it out"
            )
        positive_integer(steps=self.steps, remedy="give the number of training steps")
        positive_integer(batch_size=self.batch_size, remedy="give the number of examples in a step")
        positive(optional=True, max_norm=self.max_norm, remedy="give a norm such as 1, or leave it out for no clipping")
        positive(optional=True, agc=self.agc, remedy="give a ratio such as 0.01, or leave it out")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PublicTraining:
        """Reads a run's record."""
        given = {name: data[name] for name in ("steps", "batch_size", "max_norm", "agc")}
        return cls(settings=Settings.from_dict(data["settings"]), **given)


@dataclass(frozen=True, kw_only=True)
class PublicJob(SourceJob):
    """A run without privacy before it begins, on public data. It has no plan and no guarantee.

    **Guarantee.** An untrained embedding (`uses_data` is False) is a function of public constants and of declared
    facts: no record is read to build it, and the data may be private. The test part is read to evaluate it, and those
    figures are for the owner.

    Args:
        batch_size: examples in a step.
        origins: the origins of the initial weights.
        max_norm, agc: as in `PublicTraining`.
    """

    batch_size: int
    origins: tuple[str, ...] = ()
    max_norm: float | None = None
    agc: float | None = None

    @property
    def uses_data(self) -> bool:
        """Whether the training data are read."""
        return self.embedding is None or self.embedding.clients.method != UNTRAINED

    @property
    def statement_facts(self) -> dict[str, Any]:
        """The facts about data and weights in every statement without a guarantee."""
        return {"published": self.source.published, "origins": self.origins, "filtered": self.source.filtered}

    @property
    def statement(self) -> NoGuarantee:
        """The statement that there is no guarantee, or that no private data were used."""
        facts, embedding = self.statement_facts, self.embedding
        if not self.uses_data:
            read = tuple(fact for fact in self.source.facts_read if fact != "classes")
            return NoPrivateData(**facts, test_public=self.source.public, read=read)
        if embedding is not None and embedding.rounds is not None:
            return ClippedWithoutNoise(**facts, method=embedding.clients.method)
        return NoGuarantee(**facts)

    def record(self, run: str) -> dict[str, Any]:
        """The content of settings.json."""
        return super().record(run) | {
            "kind": PUBLIC if self.uses_data else UNTRAINED,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "max_norm": self.max_norm,
            "agc": self.agc,
            "data": {
                "kind": self.source.kind,
                "fingerprint": self.source.fingerprint,
                "features": self.source.features,
                "backbone": self.source.backbone,
                "filtered": self.source.filtered,
                "published": self.source.published,
            },
            "origin": {"of the initial weights": list(self.origins)},
        }


def lengths(record: Mapping[str, Any]) -> dict[str, Any]:
    """Steps, batch size and clipping norm in the record of a run without privacy; empty for other runs."""
    named = {"steps": "steps", "batch_size": "batch size", "max_norm": "clipping norm", "agc": "adaptive clipping"}
    return {words: record[name] for name, words in named.items() if record.get(name) is not None}


def is_public(run: RunDirectory) -> bool:
    """Whether a run directory holds a run without privacy or an untrained model."""
    return run.exists and run.read_json(names.SETTINGS).get("kind") in (PUBLIC, UNTRAINED)
