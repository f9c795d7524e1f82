"""What a run will take, measured on synthetic inputs before anything is spent."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from sfumato.randomness import DiceKey, Noise
from sfumato.training.loop import Job


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Expected seconds of the whole run, and bytes of its largest parts."""

    seconds: float
    activation_bytes: int
    data_bytes: int
    parameters: int
    micro_batches: int


def estimate(job: Job) -> Estimate:
    """Time one micro-batch and one draw of noise on synthetic inputs; nothing private is touched, nothing is spent."""
    count = min(job.performance.micro_batch, job.plan.expected_batch_size)
    views = (job.settings.views,) if job.settings.views > 1 else ()
    size = job.source.size
    inputs = torch.randn(count, *views, job.source.channels, size, size, device=job.device)
    targets = torch.arange(count, device=job.device) % len(job.source.classes)
    job.gradient(inputs[:1], targets[:1])
    began = time.monotonic()
    total = job.gradient(inputs, targets).gradients
    _settle(job)
    each = (time.monotonic() - began) / count
    began = time.monotonic()
    Noise(job.plan.mechanism, sensitivity=1.0, key=DiceKey.fresh()).add(total, 0)
    _settle(job)
    noise = time.monotonic() - began
    shape = (job.source.channels, size, size)
    with torch.random.fork_rng(devices=[job.device] if job.device.type == "cuda" else []):
        per_example = job.gradient.bytes_per_example(shape)
    return Estimate(
        seconds=job.plan.steps * (each * job.plan.expected_batch_size + noise),
        activation_bytes=per_example * count,
        data_bytes=job.source.train.images.nbytes + job.source.test.images.nbytes,
        parameters=sum(parameter.numel() for parameter in job.module.parameters() if parameter.requires_grad),
        micro_batches=-(-job.plan.expected_batch_size // job.performance.micro_batch),
    )


def _settle(job: Job) -> None:
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)
