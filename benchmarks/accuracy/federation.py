"""A federation of sites: python benchmarks/accuracy/federation.py DATA PLACE [--seeds 5] [--sets digits ...]

3, 5 or 10 sites, with equal shares or skewed by class (sorted by class, cut into two pieces for each site: McMahan et
al. 2017, section 3), beside the first site alone, all data in one place, and the latter with sqrt(sites) times the
noise, which is what the average of the sites' noise amounts to. Every site has its own epsilon at delta 1e-5.

- digits: scikit-learn's, 8 x 8 pixels; the seed draws 360 of them to test on
- MNIST: 20,000 images; features of `scattering`
- CIFAR-10: 20,000 images; features of SqueezeNet 1.0, as heads.py leaves them in PLACE
- hands: photographs by person, features of `dictionary`; the seed draws 60 people to test on. A record is a person,
  with the mean loss of at most 10 photographs. Equal shares only: each person shows all ten digits.

The model is a linear head, trained by the rule of docs/scaling.md: 60 rounds of one full-batch step, momentum kept
at the sites, one rate at all sites, and averages weighted by their sizes. One site and one place train by the same
rule. Clipped sums and averages are computed here, all budgets at once, and the noise is torch's; `by private_rounds` is
the package itself. DATA holds mnist.npz and sign_language_digits.zip. Goes on where it stopped; writes
results/federation.json.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from benchmarks.accuracy import heads
from sfumato import models
from sfumato.experiment.defaults import DICTIONARY, FIXED, STEPS_FULL_BATCH, FixedFeatures
from sfumato.privacy import PrivacyPlan

SITES, EPSILONS, DELTA, MOMENTUM = (3, 5, 10), (1.0, 3.0, 8.0), 1e-5, 0.9
RECORDS, TESTED, PEOPLE, PER_PERSON, SIDE = 20_000, 360, 60, 10, 32
IGNORED = -100
"""The label that cross-entropy leaves out."""
RESULT = RESULTS / "federation.json"


class Set(NamedTuple):
    """Units to train on, each of at most G records, and records to test on.

    Args:
        features: (N, G, D + 1), with a constant 1; zeros where a unit has fewer records.
        labels: (N, G); `IGNORED` there.
        tests, test_labels: (M, D + 1) and (M,).
        rule: the rule for a head on these features.
    """

    features: Tensor
    labels: Tensor
    tests: Tensor
    test_labels: Tensor
    rule: FixedFeatures = FixedFeatures()

    def accuracies(self, weights: Tensor) -> list[float]:
        """By budget, of weights (D + 1, budgets, classes)."""
        logits = (self.tests @ weights.flatten(1)).view(len(self.tests), *weights.shape[1:])
        return (logits.argmax(2) == self.test_labels[:, None]).float().mean(0).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in given.sets:
        opened = SETS[name](given.data, given.place)
        for seed in range(given.seeds):
            held = opened(seed)
            for key, run in rows_of(name, held, seed):
                row = found.setdefault(key, [])
                if len(row) == seed:
                    row.append([round(one, 4) for one in run()])
                    RESULT.write_text(json.dumps(found, indent=1) + "\n")
                    print(key, seed, row[seed], flush=True)


def rows_of(name: str, held: Set, seed: int) -> list[tuple[str, Callable[[], list[float]]]]:
    """What is measured with one seed: accuracies at each of `EPSILONS`."""

    def measure(parts: list[np.ndarray], noise: float = 1.0) -> Callable[[], list[float]]:
        return lambda: held.accuracies(together(held, parts, seed, noise=noise))

    every = [np.arange(len(held.labels))]
    rows = [(f"{name}, one place", measure(every))]
    for sites in SITES:
        rows.append((f"{name}, one place, noise of {sites} sites", measure(every, math.sqrt(sites))))
        for split in ("equal", "by class")[: 1 if name == "hands" else 2]:
            parts = divided(held, sites, split, seed)
            rows.append((f"{name}, {sites} sites, {split}", measure(parts)))
            rows.append((f"{name}, one of {sites} sites, {split}", measure(parts[:1])))
    if name in ("digits", "hands"):
        rows.append((f"{name}, 3 sites, equal, by private_rounds", lambda: by_private_rounds(held, seed)))
    return rows


def divided(held: Set, sites: int, split: str, seed: int) -> list[np.ndarray]:
    """The units of each site."""
    rng = np.random.default_rng(seed)
    if split == "equal":
        return np.array_split(rng.permutation(len(held.labels)), sites)
    pieces = np.array_split(np.argsort(held.labels[:, 0].numpy(), kind="stable"), 2 * sites)
    mixed = rng.permutation(2 * sites)
    return [np.concatenate([pieces[mixed[2 * site]], pieces[mixed[2 * site + 1]]]) for site in range(sites)]


@cache
def plan(units: int, epsilon: float, steps: int = STEPS_FULL_BATCH) -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=units, batch_size=units, steps=steps, epsilon=epsilon, delta=DELTA)


def together(
    held: Set,
    parts: list[np.ndarray],
    seed: int,
    *,
    rounds: int = STEPS_FULL_BATCH,
    local: int = 1,
    momentum: float = MOMENTUM,
    fresh: bool = False,
    weigh: Callable[[Tensor], Tensor] = lambda sizes: sizes,
    noise: float = 1.0,
    result: Callable[[list[Tensor]], Tensor] = lambda averages: averages[-1],
) -> Tensor:
    """Federated averaging of the sites' private steps: weights (D + 1, budgets, classes).

    Args:
        parts: the units of each site.
        rounds, local: rounds, and steps in each.
        fresh: whether each round starts without momentum.
        weigh: maps the sites' sizes to their weights in the average.
        noise: factor of the sites' noise.
        result: maps the averages after each round to the model.
    """
    generator = torch.Generator().manual_seed(seed)
    sites = [held._replace(features=held.features[part], labels=held.labels[part]) for part in parts]
    sizes = torch.tensor([float(len(part)) for part in parts])
    shares = weigh(sizes) / weigh(sizes).sum()
    plans = [plan(int(sizes.sum()), epsilon, rounds * local) for epsilon in EPSILONS]
    sigma = noise * torch.tensor([one.noise_multiplier for one in plans])[:, None]
    # The noise of the average moves a logit as that of one place does.
    louder = noise * float(sizes.sum() * (shares / sizes).norm())
    followed = sum((1 - momentum ** (local - step)) / (1 - momentum) for step in range(local)) / local
    effective = 1 - 1 / followed if fresh else momentum
    rates = torch.tensor([held.rule.rate(one, effective) for one in plans])[:, None] / louder
    weights = torch.zeros(held.features.shape[2], len(EPSILONS), int(held.labels.max()) + 1)
    velocities, grams = [torch.zeros_like(weights) for _ in sites], [one.features @ one.features.mT for one in sites]
    averages: list[Tensor] = []
    for _ in range(rounds):
        received, weights = weights, torch.zeros_like(weights)
        for site, gram, velocity, size, share in zip(sites, grams, velocities, sizes, shares, strict=True):
            own = received.clone()
            velocity.mul_(1 - fresh)
            for _ in range(local):
                drawn = sigma * torch.randn(own.shape, generator=generator)
                velocity.mul_(momentum).add_((clipped_sum(site, gram, own) + drawn) / size)
                own -= rates * velocity
            weights += share * own
        averages.append(weights)
    return result(averages)


def clipped_sum(site: Set, gram: Tensor, weights: Tensor) -> Tensor:
    """The sum over units of the gradient of their mean cross-entropy, clipped to norm 1, for each budget.

    Args:
        gram: (N, G, G), the products of each unit's features.
    """
    features, labels = site.features.flatten(0, 1), site.labels.flatten()
    errors = (features @ weights.flatten(1)).view(len(features), *weights.shape[1:]).softmax(2)
    errors[torch.arange(len(features)), :, labels.clamp(min=0)] -= 1
    errors *= (labels != IGNORED)[:, None, None]
    errors = errors.view(*site.labels.shape, *weights.shape[1:]) / (site.labels != IGNORED).sum(1)[:, None, None, None]
    squared = (errors * (gram @ errors.flatten(2)).view_as(errors)).sum((1, 3))
    errors /= squared.clamp(min=1).sqrt()[:, None, :, None]
    return (features.T @ errors.flatten(0, 1).flatten(1)).view_as(weights)


def by_private_rounds(held: Set, seed: int) -> list[float]:
    """Accuracies of three sites of the package's own rounds."""
    parts = divided(held, 3, "equal", seed)
    return [held.accuracies(rounds_of(held, parts, epsilon, seed))[0] for epsilon in EPSILONS]


def rounds_of(held: Set, parts: list[np.ndarray], epsilon: float, seed: int) -> Tensor:
    """The last weights (D + 1, 1, classes)."""
    os.fsync = os.fstat  # no run here needs to survive a power cut
    rate = held.rule.rate(plan(sum(map(len, parts)), epsilon), MOMENTUM) / math.sqrt(len(parts))
    weights = {"weight": torch.zeros(int(held.labels.max()) + 1, held.features.shape[2])}
    with tempfile.TemporaryDirectory() as place:
        runs = []
        for number, part in enumerate(parts):
            model = nn.Linear(*reversed(weights["weight"].shape), bias=False)
            known = held.labels[part] != IGNORED
            runs.append(
                sfumato.private_rounds(
                    model,
                    torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM),
                    (held.features[part][known], held.labels[part][known]),
                    users=known.nonzero()[:, 0].numpy(),
                    per_step=10,
                    rounds=STEPS_FULL_BATCH,
                    epsilon=epsilon,
                    delta=DELTA,
                    batch_size=len(part),
                    directory=Path(place) / str(number),
                    public=True,
                    seed=1000 * seed + number,
                    threads=1,
                )
            )
        for _ in range(STEPS_FULL_BATCH):
            sent = [run.train(weights)["weight"] for run in runs]
            weights = {"weight": torch.stack(sent).mean(0)}  # shares are equal to one record
    return weights["weight"].T[:, None]


# -- data --------------------------------------------------------------------------------------------------------------


def scaled(features: Tensor) -> Tensor:
    """Features of the rule's norm, and a constant."""
    return torch.cat([nn.functional.normalize(features) * FixedFeatures().norm, torch.ones(len(features), 1)], 1)


def digits(*_: Path) -> Callable[[int], Set]:
    pixels, numbers = load_digits(return_X_y=True)
    features, labels = scaled(torch.tensor(pixels, dtype=torch.float32)), torch.tensor(numbers)

    def drawn(seed: int) -> Set:
        test, rest = np.split(np.random.default_rng(seed).permutation(len(labels)), [TESTED])
        return Set(features[rest, None], labels[rest, None], features[test], labels[test])

    return drawn


def official(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Callable[[int], Set]:
    """The same records for each seed, which draws the sites and the noise."""
    held = Set(scaled(train[0])[:, None], train[1].long()[:, None], scaled(test[0]), test[1].long())
    return lambda seed: held


def mnist(data: Path, place: Path) -> Callable[[int], Set]:
    with np.load(data / "mnist.npz") as archive:
        x = {part: torch.from_numpy(archive[f"x_{part}"][:RECORDS, None]) for part in ("train", "test")}
        y = {part: torch.from_numpy(archive[f"y_{part}"][:RECORDS]) for part in x}
    network = models.create("scattering", classes=10, channels=1, size=28).eval()
    return official(*((features_of(network, x[part]), y[part]) for part in x))


def cifar10(data: Path, place: Path) -> Callable[[int], Set]:
    train, test = (heads.read(place, "1_0", "cifar10", part) for part in ("train", "test"))
    return official((train[0][:RECORDS], train[1][:RECORDS]), test)


def hands(data: Path, place: Path) -> Callable[[int], Set]:
    with zipfile.ZipFile(data / "sign_language_digits.zip") as archive:
        folder = next(name for name in archive.namelist() if name.endswith("labels.csv")).removesuffix("labels.csv")
        table = list(csv.DictReader(io.StringIO(archive.read(f"{folder}labels.csv").decode())))
        opened = (Image.open(io.BytesIO(archive.read(folder + row["path"]))).convert("RGB") for row in table)
        images = np.stack([np.asarray(one.resize((SIDE, SIDE), Image.Resampling.BOX)) for one in opened])
    persons = np.unique([row["user"] for row in table], return_inverse=True)[1]
    rule = FIXED[DICTIONARY]._replace(norm=FixedFeatures().norm)  # the mean of ten gradients is small
    network = models.create(DICTIONARY, classes=10, channels=3, size=SIDE).eval()
    features = scaled(features_of(network, torch.from_numpy(images).permute(0, 3, 1, 2)))
    labels = torch.tensor([int(row["label"]) for row in table])

    def drawn(seed: int) -> Set:
        order = np.random.default_rng(seed).permutation(persons.max() + 1)
        rows = [np.flatnonzero(persons == one)[:PER_PERSON] for one in order]
        test, rest = np.concatenate(rows[:PEOPLE]), rows[PEOPLE:]
        own = [nn.utils.rnn.pad_sequence([features[one] for one in rest], batch_first=True)]
        own += [nn.utils.rnn.pad_sequence([labels[one] for one in rest], batch_first=True, padding_value=IGNORED)]
        return Set(*own, features[test], labels[test], rule)

    return drawn


def features_of(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network.features(some.float() / 127.5 - 1) for some in images.split(500)])


SETS = {"digits": digits, "MNIST": mnist, "CIFAR-10": cifar10, "hands": hands}

if __name__ == "__main__":
    main()
