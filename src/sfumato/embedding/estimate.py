"""What a training of embeddings will take, measured on made-up records before anything is spent."""

from __future__ import annotations

import numpy as np
import torch

from sfumato.data import by_user
from sfumato.embedding.job import AnyJob, CentralJob, DpsgdJob, NoiselessJob, UntrainedJob, WhiteningJob
from sfumato.training import together
from sfumato.training.preparation import estimate as of_steps
from sfumato.training.preparation.estimate import seconds_of

AT_ONCE = 16
"""Images whose features are computed by the clock."""
SEEN_TWICE = 2
"""Images of a class in a made-up client."""


def seconds(job: AnyJob) -> float | None:
    """Expected seconds of all rounds: one client of average size and one draw of noise, by the clock; where an
    embedding begins at fixed features, those of the images that these are computed of.

    None for central training, whose steps have neither.
    """
    if isinstance(job, (UntrainedJob, WhiteningJob)):
        return _of_features(job)
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
    processes = together.own().count
    return job.steps * (-(-count // processes) * client + of_steps.seconds_of_noise(job) / processes)


def _of_features(job: UntrainedJob | WhiteningJob) -> float:
    """Seconds to compute the features of the images that are used: of the test part, and of those that are measured."""
    images = torch.randn(AT_ONCE, *job.source.shape, device=job.device)
    records = len(job.source.test) + (len(job.source.train) if isinstance(job, WhiteningJob) else 0)

    def computed() -> None:
        with torch.no_grad():
            job.module(images)

    return seconds_of(job, computed) * records / AT_ONCE
