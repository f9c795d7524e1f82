"""Training with views: throughput of whole steps, and the memory of a large one.

    python benchmarks/speed/views.py speed [ROUNDS]
    python benchmarks/speed/views.py memory BATCH VIEWS

`speed` takes a WRN-16-4 with 16 views of 32 x 32 images: a whole private step (participants, views, clipped gradient,
noise, optimizer, average), the clipped gradient alone on views that are there already, and a plain step without privacy
on as many images. All three run one after another in each round, on one thread; the figures are medians of the ratios.
`memory` takes one private step of a WRN-16-1 with a logical batch of BATCH of 50,000 images, views made for each
micro-batch, and reports the largest resident size of the process. Adds to benchmarks/results/views.json.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.problems import cores
from sfumato import EMA, Noise, PrivacyPlan, PrivateStep, Sampler, open_source
from sfumato.experiment import Settings
from sfumato.training.inputs import Inputs
from sfumato.training.job import Job
from sfumato.training.preparation.prepare import prepare
from sfumato.training.step import descend

RESULT = RESULTS / "views.json"


@dataclass(frozen=True, kw_only=True)
class Training:
    """A private training whose steps can be taken one by one."""

    job: Job
    optimizer: torch.optim.Optimizer
    trained: dict[str, nn.Parameter]

    @classmethod
    def of(cls, model: str, *, images: int, batch: int, views: int, threads: int) -> Training:
        """On made-up images; `batch` of them are expected in a step."""
        with tempfile.TemporaryDirectory() as place:
            generator = np.random.default_rng(0)
            x, y = generator.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8), np.arange(images) % 10
            np.savez(f"{place}/made-up.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
            source = open_source(f"npz:{place}/made-up.npz", owner_key=bytes(32))
        plan = PrivacyPlan.calibrate(examples=images, batch_size=batch, steps=1000, noise_multiplier=3.0, delta=1e-5)
        settings = Settings(model=model, optimizer="sgd", learning_rate=2.0, views=views, shift=4, flip=True, seed=0)
        job = prepare(None, source, plan, settings, device="cpu", threads=threads)
        trained = dict(job.module.named_parameters())
        return cls(job=job, optimizer=torch.optim.SGD(trained.values(), lr=2.0), trained=trained)

    def step(self, number: int, average: dict[str, Tensor]) -> dict[str, Tensor]:
        """One whole step; returns the average."""
        job, key, plan = self.job, self.job.key, self.job.plan
        noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=key)
        take = PrivateStep(plan=plan, gradient=job.gradient, noise=noise)
        participants = Sampler(plan, key, records=len(job.source.train)).draw(number)
        descend(self.optimizer, self.trained, take(number, Inputs(job).micro_batches(key, number, participants)))
        return EMA(0.9999).update(average, self.trained, number)


def speed(rounds: int) -> None:
    views, batch = 16, 16
    torch.set_num_threads(1)
    training = Training.of("wrn-16-4", images=4 * batch, batch=batch, views=views, threads=1)
    job, at_once = training.job, training.job.performance.micro_batch
    average: dict[str, Tensor] = {name: value.detach().clone() for name, value in training.trained.items()}
    shown = torch.randn(at_once, views, 3, 32, 32)
    targets = torch.arange(at_once) % 10
    times: dict[str, list[float]] = {"plain": [], "gradient": [], "step": []}
    for number in range(rounds + 1):
        participants = len(Sampler(job.plan, job.key, records=len(job.source.train)).draw(number))
        began = time.process_time()
        average = training.step(number, average)
        step = (time.process_time() - began) / participants
        began = time.process_time()
        for _ in range(2):
            job.gradient(shown, targets)
        gradient = (time.process_time() - began) / (2 * at_once)
        began = time.process_time()
        for _ in range(2):
            loss = functional.cross_entropy(job.module(shown.flatten(0, 1)), targets.repeat_interleave(views))
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
        plain = (time.process_time() - began) / (2 * at_once)
        training.optimizer.zero_grad()
        if number:  # the first round warms up
            for name, value in (("plain", plain), ("gradient", gradient), ("step", step)):
                times[name].append(value)
    ratio = {
        name: statistics.median(way / plain for way, plain in zip(times[name], times["plain"], strict=True))
        for name in ("gradient", "step")
    }
    record(
        "speed",
        {
            "model": "wrn-16-4",
            "views": views,
            "rounds": rounds,
            "plain_images_per_second": views / statistics.median(times["plain"]),
            "private_views_per_second": views / statistics.median(times["step"]),
            "ratio_of_the_clipped_gradient": ratio["gradient"],
            "ratio_of_the_whole_step": ratio["step"],
            "step_over_gradient": ratio["step"] / ratio["gradient"],
        },
    )


def memory(batch: int, views: int) -> None:
    training = Training.of("wrn-16-1", images=50_000, batch=batch, views=views, threads=torch.get_num_threads())
    average = {name: value.detach().clone() for name, value in training.trained.items()}
    before = peak()
    began = time.monotonic()
    training.step(0, average)
    record(
        f"memory {batch} x {views}",
        {
            "model": "wrn-16-1",
            "batch": batch,
            "views": views,
            "micro_batch": training.job.performance.micro_batch,
            "mebibytes_before": before,
            "mebibytes": peak(),
            "seconds": time.monotonic() - began,
        },
    )


def peak() -> int:
    """The largest resident size of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def record(name: str, row: dict[str, object]) -> None:
    row |= {"threads": torch.get_num_threads(), "cores": cores(), "torch": torch.__version__}
    rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps({**rows, name: row}, indent=1) + "\n")
    print(name, json.dumps(row, indent=1))


def main() -> None:
    what, *numbers = sys.argv[1:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if what == "speed":
        speed(*(int(number) for number in numbers or ["5"]))
    else:
        memory(*(int(number) for number in numbers))


if __name__ == "__main__":
    main()
