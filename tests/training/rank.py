"""One of several workers: takes steps of many kinds with the others and by itself. A script for test_workers.py.

It prints as JSON, for each kind, whether all bits are those that one process has, and what is refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, Noise, Poisson, PrivacyPlan, PrivateStep, RunKey, SfumatoError
from sfumato.gradients import GridSum
from sfumato.privacy import BandedToeplitz, FixedClipping, Gaussian, QuantileClipping, Tree, User
from sfumato.randomness import NoiseState
from sfumato.randomness.noise import blocks
from sfumato.runs.directory import WORKERS, RunDirectory
from sfumato.training import launch
from sfumato.training.step import AdaptiveStep
from sfumato.training.workers import Workers

blocks.BLOCK = 7  # so that a small model has many
STEPS = 4
MECHANISMS = {
    "gaussian": Gaussian(noise_multiplier=1.3),
    "tree": Tree(noise_multiplier=2.0),
    "banded": BandedToeplitz(noise_multiplier=2.0, coefficients=(1.0, 0.5, 0.2)),
}
SHAPES = {"few": {"a": (3,)}, "many": {"d": (5, 8), "b": (0,), "c": (), "a": (50,)}}


def bits(tensors: dict[str, torch.Tensor]) -> list[bytes]:
    return [value.contiguous().numpy().tobytes() for value in tensors.values()]


def noise_is_the_same(workers: Workers, mechanism: str, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Sums, noise and what it remembers, over several steps, and from a checkpoint in the middle."""
    noise = Noise(MECHANISMS[mechanism], max_norm=0.5, key=RunKey.from_seed(1))
    alone, own, same = noise.begin(), noise.begin(), True
    like = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for step in range(STEPS):
        drawn = np.random.default_rng(step)
        parts = [{name: torch.from_numpy(drawn.normal(size=shape)) for name, shape in shapes.items()} for _ in range(5)]
        whole, mine = GridSum(like, max_norm=0.5), GridSum(like, max_norm=0.5)
        for part in parts:
            whole.add(part)
        dealt = workers.deal(step, np.arange(step), [3, 1, 4, 1, 5])
        for place in dealt:
            mine.add(parts[place])
        workers.reduce_scatter(mine, step, len(dealt))
        places = enumerate(blocks.blocks_of({name: value.shape for name, value in mine.integers.items()}))
        others = [place for number, place in places if number % workers.count != workers.rank]
        same &= not any(mine.integers[name].view(-1)[columns].any() for name, columns in others)
        expected, alone = noise.add(whole.value(), step, alone)
        coming, own = noise.prepare(like, step, own, share=workers.share).add_to(mine.value())
        same &= bits(workers.all_gather(coming)) == bits(expected)
        remembered = workers.gather_state(own)
        same &= remembered.step == alone.step and bits(remembered.tensors) == bits(alone.tensors)
        if step == 1:  # as after a kill
            kept = {name: value.clone() for name, value in sorted(remembered.tensors.items())}  # as a file has them
            own = NoiseState(step=own.step, tensors=kept)
    return same


def step_is_the_same(workers: Workers) -> bool:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    plan = PrivacyPlan(
        population=200,
        participation=Poisson(batch_size=20),
        mechanism=Gaussian(noise_multiplier=1.5),
        steps=STEPS,
        delta=1e-4,
        clipping=FixedClipping(0.3),
    )
    gradient = ClippedGradient(module, functional.cross_entropy, max_norm=0.3)
    noise = Noise(plan.mechanism, max_norm=0.3, key=RunKey.from_seed(0))
    steps = [PrivateStep(plan=plan, gradient=gradient, noise=noise, workers=own) for own in (Workers(), workers)]
    inputs, targets = torch.randn(20, 6), torch.arange(20) % 3
    pieces = [(inputs[start : start + 3], targets[start : start + 3]) for start in range(0, 20, 3)]
    dealt = workers.deal(0, np.arange(20), [len(piece[0]) for piece in pieces])
    return bits(steps[0](0, pieces)) == bits(steps[1](0, [pieces[place] for place in dealt]))


def sums_in_turn_are_the_same(workers: Workers, pieces: int) -> bool:
    """Numbers that no grid holds, of more pieces than there are workers, or of fewer."""
    drawn = np.random.default_rng(pieces)
    parts = [
        {name: torch.from_numpy(drawn.normal(size=shape, scale=10.0**place)).float() for name, shape in shapes.items()}
        for place, shapes in enumerate([SHAPES["many"]] * pieces)
    ]
    own = [{name: value.clone() for name, value in part.items()} for part in parts[workers.rank :: workers.count]]
    found = workers.ordered_sum(own, pieces, parts[0])
    return bits(found) == bits(Workers().ordered_sum(parts, pieces, parts[0]))


def rows_are_the_same(workers: Workers, lengths: list[int]) -> bool:
    """Of pieces of several lengths, each computed by one: which rows are beside each other is the same."""
    pieces, seen = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]), []

    def compute(some: list[np.ndarray]) -> Iterator[torch.Tensor]:
        for piece in some:
            seen.append(len(piece))
            yield torch.from_numpy(np.stack([piece, np.full(len(piece), len(piece))], axis=1))

    found = workers.compute_rows(pieces, compute)
    own = lengths[workers.rank :: workers.count] or lengths[:1]
    return seen == own and torch.equal(found, Workers().compute_rows(pieces, compute))


class Counted:
    """Clipped vectors with a count, for a norm that follows a quantile."""

    sums_over = "clients"

    def __init__(self, max_norm: float = 1.0):
        self.max_norm = max_norm

    def with_max_norm(self, max_norm: float) -> Counted:
        return Counted(max_norm)

    def sensitivity(self, adjacency: str) -> float:
        return 2 * self.max_norm

    def zeros(self) -> dict[str, torch.Tensor]:
        return {"w": torch.zeros(30)}

    def __call__(self, vectors: torch.Tensor) -> Counted:
        norms = vectors.norm(dim=1, keepdim=True)
        found = Counted()
        found.gradients = {"w": (vectors * (self.max_norm * (1 - 1e-6) / norms).clamp(max=1)).sum(0)}
        found.within = float(((norms <= self.max_norm).double() - 0.5).sum())
        return found


def adaptive_step_is_the_same(workers: Workers) -> bool:
    plan = PrivacyPlan(
        population=400,
        participation=Poisson(batch_size=100),
        mechanism=Gaussian(noise_multiplier=1.0),
        steps=STEPS,
        delta=1e-5,
        clipping=QuantileClipping(max_norm=1.0, count_noise=2.0),
        unit=User(clients=True),
    )
    noise = Noise(plan.mechanism, max_norm=1.0, key=RunKey.from_seed(0))
    steps = [
        AdaptiveStep(plan=plan, gradient=Counted(), noise=noise, divisor=40, workers=own)
        for own in (Workers(), workers)
    ]
    states, same = [NoiseState(step=0), NoiseState(step=0)], True
    for step in range(STEPS):
        vectors = list(
            torch.randn(9, 2, 30, generator=torch.Generator().manual_seed(step))
            * torch.logspace(-2, 0, 9)[:, None, None]
        )
        dealt = workers.deal(step, np.arange(9), [1] * 9)
        one, states[0] = steps[0](step, [(own,) for own in vectors], states[0])
        other, states[1] = steps[1](step, [(vectors[place],) for place in dealt], states[1])
        same &= bits(one) == bits(other) and bits(states[0].tensors) == bits(workers.gather_state(states[1]).tensors)
    return same


def refused(action: Callable[[], object]) -> str:
    try:
        action()
    except SfumatoError as error:
        return error.problem
    return ""


def sum_of(
    workers: Workers, step: int, participants: np.ndarray, done: int, *, sizes: list[int] | None = None, width: int = 9
) -> None:
    workers.deal(step, participants, sizes or [1] * workers.count)
    workers.reduce_scatter(GridSum({"a": torch.zeros(width)}, max_norm=1.0), step, done)


def refusals(workers: Workers, place: Path) -> dict[str, str]:
    found = {"fewer": refused(lambda: sum_of(workers, 0, np.arange(3), 0))}
    found["undealt"] = refused(lambda: workers.reduce_scatter(GridSum({"a": torch.zeros(9)}, max_norm=1.0), 1, 1))
    found["others"] = refused(lambda: sum_of(workers, 1, np.arange(3) + workers.rank, 1))
    found["sizes"] = refused(lambda: sum_of(workers, 1, np.arange(3), 1, sizes=[1, 1, 1 + workers.rank]))
    found["width"] = refused(lambda: sum_of(workers, 1, np.arange(3), 1, width=9 + workers.rank))
    found["other"] = refused(lambda: workers.refuse_different({"data": f"{workers.rank // 2}", "version": "1"}))
    first = Workers(rank=0, count=workers.count, group=workers.group)  # all of them take the first one's pieces
    found["share"] = refused(lambda: sum_of(first, 1, np.arange(3), 2, sizes=[1] * (workers.count + 1)))
    found["step"] = refused(lambda: sum_of(workers, workers.rank, np.arange(3), 1))
    found["apart"] = refused(lambda: workers.refuse_diverged({"w": torch.ones(2) * (1 + workers.rank // 2)}, 3))
    workers.refuse_diverged({"w": torch.ones(2)}, 4)
    here, elsewhere = RunDirectory(place), RunDirectory(place / "elsewhere")
    if workers.is_leader:
        workers.announce_run(here)
        elsewhere.path.mkdir()
        (elsewhere / WORKERS).write_text("another")
        workers.broadcast_json({"run": str(elsewhere.path), "token": "one"})
        workers.announce_run(here)
    else:
        found["seen"] = str(workers.receive_run().path)
        found["unseen"] = refused(workers.receive_run)
        with mock.patch.dict(os.environ, SFUMATO_HOME=str(place / f"home of {workers.rank}")):
            found["owner"] = refused(workers.receive_run)
    return found


def listens_on_loopback() -> bool:
    """Whether this process accepts connections, and only those of this machine."""
    found = [one.laddr.ip for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"]
    return {*found} == {"127.0.0.1"}


def main(place: Path) -> None:
    with launch.join_workers() as workers:  # and again below, as two runs of one script do
        workers.all_reduce(1.0)
    host = f"host {'aab'[int(os.environ['RANK'])]}"
    with mock.patch.object(launch, "machine_id", return_value=host), launch.join_workers() as workers:
        found = {
            f"{mechanism}, {name}": noise_is_the_same(workers, mechanism, shapes)
            for mechanism in MECHANISMS
            for name, shapes in SHAPES.items()
        }
        found |= {"step": step_is_the_same(workers), "adaptive": adaptive_step_is_the_same(workers)}
        found |= {f"{pieces} in turn": sums_in_turn_are_the_same(workers, pieces) for pieces in (2, 5, 6)}
        found |= {f"rows of {lengths}": rows_are_the_same(workers, lengths) for lengths in ([4, 2], [3, 3, 3, 3, 1])}
        found |= {"machines": workers.machines == 2, "loopback": listens_on_loopback()}
        found["agreed"] = workers.broadcast_bool(workers.is_leader)
        found["added"] = workers.all_reduce(0.5 * (workers.rank + 1)) == 0.25 * workers.count * (workers.count + 1)
        print(json.dumps([found, refusals(workers, place)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
