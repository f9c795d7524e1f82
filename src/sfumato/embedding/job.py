"""Jobs of embedding trainings. Each of them releases a backbone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import models
from sfumato._checks import positive_integer
from sfumato.data import Source, by_user
from sfumato.embedding.choices import KIND, UNTRAINED, Clients
from sfumato.embedding.local import initial_head
from sfumato.embedding.method import ROUND, NoiselessRounds
from sfumato.embedding.rounds import ClippedUpdates
from sfumato.experiment.settings import Settings
from sfumato.privacy import ClippedWithoutNoise, NoPrivateData
from sfumato.randomness import RunKey
from sfumato.training import launch
from sfumato.training.job import PrivateJob, PublicJob
from sfumato.training.preparation import estimate as of_steps
from sfumato.training.preparation.estimate import seconds_of


class BackboneWithHead(nn.Module):
    """A backbone with one head over all classes: inputs (N, ...) to logits (N, classes).

    Args:
        backbone: maps inputs to embeddings (N, D).
        classes: the declared number of classes, whether or not they have records.
        width: D.
        generator: draws the head's initial weights, which are public.
    """

    def __init__(self, backbone: nn.Module, *, classes: int, width: int, generator: np.random.Generator):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(positive_integer("width", width), positive_integer("classes", classes), bias=False)
        with torch.no_grad():
            self.head.weight.copy_(initial_head(classes, width, generator))

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs to logits."""
        return self.head(self.backbone(inputs))


@dataclass(frozen=True, kw_only=True)
class EmbeddingMixin:
    """The part that all jobs of embeddings share.

    Args:
        clients: how the users of a round become a sum of updates. For methods without clients only the dimension, the
            method and the false accept rate count.
        initial_weights: all initial weights of the model. The result is compared with them.
    """

    clients: Clients
    initial_weights: Mapping[str, Tensor]

    @property
    def step_facts(self) -> dict[str, Any]:
        """The record of the clients' settings."""
        return super().step_facts | {KIND: self.clients.recorded}  # type: ignore[misc] - of the job beside it

    @property
    def model_facts(self) -> dict[str, Any]:
        """The dimension of the embeddings. The classes are left out, since they may be names of people."""
        return {"embedding": self.clients.dimension, "classes": []}

    def released_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights of the backbone. A head over classes is not released."""
        return backbone_weights(weights) if self.clients.head_in_model else weights


@dataclass(frozen=True, kw_only=True)
class EmbeddingJob(EmbeddingMixin, PrivateJob):
    """A private training of embeddings."""

    gradient: ClippedUpdates  # type: ignore[assignment]

    @property
    def micro_batch_count(self) -> int:
        """The virtual clients of a round."""
        return self.clients.count


@dataclass(frozen=True, kw_only=True)
class DpsgdJob(EmbeddingMixin, PrivateJob):
    """A private training of a classifier with each user's mean gradient. The backbone is released."""


@dataclass(frozen=True, kw_only=True)
class CentralJob(EmbeddingMixin, PublicJob):
    """A training of embeddings without clients and privacy: SGD on a backbone with one head over all classes. It is the
    baseline of the private methods (DP-FedEmb, section 3.1)."""


@dataclass(frozen=True, kw_only=True)
class NoiselessJob(EmbeddingMixin, PublicJob):
    """A training with clipped updates and without noise.

    Args:
        gradient: computes the clipped update of a client.
        rounds: the settings of the rounds.
    """

    gradient: ClippedUpdates
    rounds: NoiselessRounds

    @property
    def statement(self) -> ClippedWithoutNoise:
        """The statement that nothing is promised, although updates are clipped."""
        return ClippedWithoutNoise(**self.statement_facts, method=self.clients.method)

    @property
    def step_facts(self) -> dict[str, Any]:
        """The record of the clients' settings, the population, and the clipping."""
        return super().step_facts | {ROUND: self.rounds.to_dict()}


@dataclass(frozen=True, kw_only=True)
class UntrainedJob(EmbeddingMixin, PublicJob):
    """An untrained embedding: no steps and no private data.

    **Guarantee.** The model is a function of public constants and of declared facts: no record is read to build it. The
    test part is read to evaluate it, and those figures are for the owner.
    """

    uses_data = False

    @property
    def statement(self) -> NoPrivateData:
        """The statement that no private data were used."""
        read = tuple(fact for fact in self.source.facts_read if fact != "classes")
        return NoPrivateData(**self.statement_facts, test_public=self.source.public, read=read)

    def record(self, run: str) -> dict[str, Any]:
        """The content of settings.json."""
        return super().record(run) | {"kind": UNTRAINED}


AnyJob = EmbeddingJob | DpsgdJob | UntrainedJob | CentralJob | NoiselessJob


def copy_weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights, on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}


def build(
    source: Source, settings: Settings, clients: Clients, key: RunKey, model: nn.Module | None = None
) -> nn.Module:
    """The model with its initial weights, which are public: a backbone, with a head over all classes for fedavg. For
    untrained: fixed features and their projection."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.seed("initial weights", 0))
        backbone = (
            models.create_embedding(
                settings.model,
                channels=source.channels,
                size=source.size,
                dimension=clients.dimension,
                pretrained=settings.network.initial_weights,
                head=settings.network.head,
            )
            if model is None
            else copy.deepcopy(model).cpu()
        )
    if clients.method == UNTRAINED:
        shape = (source.channels, source.size, source.size)
        return models.embedding_of_features(backbone, shape=shape, dimension=clients.dimension)
    backbone.train()
    if settings.descent.trainable:
        models.select_trainable(backbone, settings.descent.trainable)
    if not clients.head_in_model:
        return backbone
    head = key.generator("initial head", 0)
    return BackboneWithHead(backbone, classes=len(source.classes), width=clients.dimension, generator=head)


def backbone_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's weights in a `BackboneWithHead`, by their names in the backbone."""
    inside = "backbone."
    return {name.removeprefix(inside): value for name, value in weights.items() if name.startswith(inside)}


AT_ONCE = 16
"""The number of images whose features are computed in the timing run."""
SEEN_TWICE = 2
"""Images per class of the synthetic client in the timing run."""


def seconds(job: AnyJob) -> float | None:
    """Expected seconds of all rounds, from timing one client of average size and one draw of noise. For untrained
    embeddings, the seconds to compute the features.

    None for central training, which has neither clients nor noise.
    """
    if isinstance(job, UntrainedJob):
        return _feature_seconds(job)
    if isinstance(job, DpsgdJob):
        return of_steps.estimate(job).seconds
    if isinstance(job, CentralJob):
        return None
    noiseless = isinstance(job, NoiselessJob)
    count = job.clients.count
    population = job.rounds.population if noiseless else job.plan.population
    expected = job.batch_size if noiseless else job.plan.expected_batch_size
    groups = population if job.clients.grouping == "fixed" else len(by_user(job.source.train)[1])
    records = max(SEEN_TWICE, round(len(job.source.train) * expected / groups / count))
    inputs = torch.randn(records, *job.source.shape, device=job.device)
    labels = torch.arange(records, device=job.device) // SEEN_TWICE % len(job.source.classes)
    client = seconds_of(job, lambda: job.gradient(inputs, labels, np.random.default_rng(0)))
    if noiseless:
        return job.steps * count * client
    processes = launch.current_workers().count
    return job.steps * (-(-count // processes) * client + of_steps.seconds_of_noise(job) / processes)


def _feature_seconds(job: UntrainedJob) -> float:
    """Seconds to compute the features of the test part."""
    images = torch.randn(AT_ONCE, *job.source.shape, device=job.device)

    def computed() -> None:
        with torch.no_grad():
            job.module(images)

    return seconds_of(job, computed) * len(job.source.test) / AT_ONCE
