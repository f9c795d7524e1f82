"""What a step costs with so many processes: python benchmarks/scale/costs.py [--examples 128] [--counts 1 2 3 4 6 8]

A model of a step's seconds with P processes, fitted to a WRN-16-4 and then asked about runs of two papers:

    t(P) = a n(P) + d / P + s + bytes(P) / w + l m(P)

n(P) are the micro-batches of the process with the most, bytes(P) = 12 parameters (P - 1) / P what each sends, m(P) its
messages. `a`, `d` and `s` (a micro-batch, the noise, what every process does alike) are fitted by least squares to what
one process of P does, alone on the machine, since a machine of two cores cannot show eight; w and l to the exchange
between P real processes over the loopback interface, in processor time. Errors are those of the fit at each P.

Also how much of a step of 4,096 images by 8 processes goes to draw, noise, ledger and checkpoint, in processor time.

Writes results/costs-MACHINE.json.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import tyro
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import machine, machine_name
from sfumato import ClippedGradient, Noise, Poisson, PrivacyPlan, PrivateStep, RunKey
from sfumato.gradients import GridSum
from sfumato.models import create
from sfumato.privacy import FixedClipping, Gaussian, Ledger
from sfumato.randomness import NoiseState, Sampler
from sfumato.runs.checkpoint import Checkpoint
from sfumato.training import launch
from sfumato.training.step import descend
from sfumato.training.workers import Workers

MICRO_BATCH, LARGE = 16, 4096
PLAN = PrivacyPlan(
    population=50_000,
    participation=Poisson(batch_size=LARGE),
    mechanism=Gaussian(noise_multiplier=3.0),
    steps=100,
    delta=1e-5,
    clipping=FixedClipping(1.0),
)
CHECKPOINT_SECONDS = 15.0
"""From one checkpoint to the next (`training.loop`)."""


class OneOfMany(Workers):
    """One of so many workers, without the others: nothing is sent."""

    def reduce_scatter(self, own: GridSum, step: int, done: int) -> None:
        """Its own sums alone."""

    def all_gather(self, noisy: Any) -> dict[str, torch.Tensor]:
        """As they are."""
        return dict(noisy)


def network() -> nn.Module:
    """A WRN-16-4 with weights that are not all alike."""
    torch.manual_seed(0)
    return create("wrn-16-4", classes=10, channels=3, size=32)


def spent(action: Callable[[], object], rounds: int = 3) -> float:
    """Processor seconds of an action, the median of some rounds after a first one."""
    action()
    found = []
    for _ in range(rounds):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return statistics.median(found)


def of_one(examples: int, counts: Iterable[int]) -> dict[int, float]:
    """Processor seconds of a step of so many examples for the first of P processes."""
    module = network()
    trained = dict(module.named_parameters())
    gradient = ClippedGradient(module, cross_entropy, max_norm=1.0)
    noise = Noise(PLAN.mechanism, max_norm=1.0, key=RunKey.from_seed(0))
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    images, labels = torch.randn(examples, 3, 32, 32), torch.arange(examples) % 10
    pieces = [(images[at : at + MICRO_BATCH], labels[at : at + MICRO_BATCH]) for at in range(0, examples, MICRO_BATCH)]
    found = {}
    for count in counts:
        workers = OneOfMany(rank=0, count=count)
        step = PrivateStep(plan=PLAN, gradient=gradient, noise=noise, workers=workers)
        own = [pieces[place] for place in workers.deal(0, np.arange(examples), [len(piece[0]) for piece in pieces])]

        def taken(step: PrivateStep = step, own: list[Any] = own) -> None:
            descend(optimizer, trained, step(0, own, NoiseState(step=0))[0])

        found[count] = spent(taken)
    return found


def exchanged() -> None:
    """As one of several real processes: processor seconds of an exchange of a WRN-16-4's sums, printed by the first."""
    like = {name: value.detach() for name, value in network().named_parameters()}
    with launch.join_workers() as workers:
        steps = iter(range(1000))

        def once() -> None:
            step, sums = next(steps), GridSum(like, max_norm=1.0)
            workers.reduce_scatter(sums, step, len(workers.deal(step, np.arange(3), [1] * workers.count)))
            workers.all_gather(sums.value())

        seconds = spent(once, rounds=10)
    if workers.is_leader:
        print(json.dumps(seconds))


def of_exchange(count: int) -> float:
    """Processor seconds of an exchange between so many, each of which also makes empty sums and reads them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    known["LOCAL_WORLD_SIZE"] = str(count)
    command = [sys.executable, __file__, "--exchanged"]
    begun = [
        subprocess.Popen(command, env=os.environ | known | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    printed = [one.communicate()[0] for one in begun]
    return float(printed[0])


def parts(place: Path, processes: int) -> dict[str, float]:
    """Processor seconds in a step of what is no gradient: for the leader of so many processes, or for each of them."""
    module, key = network(), RunKey.from_seed(0)
    zeros = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    noise, sampler = Noise(PLAN.mechanism, max_norm=1.0, key=key), Sampler(PLAN, key, records=PLAN.population)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    descend(optimizer, dict(module.named_parameters()), zeros)
    steps = iter(range(1000))
    checkpoint = Checkpoint.of(1, module, dict(module.named_parameters()), optimizer, run="0" * 64)
    with Ledger(place / "ledger.jsonl") as ledger:
        return {
            "draw": spent(lambda: sampler.draw(next(steps))),
            "noise": spent(lambda: noise.prepare(zeros, 0, NoiseState(step=0), share=(0, processes)).add_to(zeros)),
            "ledger": spent(lambda: ledger.append("release", {"step": next(steps), "plan": PLAN.fingerprint})),
            "a checkpoint": spent(lambda: (ledger.sync(), checkpoint.save(place / "checkpoint.safetensors"))),
        }


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run of a paper, and the devices that it is asked about.

    Args:
        views_per_second: clipped gradients that one device computes.
        source: of that figure.
    """

    name: str
    parameters: float
    batch: int
    views: int
    steps: int
    micro_batch: int
    views_per_second: float
    source: str


RUNS = (
    Asked(
        name="De 2022, table 15: NF-ResNet-50, B 16,384, K 4",
        parameters=25.6e6,
        batch=16_384,
        views=4,
        steps=71_589,
        micro_batch=16,
        views_per_second=1000.0,
        source="assumed",
    ),
    Asked(
        name="Mehta 2022, table 3: ViT-H/14, all layers, B 2^20",
        parameters=632e6,
        batch=1 << 20,
        views=1,
        steps=12,
        micro_batch=16,
        views_per_second=12.0,
        source="the paper's table 8, a TPUv4 core",
    ),
    Asked(
        name="Mehta 2022, table 3: ViT-H/14, last layer, B 2^20",
        parameters=1.28e6,
        batch=1 << 20,
        views=1,
        steps=12,
        micro_batch=64,
        views_per_second=100.0,
        source="the paper's table 8, a TPUv4 core",
    ),
)
DEVICES = (1, 8, 32, 64, 128, 256, 512, 1000)
BANDWIDTH, LATENCY = 100e9 / 8 / 8, 50e-6
"""Assumed: bytes a second of each of eight devices that share 100 Gbit/s, and seconds for a message."""
MOVED, MEMORY = 100, 1e12
"""Assumed: bytes for each parameter that a device moves in its memory for sums, optimizer and average; and a second."""


def asked(run: Asked, numbers_per_second: float) -> dict[str, Any]:
    """Seconds of a step, days of the run and the share of the devices' time that is work, for each number of them.

    Args:
        numbers_per_second: of noise, by a process, which draws them while its device computes.
    """
    pieces, rows = -(-run.batch // run.micro_batch), {}
    for count in DEVICES:
        work = -(-pieces // count) * run.micro_batch * run.views / run.views_per_second
        noise = run.parameters / count / numbers_per_second
        sent = 12 * run.parameters * (count - 1) / count / BANDWIDTH + messages(count) * LATENCY
        seconds = max(work, noise) + MOVED * run.parameters / MEMORY + sent
        useful = run.batch * run.views / run.views_per_second / count
        rows[str(count)] = {
            "seconds": seconds,
            "days": run.steps * seconds / 86_400,
            "efficiency": useful / seconds,
            "sent": sent / seconds,
        }
    return rows


def messages(count: int) -> int:
    """What one process sends in a step: to each other one twice, and a few of a logarithm's depth."""
    return 2 * (count - 1) + 3 * max(0, (count - 1).bit_length())


def fitted(measured: dict[int, float], columns: Callable[[int], tuple[float, ...]]) -> tuple[list[float], dict]:
    """Coefficients by least squares of relative errors, none below zero, and the error at each P."""
    from scipy.optimize import nnls

    table = np.array([columns(count) for count in measured])
    times = np.array(list(measured.values()))
    found, _ = nnls(table / times[:, None], np.ones(len(times)))
    return list(found), dict(zip(map(str, measured), (table @ found / times - 1).tolist(), strict=True))


def main(
    examples: int = 128,
    counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8),
    exchange: tuple[int, ...] = (1, 2, 4, 8),
    exchanged: bool = False,
) -> None:
    """Measure, fit and ask.

    Args:
        examples: in a step of the WRN that is measured.
        counts: of processes, one of which is measured at a time.
        exchange: numbers of real processes that exchange sums.
        exchanged: be one of these.
    """
    torch.set_num_threads(1)
    if exchanged:
        globals()["exchanged"]()
        return
    about, pieces = machine("cpu"), -(-examples // MICRO_BATCH)
    parameters = sum(value.numel() for value in network().parameters())
    steps = of_one(examples, counts)
    (micro, noise, serial), errors = fitted(steps, lambda count: (-(-pieces // count), 1 / count, 1.0))
    print(json.dumps({"step": steps, "errors": errors}), flush=True)
    exchanges = {count: of_exchange(count) for count in exchange}
    of_exchanges = fitted(exchanges, lambda count: (1.0, 12 * parameters * (count - 1) / count, messages(count)))
    print(json.dumps({"exchange": exchanges, "errors": of_exchanges[1]}), flush=True)
    with TemporaryDirectory() as folder:
        of_parts = parts(Path(folder), 8)
    whole = micro * LARGE / MICRO_BATCH / 8
    each = {name: seconds for name, seconds in of_parts.items() if name != "a checkpoint"}
    each["checkpoint"] = of_parts["a checkpoint"] * min(1.0, whole / CHECKPOINT_SECONDS)
    rate = parameters / 8 / of_parts["noise"]
    result = {
        "machine": about,
        "examples": examples,
        "parameters": parameters,
        "processor seconds": {str(count): seconds for count, seconds in steps.items()},
        "fit": {"a micro-batch": micro, "noise": noise, "serial": serial, "errors": errors},
        "exchange": {
            "processor seconds": {str(count): seconds for count, seconds in exchanges.items()},
            "fit": dict(zip(("at least", "a byte", "a message"), of_exchanges[0], strict=True)),
            "errors": of_exchanges[1],
        },
        "of a step by 8": {
            "gradients": whole,
            "parts": each,
            "share": sum(each.values()) / (whole + sum(each.values())),
        },
        "noise a second": rate,
        "asked": {run.name: vars(run) | {"devices": asked(run, rate)} for run in RUNS},
    }
    (RESULTS / f"costs-{machine_name(about)}.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result["of a step by 8"]))


if __name__ == "__main__":
    tyro.cli(main)
