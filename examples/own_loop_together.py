"""A private training loop of one's own, taken by several processes together.

    python examples/own_loop_together.py [DIRECTORY [SEED]]
    torchrun --nproc-per-node 2 examples/own_loop_together.py [DIRECTORY [SEED]]

It prints a digest of the weights, which is the same for any number of processes. They share one run key, which the
first of them makes, and begin with the same weights. As in `own_loop.py`, the ledger has a line for each release, and
the key is thrown away at the end.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import sfumato
from sfumato.training import launch

MICRO_BATCH = 64


def main(directory: str | Path = "own-loop-together", seed: int | None = None, steps: int = 30) -> str:
    """Train on the digits. Returns a digest of the weights, which a seed, for experiments, makes the same each time."""
    torch.set_num_threads(1)
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    transform = sfumato.Transform(size=source.size, channels=source.channels)
    images, labels = transform(source.train.images), torch.from_numpy(source.train.labels)
    plan = sfumato.PrivacyPlan.calibrate(examples=source.examples, batch_size=512, steps=steps, epsilon=3.0, delta=1e-5)
    torch.manual_seed(0)  # the same initial weights in all processes
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
    gradient = sfumato.ClippedGradient(model, functional.cross_entropy, max_norm=plan.max_norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    place = Path(directory)
    with launch.join_if_started() as workers:
        if workers.is_leader:
            place.mkdir()  # refuses a second run: what both cost would add up
            (sfumato.RunKey.fresh() if seed is None else sfumato.RunKey.from_seed(seed)).save(place / "key")
            sfumato.record_use(source, plan)  # counts with all other runs on these data
        workers.broadcast_bool(True)  # the others wait here
        key = sfumato.RunKey.load(place / "key")
        sampler = sfumato.Sampler(plan, key, records=len(labels))
        noise = sfumato.Noise(plan.mechanism, max_norm=plan.max_norm, key=key)
        step = sfumato.PrivateStep(plan=plan, gradient=gradient, noise=noise, workers=workers)
        workers.refuse_diverged(dict(model.named_parameters()), 0)
        with sfumato.Ledger(place / "ledger.jsonl") if workers.is_leader else nullcontext() as ledger:
            if ledger is not None:
                ledger.append("begin", {"plan": plan.to_dict()})
            for number in range(plan.steps):
                if ledger is not None:
                    ledger.append("release", {"step": number, "plan": plan.fingerprint})  # before it is computed
                rows = torch.from_numpy(sampler.draw(number))
                pieces = rows.split(MICRO_BATCH)
                own = workers.deal(number, rows.numpy(), [len(piece) for piece in pieces])
                private = step(number, [(images[pieces[index]], labels[pieces[index]]) for index in own])
                for name, value in private.items():
                    model.get_parameter(name).grad = value
                optimizer.step()
        workers.refuse_diverged(dict(model.named_parameters()), plan.steps)
        if workers.is_leader:
            (place / "key").unlink()
    content = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
    digest = hashlib.sha256(content).hexdigest()
    if workers.is_leader:
        print(f"epsilon {plan.epsilon():.3f} at delta {plan.delta:g}, weights {digest[:16]}")
    return digest


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
