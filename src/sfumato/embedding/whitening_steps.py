"""Whitening as a single step of the training loop, and its evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.data import by_user
from sfumato.embedding.job import UntrainedJob, WhiteningJob
from sfumato.embedding.steps import EmbeddingScorer, embed_records
from sfumato.embedding.whitening import whitening
from sfumato.gradients import per_example_outputs, unchanged_outputs
from sfumato.models import MappedFeatures
from sfumato.observers.progress import NoProgress, Progress
from sfumato.randomness import NoiseState, RunKey, Sampler
from sfumato.training.parts.part import RunKind
from sfumato.training.preparation.building import noise_of
from sfumato.training.step import PrivateStep
from sfumato.training.steps import PlanSteps

BATCH = 64
"""The number of images whose features are computed at once."""


class FixedFeatureModel(nn.Module):
    """Maps images (N, C, H, W) to the fixed features, (N, D) of length 1."""

    def __init__(self, mapped: MappedFeatures):
        super().__init__()
        self.mapped = mapped

    def forward(self, images: Tensor) -> Tensor:
        """The features by `MappedFeatures.initial_embedding`."""
        return self.mapped.initial_embedding(images)


class WhiteningSteps(PlanSteps):
    """The single step: the noisy clipped sum of all users' scatters, and the map that follows from it.

    **Guarantee.** Every user takes part once, with all of their records in one vector, which holds no other user's
    records. Only the private step's noisy sum, divided by the plan's number of users, and functions of it leave.
    """

    def __init__(self, job: WhiteningJob, key: RunKey, progress: Progress | None = None):
        assert isinstance(job.module, MappedFeatures)
        plan, self._plan, self._job, self._module = job.plan, job.plan, job, job.module
        noise = noise_of(job.settings, plan, key)
        self._step = PrivateStep(plan=plan, gradient=job.gradient, noise=noise, divisor=plan.expected_batch_size)
        self._deviation = noise.standard_deviation / plan.expected_batch_size
        users, names = by_user(job.source.train)
        self._order = np.argsort(users, kind="stable")
        self._ends = np.searchsorted(users[self._order], np.arange(len(names) + 1))
        self._sampler = Sampler(plan, key, records=len(names))
        self._progress = progress or NoProgress()

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """The gradient that leads from the identity to the map by one step of rate 1, and the noise's next state."""
        released, following = self._step(step, self._users(self._sampler.draw(step)), state)
        matrix, shift = whitening(released, deviation=self._deviation)
        own = self._module.map
        moved = {"map.weight": own.weight.detach().cpu() - matrix, "map.bias": own.bias.detach().cpu() - shift}
        return {name: value.to(self._job.device) for name, value in moved.items()}, following

    def _users(self, drawn: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the arguments of `ClippedScatters` for each user."""
        vectors, labels = self._vectors(), torch.from_numpy(self._job.source.train.labels)
        for user in drawn:
            own = self._order[self._ends[user] : self._ends[user + 1]]
            yield vectors[own], labels[own]

    def _vectors(self) -> Tensor:
        """The first K coordinates of the fixed features of all training images, (N, K).

        **Guarantee.** Each row is a function of its own image. It is computed in a batch of the same size whatever the
        number of images is (`per_example_outputs`).
        """
        job, records = self._job, self._job.source.train
        begun = FixedFeatureModel(self._module).eval()
        found = torch.empty(len(records), job.gradient.width)
        self._progress.begin("computing features", len(records))
        with unchanged_outputs(begun, torch.zeros(1, *job.source.shape, device=job.device)):
            for start in range(0, len(records), BATCH):
                rows = slice(start, start + BATCH)
                images = job.transform(torch.from_numpy(records.take(rows)).to(job.device))
                filled = F.pad(images, (0, 0) * (images.dim() - 1) + (0, BATCH - len(images)))
                own = per_example_outputs(begun, filled)[: len(images), : job.gradient.width]
                found[rows] = own.float().cpu()
                self._progress.advance(min(start + BATCH, len(records)))
        return found


class NoSteps:
    """The steps of an untrained embedding: there are none."""

    def __init__(self, job: UntrainedJob, key: RunKey, progress: Progress | None = None):
        pass

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """Raises TypeError."""
        raise TypeError("an untrained embedding has no steps")

    def figures(self, step: int) -> dict[str, Any]:
        """No figures."""
        return {}


class FeatureScorer(EmbeddingScorer):
    """Recall of a map of fixed features, which are computed once.

    Args:
        job: the run.
        progress: where to report progress.
    """

    def __init__(self, job: WhiteningJob | UntrainedJob, progress: Progress | None = None):
        super().__init__(job, progress)
        self._begun: Tensor | None = None

    def _embedded(self, weights: Mapping[str, Tensor], rows: np.ndarray) -> Tensor:
        job, mapped = self._job, self._shown
        assert isinstance(mapped, MappedFeatures)
        mapped.load_state_dict(weights)
        if self._begun is None:
            self._begun = embed_records(FixedFeatureModel(mapped), job.source.test, job.transform, job.device)
        with torch.inference_mode():
            own = self._begun[torch.from_numpy(rows)].to(job.device)
            return F.normalize(mapped.apply_map(own), dim=1).float().cpu()


WHITENING = RunKind(steps=WhiteningSteps, scorer=FeatureScorer)
NOTHING = RunKind(steps=NoSteps, scorer=FeatureScorer)
