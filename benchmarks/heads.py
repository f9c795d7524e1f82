"""What a private classifier on cached features costs: python benchmarks/heads.py PLACE [RECORDS] [WIDTH] [CLASSES]

One full-batch step over a cache of random features, as `sfumato train features:PATH` takes it (reading, clipping and
noise), against the two bare matrix products that it needs, on the same features in memory, in the same run. Then the
peak of resident memory of such a step in a process of its own. PLACE keeps the cache. Writes
results/heads-MACHINE.json.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import measuring
from sfumato.data import Cache, Contents, Source, open_source
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import DiceKey, Noise, Sampler
from sfumato.training import PrivateStep, Settings
from sfumato.training.inputs import Inputs
from sfumato.training.loop import Job
from sfumato.training.prepare import prepare

ROUNDS = 5


def main(place: str, records: int = 128_000, width: int = 1280, classes: int = 1000, *options: str) -> None:
    path = make(Path(place), records, width, classes)
    if "memory" in options:
        step_of(job_for(path))()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    job = job_for(path)
    step, bare = step_of(job), bare_products(job)
    step(), bare()
    ratios, seconds = [], []
    for _ in range(ROUNDS):
        plain, private = timed(bare), timed(step)
        ratios.append(private / plain)
        seconds.append((plain, private))
    command = [sys.executable, __file__, place, str(records), str(width), str(classes), "memory"]
    peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    machine = measuring.machine("cpu")
    found = {
        "machine": machine,
        "records": records,
        "width": width,
        "classes": classes,
        "threads": torch.get_num_threads(),
        "micro_batch": job.performance.micro_batch,
        "bare_seconds": statistics.median(plain for plain, _ in seconds),
        "seconds": statistics.median(private for _, private in seconds),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "peak_mebibytes": peak,
    }
    results = measuring.RESULTS / f"heads-{measuring.machine_name(machine)}.json"
    kept = json.loads(results.read_text()) if results.exists() else {}
    kept[f"{records}x{width}x{classes}"] = found
    results.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"step {found['seconds']:.2f} s, bare products {found['bare_seconds']:.2f} s, ratio {found['ratio']:.3f}")
    print(f"peak resident memory {peak:,.0f} MiB")


def make(place: Path, records: int, width: int, classes: int) -> Path:
    """A cache of random features."""
    cache = Cache(place / f"{records}x{width}x{classes}")
    contents = Contents(
        width=width,
        counts={"train": records, "test": 1000},
        source={
            "kind": "npz",
            "fingerprint": "0" * 64,
            "classes": [str(number) for number in range(classes)],
            "examples": records,
            "read": [],
            "public": True,
            "size": 224,
            "channels": 3,
            "size_rule": "declared",
            "filtered": False,
        },
    )
    cache.begin(contents)
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "test"):
        for name, rows in cache.missing(part):
            labels = np.random.default_rng(rows.start).integers(0, classes, len(rows))
            cache.write(name, torch.randn(len(rows), 1, width, generator=generator), labels)
    return cache.path


def job_for(path: Path) -> Job:
    """A single full-batch step of LAMB."""
    source: Source = open_source(f"features:{path}", owner_key=bytes(32))
    plan = PrivacyPlan.calibrate(examples=source.examples, batch_size=source.examples, steps=1, epsilon=8.0, delta=1e-7)
    settings = Settings(model="head", optimizer="lamb", learning_rate=1e-3, ema=0.0, seed=0)
    return prepare(None, source, plan, settings, device="cpu", threads=torch.get_num_threads())


def step_of(job: Job):
    """The run's step, and the optimizer's: what `sfumato train` does once."""
    key = DiceKey.from_seed(0)
    sampler = Sampler(job.plan.sampling, key, records=len(job.source.train))
    noise = Noise(job.plan.mechanism, sensitivity=job.gradient.sensitivity(job.plan.adjacency), key=key)
    private_step, inputs = PrivateStep(plan=job.plan, gradient=job.gradient, noise=noise), Inputs(job)
    return lambda: private_step(0, inputs.micro_batches(key, 0, sampler.draw(0)))


def bare_products(job: Job):
    """Logits and the gradient of the weights, nothing else, in the same pieces, from memory."""
    size, records = job.performance.micro_batch, job.source.train
    features = torch.from_numpy(records.take(slice(None)))[:, 0]
    weight = torch.zeros(len(job.source.classes), features.shape[1])

    def run() -> None:
        total = torch.zeros_like(weight)
        for piece in features.split(size):
            logits = piece @ weight.t()
            total += logits.t() @ piece

    return run


def timed(action) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), *sys.argv[5:])
