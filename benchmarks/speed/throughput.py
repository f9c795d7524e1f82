"""Images per second of DP-LAMB, all layers and the last one: python benchmarks/speed/throughput.py [--device cuda]

    python benchmarks/speed/throughput.py [--models vit-b16 r50x3] [--tuning full last] [--size 384] [--batch 2]

Table 8 of Mehta et al. 2022 (appendix E.1). A step is all that a private step on images in memory is: an Inception crop
out of 7/6 of the size, mirrored by a coin, each image's clipped gradient of the sigmoid loss over 1,000 classes, noise,
LAMB. Tuning the last layer runs the whole network as well, since each step has crops of its own. Weights and images are
random, which changes no time. The first step, which measures how to compute each layer's norms, is not counted; the
figure is the median of the next ones. Per core it is by the processor's time, which other programs on the machine
hardly change; an accelerator is one core.

Each model and tuning is measured in a process of its own. Figures go to benchmarks/results/throughput-MACHINE.json;
what stands there for the same size and batch is not measured again.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from sfumato import ClippedGradient, Noise, PrivacyPlan, RunKey, Views, models, optim
from sfumato.data import Transform
from sfumato.models.losses import LOSSES
from sfumato.training.loop import descend
from sfumato.training.step import PrivateStep

MODELS = {
    "vit-b16": "timm:vit_base_patch16_224",
    "vit-l16": "timm:vit_large_patch16_224",
    "vit-h14": "timm:vit_huge_patch14_224",
    "r50x3": "timm:resnetv2_50x3_bit",
    "r152x4": "timm:resnetv2_152x4_bit",
}
"""ResNet50x3 stands for ResNet50x4, which timm lacks."""
TUNING = {"full": "all", "last": "classifier"}
PAPER = {"vit-b16": (170, 900), "vit-l16": (25, 235), "vit-h14": (12, 100), "r50x3": (25, 225), "r152x4": (3, 90)}
"""Table 8: images per second and core of 64 TPUv4 cores, all layers and the last one; of r50x3 those of ResNet50x4."""
CLASSES, EXAMPLES = 1000, 1_281_167


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Args:
        models: keys of `MODELS`, or names of models.
        tuning: all layers, the last one, or both.
        size: side of what the network sees, in pixels.
        batch: images in a step; by default 2 on a processor and 32 on an accelerator.
        rounds: how many steps are timed.
        threads: torch's.
        device: cpu or cuda.
        json: the file of the figures, in place of benchmarks/results/throughput-MACHINE.json.
    """

    models: tuple[str, ...] = tuple(MODELS)
    tuning: tuple[Literal["full", "last"], ...] = ("full", "last")
    size: int = 384
    batch: int | None = None
    rounds: int = 3
    threads: int | None = None
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    json: Path | None = None


def main(options: Options) -> None:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    machine = measuring.machine(options.device)
    path = options.json or RESULTS / f"throughput-{measuring.machine_name(machine)}.json"
    found = json.loads(path.read_text("utf-8")) if path.exists() else {"machine": machine, "rows": {}}
    batch = options.batch or (32 if options.device == "cuda" else 2)
    for name in options.models:
        row = found["rows"].setdefault(f"{name}, {options.size} pixels", {})
        for tuning in options.tuning:
            known = row.get(tuning, {"reason": "not yet measured"})
            if "reason" in known or known["batch"] != batch:
                row[tuning] = attempt(name, tuning, batch, options)
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        print(line(name, row), flush=True)


def attempt(name: str, tuning: str, batch: int, options: Options) -> dict[str, Any]:
    """Figures, or the reason why there are none."""
    threads = torch.get_num_threads()
    try:
        how = (MODELS.get(name, name), TUNING[tuning], options.size, batch, options.rounds, threads, options.device)
        return measuring.apart(measure, *how)
    except Exception as error:
        return {"batch": batch, "reason": measuring.reason(error)}


def measure(model: str, trained: str, size: int, batch: int, rounds: int, threads: int, device: str) -> dict[str, Any]:
    """Images per second of private steps, and what they took."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    module = models.create(model, classes=CLASSES, channels=3, size=size)
    models.select_trainable(module, (trained,))
    module.train().to(device)
    plan = PrivacyPlan.calibrate(
        examples=EXAMPLES, batch_size=batch, steps=rounds + 1, noise_multiplier=1.0, max_norm=1.0, delta=1e-6
    )
    key = RunKey.from_seed(0)
    gradient = ClippedGradient(module, LOSSES["sigmoid"], max_norm=plan.max_norm)
    step = PrivateStep(plan=plan, gradient=gradient, noise=Noise(plan.mechanism, max_norm=plan.max_norm, key=key))
    parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
    optimizer = optim.create("lamb", list(parameters.values()), learning_rate=0.01)
    views = Views(zoom=7 / 6, crop_area=0.05, flip=True)
    transform = Transform(size=views.side(size), channels=3)
    shape = (batch, views.side(size), views.side(size), 3)
    images = torch.from_numpy(np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)).to(device)
    targets = torch.arange(batch, device=device) % CLASSES
    seconds, of_processor = [], []
    for number in range(rounds + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        began, worked = time.perf_counter(), time.process_time()
        draws = views.draw(key.generator("views", number), batch, size=size)
        shown = views.apply(transform(images), draws, size=size).squeeze(1)
        descend(optimizer, parameters, step(number, [(shown, targets)]))
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        of_processor.append(time.process_time() - worked)
    typical = statistics.median(seconds[1:])
    of_cores = typical if device == "cuda" else statistics.median(of_processor[1:])
    return {
        "batch": batch,
        "trained_parameters": sum(value.numel() for value in parameters.values()),
        "first_step_seconds": seconds[0],
        "step_seconds": seconds[1:],
        "images_per_second": batch / typical,
        "images_per_second_and_core": batch / of_cores,
    }


def line(name: str, row: dict[str, Any]) -> str:
    """A row as it is printed: all layers, the last one, their ratio, and the paper's."""
    words = [f"{name:<28}"]
    speeds = {}
    for tuning, figures in row.items():
        speeds[tuning] = figures.get("images_per_second_and_core")
        words.append(f"{tuning} {figures['reason'] if speeds[tuning] is None else f'{speeds[tuning]:.3g} img/s/core'}")
    if None not in (speeds.get("full"), speeds.get("last")):
        words.append(f"{speeds['last'] / speeds['full']:.1f}x")
    if name in PAPER:
        full, last = PAPER[name]
        words.append(f"(the paper: {full}, {last}, {last / full:.1f}x)")
    return "  ".join(words)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
