"""What privacy costs a round of DP-FedEmb: python benchmarks/speed/fedemb.py [--threads N] [--epochs N] [--rounds N]

A round of the size of the EMNIST experiment of Xu et al. 2022: 32 virtual clients of 8 users with 20 images each, LeNet
of 453,632 parameters, batches of 32, 8 epochs. Each client is trained in turn by a plain loop, written by hand, that
sums the differences of the weights, and by `ClippedUpdates` with a sum on the grid, so that what else the machine does
falls on both. What a round has beside its clients (who is where, the sum's value, noise, the server's step) counts as
the price of privacy.

Two more figures: steps of several clients at once by `torch.func.vmap` against one after the other; and, where
pfl-research is installed (pip install pfl), its FedAvg with a central Gaussian mechanism against ours, both with a
global head, round by round. Writes results/fedemb-MACHINE.json.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import machine, machine_name
from sfumato import Gaussian, Noise, RunKey
from sfumato.experiment.client_choices import LocalSGD
from sfumato.gradients import GridSum
from sfumato.training.clients import ClippedUpdates, Rounds
from sfumato.training.local import BackboneWithHead, LocalTraining
from sfumato.training.step import descend
from sfumato.training.user_records import UserRecords

CLIENTS, USERS, IMAGES, CLASSES, WIDTH = 32, 256, 20, 36, 128
KEY = RunKey.from_seed(0)


def lenet() -> nn.Module:
    """The authors' backbone: 28 x 28 to 128 numbers."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, WIDTH)),
    )


def synthetic_rounds() -> Rounds:
    """Images of noise; the time does not depend on what they show. As many users in each client."""
    generator = np.random.default_rng(0)
    images = torch.from_numpy(generator.normal(size=(USERS * IMAGES, 1, 28, 28)).astype(np.float32))
    return Rounds(
        assign=lambda key, step, drawn: drawn % CLIENTS,
        users=UserRecords.from_numbers(np.repeat(np.arange(USERS), IMAGES), np.arange(USERS), None),
        labels=generator.integers(CLASSES, size=USERS * IMAGES),
        inputs=lambda records: images[records],
    )


def everybody() -> np.ndarray:
    """All users take part."""
    return np.arange(USERS)


def by_hand(module: nn.Module, total: dict[str, Tensor], settings: LocalSGD, inputs: Tensor, labels: Tensor) -> None:
    """FedAvg's client as one would write it: a copy, a head, two rates, shuffled batches, the difference."""
    own, head = copy.deepcopy(module), nn.Linear(WIDTH, CLASSES, bias=False)
    groups = [
        {"params": list(own.parameters()), "lr": settings.learning_rate},
        {"params": list(head.parameters()), "lr": settings.learning_rate * settings.head_scale},
    ]
    optimizer = torch.optim.SGD(groups, momentum=settings.momentum)
    order = torch.cat([torch.randperm(len(labels)) for _ in range(settings.epochs)])
    for rows in order.split(settings.batch_size):
        functional.cross_entropy(head(own(inputs[rows])), labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for (name, start), end in zip(module.named_parameters(), own.parameters(), strict=True):
            total[name] += start - end


@contextmanager
def timed(spent: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds of its body."""
    began = time.perf_counter()
    yield
    spent[name] = spent.get(name, 0.0) + time.perf_counter() - began


def against_a_loop(settings: LocalSGD, rounds: int) -> dict[str, Any]:
    """A private round and the same by hand, client by client in turn."""
    module, source = lenet(), synthetic_rounds()
    parameters = dict(module.named_parameters())
    query = ClippedUpdates(local=LocalTraining(module, settings), max_norm=1.0)
    noise = Noise(Gaussian(noise_multiplier=0.62), max_norm=query.max_norm, key=KEY)
    server, plain_server = (torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9) for _ in range(2))
    rows = []
    for step in range(rounds):
        spent: dict[str, float] = {}
        plain = {name: torch.zeros_like(value) for name, value in parameters.items()}
        with timed(spent, "beside_clients"):
            total, clients = (
                GridSum(query.zeros(), max_norm=query.max_norm),
                source.micro_batches(KEY, step, everybody()),
            )
        for _ in range(CLIENTS):
            with timed(spent, "beside_clients"):
                client = next(clients)
            with timed(spent, "by_hand"):
                by_hand(module, plain, settings, *client[:2])
            with timed(spent, "clients"):
                total.add(query(*client).gradients)
        with timed(spent, "by_hand"):
            descend(plain_server, parameters, {name: value / CLIENTS for name, value in plain.items()})
        with timed(spent, "beside_clients"):
            noisy = noise.add(total.value(), step)
            descend(server, parameters, {name: value / CLIENTS for name, value in noisy.items()})
        private = spent["clients"] + spent["beside_clients"]
        rows.append({**spent, "ratio": private / spent["by_hand"]})
        print(
            f"by hand {spent['by_hand']:6.1f} s   private {private:6.1f} s   ratio {rows[-1]['ratio']:.3f}   "
            f"beside the clients {spent['beside_clients']:.2f} s",
            flush=True,
        )
    return {"rounds": rows, "ratio": median(row["ratio"] for row in rows)}


def vectorised(settings: LocalSGD, together: int, steps: int = 10) -> dict[str, Any]:
    """Steps of so many clients under `torch.func.vmap`, and of one after the other, in turn."""
    module = lenet()
    inputs = torch.randn(together, settings.batch_size, 1, 28, 28)
    labels = torch.randint(CLASSES, (together, settings.batch_size))
    weights, _ = stack_module_state([module] * together)
    weights = {name: value.detach().clone() for name, value in weights.items()}
    heads = torch.randn(together, CLASSES, WIDTH)
    velocities = {name: torch.zeros_like(value) for name, value in weights.items()}

    def loss(own, head, x, y):
        return functional.cross_entropy(functional_call(module, own, (x,)) @ head.T, y)

    gradients = vmap(grad(loss, (0, 1)))

    def at_once() -> None:
        found, of_heads = gradients(weights, heads, inputs, labels)
        for name, value in found.items():
            weights[name].sub_(velocities[name].mul_(settings.momentum).add_(value), alpha=settings.learning_rate)
        heads.sub_(of_heads, alpha=settings.learning_rate)

    own = copy.deepcopy(module)
    head = torch.randn(CLASSES, WIDTH, requires_grad=True)
    optimizer = torch.optim.SGD([*own.parameters(), head], lr=settings.learning_rate, momentum=settings.momentum)

    def in_turn() -> None:
        for x, y in zip(inputs, labels, strict=True):
            functional.cross_entropy(own(x) @ head.T, y).backward()
            optimizer.step()
            optimizer.zero_grad()

    ratios = []
    for _ in range(steps + 1):
        spent: dict[str, float] = {}
        with timed(spent, "at once"):
            at_once()
        with timed(spent, "in turn"):
            in_turn()
        ratios.append(spent["at once"] / spent["in turn"])
    ratio = median(ratios[1:])
    print(f"vmap over {together} clients: {ratio:.2f} times one after the other", flush=True)
    return {"clients": together, "ratio": ratio}


def against_pfl(settings: LocalSGD, rounds: int) -> dict[str, Any] | None:
    """pfl-research's FedAvg with a Gaussian mechanism, and ours, with the same global head, round by round."""
    if importlib.util.find_spec("pfl") is None:
        print("pfl-research is not installed")
        return None
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    class Net(BackboneWithHead):
        def loss(self, inputs, labels):
            self.train()
            return functional.cross_entropy(self(inputs), labels)

        @torch.no_grad()
        def metrics(self, inputs, labels):
            return {}

    def model(kind: type[BackboneWithHead]) -> BackboneWithHead:
        return kind(lenet(), classes=CLASSES, width=WIDTH, generator=np.random.default_rng(0))

    source = synthetic_rounds()
    users = {client: data[:2] for client, data in enumerate(source.micro_batches(KEY, 0, everybody()))}
    mine = model(BackboneWithHead)
    query = ClippedUpdates(local=LocalTraining(mine, replace(settings, head="global")), max_norm=1.0)
    noise = Noise(Gaussian(noise_multiplier=0.62), max_norm=query.max_norm, key=KEY)
    server = torch.optim.SGD(mine.parameters(), lr=0.02, momentum=0.9)
    rows: list[dict[str, float]] = []

    def ours(step: int) -> None:
        total = GridSum(query.zeros(), max_norm=query.max_norm)
        for client in source.micro_batches(KEY, step, everybody()):
            total.add(query(*client).gradients)
        noisy = noise.add(total.value(), step)
        descend(server, dict(mine.named_parameters()), {name: value / CLIENTS for name, value in noisy.items()})

    class Watch(TrainingProcessCallback):
        began = 0.0

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            theirs = time.perf_counter() - self.began
            spent: dict[str, float] = {}
            with timed(spent, "ours"):
                ours(central_iteration)
            if central_iteration:  # the first one has an evaluation
                rows.append({"pfl": theirs, **spent, "ratio": spent["ours"] / theirs})
                print(f"pfl-research {theirs:6.1f} s   ours {spent['ours']:6.1f} s   ratio {rows[-1]['ratio']:.3f}")
            self.began = time.perf_counter()
            return False, Metrics()

    net = model(Net)
    data = FederatedDataset(
        lambda user: Dataset(users[user], user_id=str(user)), get_user_sampler("minimize_reuse", list(users))
    )
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(clipping_bound=1.0, relative_noise_stddev=0.62))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1, evaluation_frequency=1000, train_cohort_size=CLIENTS, val_cohort_size=0
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism]),
        PyTorchModel(
            net,
            lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum),
            torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9),
        ),
        NNTrainHyperParams(
            local_num_epochs=settings.epochs,
            local_learning_rate=settings.learning_rate,
            local_batch_size=settings.batch_size,
        ),
        callbacks=[Watch()],
    )
    return {"rounds": rows, "ratio": median(row["ratio"] for row in rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    settings = LocalSGD(learning_rate=5e-3, head_scale=100.0, epochs=given.epochs, batch_size=32)
    found = {
        "machine": machine("cpu"),
        "epochs": given.epochs,
        "against_a_loop": against_a_loop(settings, given.rounds),
        "vectorised": [vectorised(settings, together) for together in (4, 8)],
        "against_pfl": against_pfl(settings, given.rounds),
    }
    (RESULTS / f"fedemb-{machine_name(found['machine'])}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
