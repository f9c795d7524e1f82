"""What a private classifier on cached features costs.

    python benchmarks/speed/heads.py PLACE [RECORDS WIDTH CLASSES [WHAT]]

WHAT is one of:

- `step` (the default): one full-batch step over a cache of random features, as `sfumato train features:PATH` takes it
  (reading, clipping and noise), against the two bare matrix products that it needs, on the same features in memory, in
  the same run;
- `memory`: the peak of resident memory of such a step in a process of its own;
- `disk`: such a step against a plain read of the same files, both with no page of them in memory beforehand, for
  features that are more than training keeps;
- `opacus`: steps of a batch of 4,096, clipping and noise, against those of Opacus (pip install opacus) on the same
  features in memory.

PLACE keeps the cache. Writes results/heads-MACHINE.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from sfumato.data import Cache, Contents, Source, open_source
from sfumato.experiment import Settings
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import Noise, RunKey, Sampler
from sfumato.training import PrivateStep
from sfumato.training.inputs import Inputs
from sfumato.training.job import Job
from sfumato.training.preparation.prepare import prepare

CPU = torch.device("cpu")
ROUNDS = 9
BATCH, NOISE = 4096, 1.0
BLOCK = 4 << 20  # bytes that a plain read takes at a time
PHYSICAL = 1 << 30  # bytes of per-example gradients that Opacus may hold at once; it forms them all


def main(place: str, records: int = 128_000, width: int = 1280, classes: int = 1000, what: str = "step") -> None:
    ways = {"step": against_products, "memory": in_memory, "disk": against_disk, "opacus": against_opacus}
    ways[what](make(Path(place), records, width, classes))


def against_products(path: Path) -> None:
    """Full-batch steps against the products alone, on the same features in memory."""
    found = measured(path)
    keep(path.name, found)
    print(f"step {found['seconds']:.2f} s, bare products {found['bare_seconds']:.2f} s, ratio {found['ratio']:.3f}")


def measured(path: Path, device: str = "cpu") -> dict[str, Any]:
    """The figures of full-batch steps and of their bare products, in turn."""
    job = job_for(path, device=device)
    step, bare = step_of(job), bare_products(job)
    step(), bare()
    pairs = [(timed(bare, job.device), timed(step, job.device)) for _ in range(ROUNDS)]
    ratios = [private / plain for plain, private in pairs]
    return {
        "micro_batch": job.performance.micro_batch,
        "bare_seconds": statistics.median(plain for plain, _ in pairs),
        "seconds": statistics.median(private for _, private in pairs),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def in_memory(path: Path) -> None:
    """The most memory that a process of one full-batch step holds, pages of files that it maps included."""
    peak = measuring.apart(peak_of_step, path)
    keep(f"{path.name}, memory", {"peak_mebibytes": peak})
    print(f"peak resident memory {peak:,.0f} MiB")


def peak_of_step(path: Path) -> float:
    step_of(job_for(path))()
    # Not getrusage: its peak is begun by the process that this one was forked from.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def keep(name: str, found: dict[str, object]) -> None:
    """Add figures to the machine's file."""
    machine = measuring.machine("cpu")
    results = RESULTS / f"heads-{measuring.machine_name(machine)}.json"
    kept = json.loads(results.read_text()) if results.exists() else {}
    kept[name] = {"machine": machine} | found
    results.write_text(json.dumps(kept, indent=1) + "\n")


def against_disk(path: Path) -> None:
    """Full-batch steps that read all features from disk, against reading the files and doing nothing with them."""
    job = job_for(path)
    step, files = step_of(job), sorted(path.glob("train-*.safetensors"))
    memory = bytearray(BLOCK)

    def read() -> None:
        for file in files:
            with file.open("rb", buffering=0) as opened:
                while opened.readinto(memory):
                    pass

    def cold(action) -> float:
        for file in files:
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return timed(action)

    pairs = [(cold(read), cold(step)) for _ in range(ROUNDS)]
    mebibytes = sum(file.stat().st_size for file in files) / 2**20
    found = {
        "mebibytes": mebibytes,
        "read_seconds": statistics.median(plain for plain, _ in pairs),
        "seconds": statistics.median(private for _, private in pairs),
        "share": statistics.median(plain / private for plain, private in pairs),
        "shares": [plain / private for plain, private in pairs],
    }
    keep(f"{path.name}, from disk", found)
    speeds = [mebibytes / found[name] for name in ("read_seconds", "seconds")]
    print(f"read {speeds[0]:,.0f} MiB/s, step {speeds[1]:,.0f} MiB/s, share {found['share']:.2f}")


def against_opacus(path: Path) -> None:
    """Steps of BATCH examples: reading from the cache and all, against Opacus's two ways on features in memory."""
    job = job_for(path, BATCH)
    records = job.source.train
    features, labels = torch.from_numpy(records.take(slice(0, BATCH)))[:, 0], torch.from_numpy(records.labels[:BATCH])
    steps = {"sfumato": step_of(job)}
    steps |= {way: opacus_step(way, features, labels, len(job.source.classes)) for way in ("hooks", "ghost")}
    seconds: dict[str, list[float]] = {way: [] for way in steps}
    for way in steps.values():
        way()
    for _ in range(ROUNDS):
        for name, way in steps.items():
            seconds[name].append(timed(way))
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    keep(f"{path.name}, B = {BATCH}, against Opacus", {"seconds": medians})
    for name, found in medians.items():
        print(f"{name:<8} {1000 * found:8.1f} ms, {found / medians['sfumato']:.1f} of sfumato's")


def opacus_step(way: str, features: torch.Tensor, labels: torch.Tensor, classes: int):
    """One private step of SGD on a linear layer, in pieces of as many examples as it can hold."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    linear = torch.nn.Linear(features.shape[1], classes)
    physical = BATCH if way == "ghost" else max(1, min(BATCH, PHYSICAL // (4 * linear.weight.numel())))
    given = {"noise_multiplier": NOISE, "max_grad_norm": 1.0, "expected_batch_size": BATCH}
    loss = torch.nn.CrossEntropyLoss()
    if way == "ghost":
        module = GradSampleModuleFastGradientClipping(linear, max_grad_norm=1.0, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(module.parameters(), lr=1e-3), **given)
        loss = DPLossFastGradientClipping(module, optimizer, loss)
    else:
        module = GradSampleModule(linear)
        optimizer = DPOptimizer(torch.optim.SGD(module.parameters(), lr=1e-3), **given)

    def step() -> None:
        pieces = list(zip(features.split(physical), labels.split(physical), strict=True))
        for number, (some, wanted) in enumerate(pieces, start=1):
            optimizer.signal_skip_step(do_skip=number < len(pieces))
            loss(module(some), wanted).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


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
            "pixels": "",
            "places": [],
            "filtered": False,
            "material": "0" * 64,
            "parted": True,
        },
    )
    cache.begin(contents)
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "test"):
        for name, rows in cache.missing(part):
            dice = np.random.default_rng(rows.start)
            labels, codes = dice.integers(0, classes, len(rows)), dice.integers(0, 256, (len(rows), 32), np.uint8)
            cache.write(name, torch.randn(len(rows), 1, width, generator=generator), labels, codes)
    return cache.path


def job_for(path: Path, batch_size: int | None = None, device: str = "cpu") -> Job:
    """A single step of LAMB, on all examples or on a batch that is drawn."""
    source: Source = open_source(f"features:{path}", owner_key=bytes(32))
    batch_size = batch_size or source.examples
    plan = PrivacyPlan.calibrate(
        examples=source.examples, batch_size=batch_size, steps=1, noise_multiplier=NOISE, delta=1e-7
    )
    settings = Settings(model="head", optimizer="lamb", learning_rate=1e-3, ema=0.0, seed=0)
    return prepare(None, source, plan, settings, device=device, threads=torch.get_num_threads())


def step_of(job: Job):
    """The run's step, and the optimizer's: what `sfumato train` does once."""
    key = RunKey.from_seed(0)
    sampler = Sampler(job.plan, key, records=len(job.source.train))
    noise = Noise(job.plan.mechanism, max_norm=job.plan.max_norm, key=key)
    private_step, inputs = PrivateStep(plan=job.plan, gradient=job.gradient, noise=noise), Inputs(job)
    return lambda: private_step(0, inputs.micro_batches(key, 0, sampler.draw(0)))


def bare_products(job: Job):
    """Logits and the gradient of the weights, nothing else, in the same pieces, from memory."""
    size, records = job.performance.micro_batch, job.source.train
    features = torch.from_numpy(records.take(slice(None)))[:, 0].to(job.device)
    weight = torch.zeros(len(job.source.classes), features.shape[1], device=job.device)

    def run() -> None:
        total = torch.zeros_like(weight)
        for piece in features.split(size):
            logits = piece @ weight.t()
            total += logits.t() @ piece

    return run


def timed(action, device: torch.device = CPU) -> float:
    began = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), *sys.argv[5:])
