"""Time and memory of a run, estimated on synthetic inputs before anything is spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from sfumato import _devices
from sfumato.data import by_user
from sfumato.gradients import GridSum
from sfumato.randomness import RunKey
from sfumato.training import launch
from sfumato.training.clients import updates_of
from sfumato.training.inputs import features_alone, kept_bytes, stored_variants
from sfumato.training.job import Embedding, PrivateJob, PublicJob, SourceJob
from sfumato.training.preparation.building import noise_named
from sfumato.training.weights import trained_bytes


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Expected seconds of the whole run, and bytes of its largest allocations."""

    seconds: float
    activation_bytes: int
    data_bytes: int
    parameters: int
    micro_batches: int
    average_bytes: int
    processes: int = 1


def estimate(job: PrivateJob) -> Estimate:
    """What a run will take, measured on synthetic inputs. Touches no private data and spends nothing."""
    per_example = job.gradient.bytes_per_example(job.input_shape, targets=job.synthetic_targets)
    return Estimate(
        seconds=seconds_of_steps(job),
        activation_bytes=per_example * math.prod(_synthetic_lead(job)),
        data_bytes=_data_bytes(job),
        parameters=sum(parameter.numel() for parameter in job.module.parameters() if parameter.requires_grad),
        micro_batches=job.micro_batch_count,
        processes=launch.current_workers().count,
        average_bytes=average_bytes(job),
    )


def _synthetic_lead(job: PrivateJob) -> tuple[int, ...]:
    """The leading axes of a synthetic micro-batch: (examples,), or (users, records of each)."""
    rows, each = job.records_of_a_step
    count = min(job.performance.micro_batch, rows)
    return (count,) if each is None else (max(1, count // each), each)


def seconds_of_steps(job: PrivateJob) -> float:
    """Expected seconds of all steps, from timing one synthetic micro-batch and one draw of noise.

    With several processes, the one with the most micro-batches determines the time. Communication is not included.
    """
    rows, each = job.records_of_a_step
    lead = _synthetic_lead(job)
    count = math.prod(lead)
    views = (job.settings.augmentation.views,) if job.settings.augmentation.views > 1 else ()
    if isinstance(job.input_shape, torch.Tensor):
        inputs = job.input_shape.to(job.device).expand(*lead, -1)
    else:
        shape = *lead, *views, *job.input_shape
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(job.device)
    synthetic = [inputs, torch.from_numpy(job.source.synthetic_labels(count)).to(job.device).unflatten(0, lead)]
    if each is not None:
        synthetic.append(torch.full(lead, 1 / each, device=job.device))
    device = job.performance.device
    with _devices.fork_rng(device), _devices.compute_mode(device, job.performance.precision):
        job.gradient(*(values[:1] for values in synthetic))
        one = seconds_of(job, lambda: job.gradient(*synthetic)) / count
    processes = launch.current_workers().count
    most = -(-job.micro_batch_count // processes) * job.performance.micro_batch
    each_step = one * min(rows, most) + seconds_of_noise(job) / processes
    return job.plan.steps * each_step + _trunk_seconds(job) / processes


AT_ONCE = 16
"""The number of images whose features are computed in the timing run."""
SEEN_TWICE = 2
"""Images per class of the synthetic client in the timing run."""


def embedding_seconds(job: PrivateJob | PublicJob, embedding: Embedding) -> float | None:
    """Expected seconds of a training of embeddings: of all rounds, from timing one client of average size and one draw
    of noise; of gradients as in `estimate`; without training, of the features of the test part. None for central
    training, which has neither clients nor noise."""
    if isinstance(job, PublicJob) and not job.uses_data:
        images = torch.randn(AT_ONCE, *job.source.shape, device=job.device)
        with torch.no_grad():
            return seconds_of(job, lambda: job.module(images)) * len(job.source.test) / AT_ONCE
    clients, rounds = embedding.clients, embedding.rounds
    if isinstance(job, PrivateJob):
        if job.client_count is None:
            return seconds_of_steps(job)
        population, expected, query = job.plan.population, job.plan.expected_batch_size, job.gradient
    elif rounds is None:
        return None
    else:
        population, expected = rounds.population, job.batch_size
        query = updates_of(job.module, clients, rounds.max_norm)
    units = population if clients.grouping == "fixed" else len(by_user(job.source.train)[1])
    records = max(SEEN_TWICE, round(len(job.source.train) * expected / units / clients.count))
    inputs = torch.randn(records, *job.source.shape, device=job.device)
    labels = torch.arange(records, device=job.device) // SEEN_TWICE % len(job.source.classes)
    client = seconds_of(job, lambda: query(inputs, labels, np.random.default_rng(0)))
    if isinstance(job, PublicJob):
        return job.steps * clients.count * client
    processes = launch.current_workers().count
    return job.steps * (-(-clients.count // processes) * client + seconds_of_noise(job) / processes)


def idle_warning(job: PrivateJob, processes: int) -> str | None:
    """A warning if there are more processes than micro-batches in a step; else None."""
    idle = processes - job.micro_batch_count
    if processes == 1 or idle <= 0:
        return None
    remedy = "start fewer" if job.plan.unit.drawn == "clients" else "start fewer, or begin with a smaller --micro-batch"
    return (
        f"{idle} of {processes} processes {'is' if idle == 1 else 'are'} idle in most steps, which have only "
        f"{job.micro_batch_count} micro-batch{'es' if job.micro_batch_count > 1 else ''}: {remedy}"
    )


def average_bytes(job: SourceJob) -> int:
    """Bytes of the copies of the trained parameters that averaging keeps."""
    keeps = job.training_over or job.averaging
    return 0 if keeps is None else keeps.copies * trained_bytes(job.module)


def _data_bytes(job: PrivateJob) -> int:
    """Bytes of the images, and of a trunk's features."""
    parts = (job.source.train, job.source.test)
    images = sum(part.nbytes for part in (*parts, job.source.zoomed) if part is not None)
    if job.trunk is None or isinstance(job.input_shape, torch.Tensor):
        return images
    scored = 4 * job.trunk.width * len(job.source.test)
    return images + kept_bytes(job.views, len(job.source.train), job.trunk) + scored


def _trunk_seconds(job: PrivateJob) -> float:
    """Seconds for a trunk's features of all records."""
    trunk, source = job.trunk, job.source
    if trunk is None:
        return 0.0
    images = torch.zeros(64, source.channels, source.size, source.size, device=job.device)
    each = seconds_of(job, lambda: features_alone(trunk, images)) / len(images)
    shown = len(stored_variants(job.views, trunk)) * len(source.train)
    return each * (shown + len(source.test))


def seconds_of_noise(job: PrivateJob) -> float:
    """Seconds for drawing and adding a step's noise."""
    noise = noise_named(job.noise, job.plan, RunKey.fresh(), max_norm=1.0)
    nothing = GridSum(job.gradient.zeros(), max_norm=1.0)
    return seconds_of(job, lambda: noise.add(noise.prepare_sum(nothing), 0, noise.begin()))


def seconds_of(job: SourceJob, action: Callable[[], object]) -> float:
    """Seconds for the faster of two calls."""
    tries = []
    for _ in range(2):
        began = time.monotonic()
        action()
        _devices.synchronize(job.device)
        tries.append(time.monotonic() - began)
    return min(tries)
