"""What a run is to do, decided and checked: private training by a plan, or training without privacy on public data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.data import Preparation, Source, Views, owners
from sfumato.experiment.settings import STANDARD, Performance, Settings
from sfumato.gradients import ClippedGradient, UserGradient
from sfumato.models import Trunk
from sfumato.privacy import Circumstances, NoPromise, PrivacyPlan, User
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.directory import RunDirectory
from sfumato.training.own.code import OwnCode
from sfumato.training.parts.part import Kind, Part

Shape = tuple[int, ...] | Tensor
"""Of one made-up example, or that itself where it holds whole numbers."""

PUBLIC, UNTRAINED = "public training", "untrained"
"""What the records of a training without privacy, and of a model of which nothing is trained, call their kind."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is to be: everything decided and checked, nothing spent.

    Args:
        module: the model with its initial weights, on the device. The run trains this object.
        source, settings, performance: as given.
        steps: how many are to be taken.
        transform: from stored images to the model's inputs.
        key: the run key; replaced by the recorded one when a run is resumed.
        functions: digests of what the model computes, in evaluation and in training, and of a loss and an optimizer
            that are code of the caller's own, so that a run that goes on says where they are others.
        kind: what its steps are, and what measures them.
        own: what of it is code of the caller's own.
        trunk: the module's beginning where nothing of it is trained and its features are computed once; else None.
        request: what the user asked for, as plain data (source and its options).
        parts: the features around it.
    """

    module: nn.Module
    source: Source
    settings: Settings
    steps: int
    performance: Performance
    transform: Preparation
    key: RunKey
    functions: Mapping[str, str]
    kind: Kind
    own: OwnCode = field(default_factory=OwnCode)
    trunk: Trunk | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return torch.device(self.performance.device)

    @property
    def views(self) -> Views:
        """How the views of an example are made."""
        return self.settings.views

    @property
    def scored(self) -> bool:
        """Whether it is measured on the test split on its way."""
        return True

    @property
    def further(self) -> dict[str, Any]:
        """What else decides the steps, by name: plain data that is recorded and pinned like the settings."""
        return {name: value for part in self.parts for name, value in part.pins.items()}

    @property
    def keyed(self) -> dict[str, dict[str, Any]]:
        """The same of what decides who takes part."""
        return {name: value for part in self.parts for name, value in part.keyed.items()}

    @property
    def of_model(self) -> dict[str, Any]:
        """What else a model file must say of itself."""
        return {}

    def released(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of the weights that go into the model file."""
        return weights

    def record(self, run: str) -> dict[str, Any]:
        """What settings.json holds of any run."""
        return {
            "run": run,
            "request": dict(self.request),
            "settings": self.settings.to_dict(),
            "performance": self.performance.to_dict(),
            "environment": pins.environment(),
            "transform": self.transform.to_dict(),
            "model": dict(self.functions),
            "code": self.own.names,
            **self.further,
        }


def synthetic_targets(source: Source, device: torch.device | str) -> Tensor | None:
    """Labels (M, L) of nobody's where a record has several; None where it has one, which any model's output shows."""
    return torch.from_numpy(source.synthetic_labels(len(source.classes) + 3)).to(device) if source.multilabel else None


@dataclass(frozen=True, kw_only=True)
class PrivateJob(Job):
    """A private run that is to be.

    Args:
        gradient: the clipped gradient of `module`, or of its head where there is a trunk, of what the plan draws.
        plan: what the run will release.
        circumstances: what the statement must say besides the plan.
        input_shape: of one view of one example, as `gradient` takes it.
        candidate: whether the run is a candidate of a private selection: then it is not measured on its way, and the
            owner's list of uses counts the search instead of it.
        notes: what a rule has chosen for this machine, to be told before the run begins.
    """

    gradient: ClippedGradient | UserGradient
    plan: PrivacyPlan
    circumstances: Circumstances
    input_shape: Shape
    candidate: bool = False
    notes: tuple[str, ...] = ()

    @property
    def synthetic_targets(self) -> Tensor | None:
        """What `gradient` is tried on in place of the classes of the model's output; None for these."""
        return synthetic_targets(self.source, self.device)

    @property
    def records_of_a_step(self) -> tuple[int, int | None]:
        """How many records a step has, and each user where users are drawn, on average."""
        expected = self.plan.participation.padded_size or self.plan.expected_batch_size
        if self.plan.unit.drawn != "users":
            return expected, None
        each = max(1, round(len(self.source.train) / self.plan.population))
        return expected * each, each

    @property
    def pieces(self) -> int:
        """Into how many pieces a step's work is divided, each for one process: on average."""
        return -(-self.records_of_a_step[0] // self.performance.micro_batch)

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """What draws go by besides the plan, by name, with one entry for each training record of the source as it was
        given: "times", "groups" (`Sampler`), and which are "excluded": they are drawn, and contribute nothing."""
        return {name: entries for part in self.parts for name, entries in part.draws.items()}

    @property
    def keyed(self) -> dict[str, dict[str, Any]]:
        """What decides who takes part; an entry for the clock where there is none too."""
        return {"clock": {}} | super().keyed

    @property
    def most_of_one_user(self) -> int | None:
        """The largest number of training records of one user, where the promise is for single ones and the data say
        whose each one is: a private figure."""
        if self.source.train.users is None or isinstance(self.plan.unit, User):
            return None
        return int(owners(self.source.train).of_each_user.max(initial=0))

    @property
    def scored(self) -> bool:
        """Whether it is measured on the test split on its way: a candidate is not."""
        return not self.candidate

    def record(self, run: str) -> dict[str, Any]:
        """What settings.json holds."""
        return super().record(run) | {
            "most_of_one_user": self.most_of_one_user,
            "candidate": self.candidate,
            "assignment": self.source.assignment,
            "places": list(self.source.places),
            **self.keyed,
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
    """How a model is trained without privacy.

    Args:
        settings: the same choices as for private training.
        steps: number of steps.
        batch_size: examples in a step: epochs are shuffled and cut into batches of this size.
        max_norm: to which L2 norm a step's mean gradient, of all parameters together, is scaled down where it is
            longer; None for no clipping. It bounds no example's contribution.
    """

    settings: Settings
    steps: int
    batch_size: int
    max_norm: float | None = None

    def __post_init__(self) -> None:
        if self.settings.objective.class_prevalence is not None:
            raise SfumatoError("`class_prevalence` is for private training, and this one is not", "leave it out")
        if self.settings.noise != STANDARD:
            raise SfumatoError(
                f"`noise` is {self.settings.noise}, and training without privacy has none", "leave it out"
            )
        positive_integer("steps", self.steps, remedy="give the number of training steps")
        positive_integer("batch_size", self.batch_size, remedy="give the number of examples in a step")
        if self.max_norm is not None:
            positive("max_norm", self.max_norm, remedy="give a norm such as 1, or leave it out for no clipping")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PublicTraining:
        """The training in a run's record."""
        given = {name: data[name] for name in ("steps", "batch_size", "max_norm")}
        return cls(settings=Settings.from_dict(data["settings"]), **given)


@dataclass(frozen=True, kw_only=True)
class PublicJob(Job):
    """A training without privacy that is to be, on public data; or one of nothing, which reads none of the training
    data (`uses_data` is False), private as they may be. It takes no plan, and promises nothing.

    Args:
        batch_size: examples in a step.
        origins: what stands behind the initial weights.
        max_norm: as in `PublicTraining`.
    """

    batch_size: int
    origins: tuple[str, ...] = ()
    max_norm: float | None = None
    uses_data: ClassVar[bool] = True

    @property
    def stated(self) -> dict[str, Any]:
        """What every statement without a promise says of data and weights."""
        return {"published": self.source.published, "origins": self.origins, "filtered": self.source.filtered}

    @property
    def statement(self) -> NoPromise:
        """That nothing is promised."""
        return NoPromise(**self.stated)

    def record(self, run: str) -> dict[str, Any]:
        """What settings.json holds."""
        return super().record(run) | {
            "kind": PUBLIC,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "max_norm": self.max_norm,
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
    """What the record of a training without privacy says of its steps; nothing of any other."""
    named = {"steps": "steps", "batch_size": "batch size", "max_norm": "clipping norm"}
    return {words: record[name] for name, words in named.items() if record.get(name) is not None}


def is_public(run: RunDirectory) -> bool:
    """Whether a run directory holds a training without privacy, or a model of which nothing was trained."""
    return run.exists and run.read_json(names.SETTINGS).get("kind") in (PUBLIC, UNTRAINED)
