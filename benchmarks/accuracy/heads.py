"""Private heads on public features: whitening by public images, and other uses of second moments, against the default.

    python benchmarks/accuracy/heads.py DATA PLACE [BACKBONE]

Features of two SqueezeNets that were trained on ImageNet; CIFAR-10, CIFAR-100 (its 20 coarse classes), hands showing
digits, MNIST, and Omniglot's alphabets. Every head is that of the rule (`head,norm=12.5`) or a release of statistics in
its place:

- none: features as they are
- public, synthetic: whitened by the second moment of another set's images, or of synthetic images
- public, power 1: the same with equal variances, where `features --whiten-by` takes the power 0.5
- private moment: whitened by a noisy second moment of the private features, bought with a tenth of mu^2 (DP-FC,
  arXiv 2211.13403)
- statistics: class means and a shared covariance in one release, then linear discriminant analysis
- prototypes, prototypes on public: noisy sums of each class's unit vectors, and the nearest by angle (arXiv 2406.08039)

The seed draws the training records and the noise; the methods of a row share both. The steps are those of the rule, in
a loop of this file's own for several budgets at once. DATA holds the files that /README.md of the data names, PLACE
keeps features. BACKBONE (1_0 or 1_1) computes the rows of one network. Writes results/heads-accuracy.json.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.stats import norm, ttest_rel
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import sfumato
from sfumato.data import Cache
from sfumato.experiment.defaults import FULL_BATCH_UP_TO, LARGE_BATCH, STEPS_FULL_BATCH, STEPS_SAMPLED, FixedFeatures
from sfumato.models.backbone import whitening
from sfumato.privacy import PrivacyPlan
from studies.dead_leaves import dead_leaves, grey

RESULT = RESULTS / "heads-accuracy.json"
BACKBONES = ("1_0", "1_1")
EPSILONS, DELTA, SEEDS = (0.1, 0.5, 1.0, 3.0, 8.0), 1e-5, 5
FEW = 2000
"""The most records for which `private moment` is computed: each budget has features of its own."""
MOMENTUM, NORM, SHARE = 0.9, FixedFeatures().norm, 0.1


class Set(NamedTuple):
    """A private set: its features, those of its public and synthetic images, and the numbers of training records."""

    features: str
    public: str
    synthetic: str
    sizes: tuple[int, ...]
    coarse: bool = False


SETS = {
    "sign language digits": Set("sign", "cifar100", "leaves", (1000, 1591)),
    "MNIST": Set("mnist", "omniglot", "leaves-grey", (1000, 10_000)),
    "CIFAR-10": Set("cifar10", "cifar100", "leaves", (1000, 10_000, 50_000)),
    "CIFAR-100, 20 classes": Set("cifar100", "cifar10", "leaves", (1000, 10_000), coarse=True),
    "Omniglot, 50 alphabets": Set("omniglot", "mnist", "leaves-grey", (3000,)),
}
GREY = ("mnist", "omniglot", "leaves-grey")


def main() -> None:
    data, place = Path(sys.argv[1]), Path(sys.argv[2])
    write_arrays(data, place)
    for backbone in sys.argv[3:] or BACKBONES:
        for name in ("sign", "leaves", "cifar100", "leaves-grey", "mnist", "omniglot", "cifar10"):
            weights = data / f"squeezenet{backbone}_imagenet.safetensors"
            sfumato(
                *("features", f"npz:{place / name}.npz", "--public", "--output", str(place / f"{backbone}-{name}")),
                *("--backbone", f"torchvision:squeezenet{backbone}", "--weights", str(weights)),
                *("--resolution", "64" if name in GREY else "96"),
            )
        for label, held in SETS.items():
            for records in held.sizes:
                key = f"SqueezeNet {backbone.replace('_', '.')}, {label}, N = {records:,}"
                found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
                if key not in found:
                    row = measured(place, backbone, held, records)
                    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
                    RESULT.write_text(json.dumps(found | {key: row}, indent=1) + "\n")
                    print(key, json.dumps(row["gain"]), flush=True)


def write_arrays(data: Path, place: Path) -> None:
    """The sets as npz files, with the numbers of images that two cores embed in twenty minutes."""
    sys.path.insert(0, str(data))
    import unpack  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)

    def save(name: str, train: int, test: int, made: Callable[[], dict[str, np.ndarray]]) -> None:
        if not (place / f"{name}.npz").exists():
            held, most = made(), {"train": train, "test": test}
            parts = {f"{one}_{part}": held[f"{one}_{part}"][: most[part]] for part in most for one in "xy"}
            np.savez(place / f"{name}.npz", **parts)

    def omniglot() -> dict[str, np.ndarray]:
        held = np.load(data / "omniglot28.npz")
        order = rng.permutation(len(held["x"]))
        test = held["drawer"][order] > 16
        parts = {"train": order[~test], "test": order[test]}
        named = {"x": held["x"], "y": held["alphabet"].astype(np.int64)}
        return {f"{one}_{part}": named[one][rows] for part, rows in parts.items() for one in "xy"}

    def sign() -> dict[str, np.ndarray]:
        with zipfile.ZipFile(data / "sign_language_digits.zip") as files:
            listing = next(name for name in files.namelist() if name.endswith("labels.csv"))
            rows = list(csv.DictReader(io.TextIOWrapper(files.open(listing))))
            folder = listing.removesuffix("labels.csv")
            images = [Image.open(files.open(folder + row["path"])).convert("RGB").resize((64, 64), 2) for row in rows]
        person = np.unique([row["user"] for row in rows], return_inverse=True)[1]
        test = rng.permutation(person.max() + 1)[person] >= 0.78 * (person.max() + 1)
        named = {"x": np.stack([np.asarray(one) for one in images]), "y": np.array([int(row["label"]) for row in rows])}
        return {f"{one}_{p}": named[one][w] for p, w in (("train", ~test), ("test", test)) for one in "xy"}

    def leaves(grey_ones: bool) -> dict[str, np.ndarray]:
        drawn, labels = dead_leaves(4000, processes=1), np.arange(4000) % 2
        drawn = grey(drawn)[..., 0] if grey_ones else drawn
        return {"x_train": drawn, "y_train": labels, "x_test": drawn, "y_test": labels}

    save("omniglot", 10_000, 2000, omniglot)
    save("sign", 2000, 500, sign)
    save("leaves", 4000, 20, lambda: leaves(False))
    save("leaves-grey", 2000, 20, lambda: leaves(True))
    save("mnist", 10_000, 2000, unpack.mnist)
    save("cifar100", 10_000, 3000, unpack.cifar100)
    save("cifar10", 50_000, 5000, unpack.cifar10)
    if not (place / "coarse.npz").exists():
        held = np.load(data / "cifar100_subset_residual.npz")
        np.savez(place / "coarse.npz", train=held["coarse_train"][:10_000], test=held["coarse_test"][:3000])


def read(place: Path, backbone: str, name: str, part: str) -> tuple[Tensor, Tensor]:
    """Features (N, D) and labels (N,)."""
    records = Cache(place / f"{backbone}-{name}").records(part)
    return torch.from_numpy(records.take(slice(None))[:, 0].copy()).float(), torch.from_numpy(records.labels.copy())


def moment(features: Tensor) -> Tensor:
    return features.double().T @ features.double() / len(features)


class Records(NamedTuple):
    """Features and labels of the training and the test records of a seed, with the noise's generator."""

    features: Tensor
    labels: Tensor
    tests: Tensor
    test_labels: Tensor
    classes: int
    generator: torch.Generator

    def mapped(self, map_: Tensor) -> Records:
        return self._replace(features=self.features @ map_, tests=self.tests @ map_)


def records_of(parts: dict[str, tuple[Tensor, Tensor]], records: int, seed: int) -> Records:
    """The records that a seed draws, and a generator that begins anew."""
    (features, labels), tests = parts["train"], parts["test"]
    rows = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:records]
    generator = torch.Generator().manual_seed(1000 + seed)
    return Records(features[rows], labels[rows], *tests, int(labels.max()) + 1, generator)


def measured(place: Path, backbone: str, held: Set, records: int) -> dict[str, Any]:
    """Accuracies (epsilons x seeds) of each method, and its gains over `none` in points with paired p-values."""
    parts = {part: read(place, backbone, held.features, part) for part in ("train", "test")}
    if held.coarse:
        coarse = np.load(place / "coarse.npz")
        parts = {part: (found, torch.from_numpy(coarse[part]).long()) for part, (found, _) in parts.items()}
    maps = {"none": torch.eye(parts["train"][0].shape[1])}
    for name, source in (("public", held.public), ("synthetic", held.synthetic)):
        public, _ = read(place, backbone, source, "train")
        maps[name] = whitening(moment(public[:10_000]), images=min(len(public), 10_000))
        if name == "public":
            maps["public, power 1"] = whitening(moment(public[:10_000]), images=min(len(public), 10_000), power=1.0)
    plans = [plan_for(records, epsilon) for epsilon in EPSILONS]
    lower = [plan_for(records, lower_epsilon(epsilon)) for epsilon in EPSILONS]
    found: dict[str, list[list[float]]] = {}
    for seed in range(SEEDS):
        drawn = functools.partial(records_of, parts, records, seed)
        own = {name: head(drawn().mapped(map_), plans) for name, map_ in maps.items()}
        if records <= FEW:
            own["private moment"] = private_moment(drawn(), lower)
        own["statistics"] = statistics(drawn())
        own["prototypes"] = prototypes(drawn())
        own["prototypes on public"] = prototypes(drawn().mapped(maps["public"]))
        for name, accuracies in own.items():
            found.setdefault(name, []).append(accuracies)
    by_epsilon = {name: np.array(values).T for name, values in found.items()}
    none = by_epsilon["none"]
    return {
        "epsilons": EPSILONS,
        "accuracy": {name: [round(float(x), 4) for x in values.mean(1)] for name, values in by_epsilon.items()},
        "gain": {
            name: [
                (round(100 * float((one - own).mean()), 1), float(f"{ttest_rel(one, own).pvalue:.2g}"))
                for one, own in zip(values, none, strict=True)
            ]
            for name, values in by_epsilon.items()
            if name != "none"
        },
    }


def plan_for(records: int, epsilon: float) -> PrivacyPlan:
    """The rule's plan."""
    full = records <= FULL_BATCH_UP_TO
    size, steps = (records, STEPS_FULL_BATCH) if full else (LARGE_BATCH, STEPS_SAMPLED)
    return PrivacyPlan.calibrate(examples=records, batch_size=size, steps=steps, epsilon=epsilon, delta=DELTA)


def mu_of(epsilon: float) -> float:
    """mu of the Gaussian mechanism with this epsilon at `DELTA` (Dong et al. 2022, corollary 2.13)."""
    low, high = 1e-3, 20.0
    for _ in range(60):
        mu = (low + high) / 2
        delta = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        low, high = (mu, high) if delta < DELTA else (low, mu)
    return low


def lower_epsilon(epsilon: float) -> float:
    """The epsilon of what is left after the share of mu^2. For sampled steps it holds about."""
    wanted, low, high = mu_of(epsilon) * math.sqrt(1 - SHARE), 0.0, epsilon
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if mu_of(middle) < wanted else (low, middle)
    return low


def head(held: Records, plans: list[PrivacyPlan]) -> list[float]:
    """Test accuracies of the rule's head for each plan; all plans share their batches and the noise's directions."""
    unit = torch.nn.functional.normalize
    ones, batch, steps = torch.ones(len(held.features), 1), plans[0].expected_batch_size, plans[0].steps
    features = torch.cat([unit(held.features) * NORM, ones], 1)
    rates = torch.tensor([FixedFeatures().rate(plan, MOMENTUM) for plan in plans])[:, None]
    noise = torch.tensor([plan.noise_multiplier for plan in plans])[:, None]
    weights = torch.zeros(features.shape[1], len(plans), held.classes)
    velocity, average = torch.zeros_like(weights), torch.zeros_like(weights)
    largest = math.sqrt(NORM**2 + 1)
    for step in range(steps):
        some, labels = features, held.labels
        if batch < len(features):
            rows = torch.nonzero(torch.rand(len(features), generator=held.generator) < batch / len(features))[:, 0]
            some, labels = features[rows], held.labels[rows]
        errors = (some @ weights.flatten(1)).view(len(some), *weights.shape[1:]).softmax(-1)
        errors[torch.arange(len(some)), :, labels] -= 1
        errors /= (errors.norm(dim=2, keepdim=True) * largest).clamp(min=1)
        drawn = torch.randn(len(weights), 1, held.classes, generator=held.generator)
        velocity = MOMENTUM * velocity + ((some.T @ errors.flatten(1)).view_as(weights) + drawn * noise) / batch
        weights = weights - rates * velocity
        decay = min(0.9999, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * weights
    tests = torch.cat([unit(held.tests) * NORM, torch.ones(len(held.tests), 1)], 1)
    logits = (tests @ average.flatten(1)).view(len(tests), *average.shape[1:])
    return (logits.argmax(-1) == held.test_labels[:, None]).float().mean(0).tolist()


def noisy_moment(features: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    """The sum of z z^T of unit vectors plus noise. A vector moves the upper triangle by norm 1, with sqrt(2) off the
    diagonal."""
    drawn = torch.randn(features.shape[1], features.shape[1], generator=generator) * deviation
    upper = drawn.triu(1) / math.sqrt(2)
    return features.T @ features + upper + upper.T + drawn.diagonal().diag()


def clamped(matrix: Tensor, deviation: float, power: float) -> Tensor:
    """A power of a noisy symmetric matrix; eigenvalues are raised to the noise's and to 0.03 of their mean."""
    values, vectors = torch.linalg.eigh(matrix.double())
    least = max(0.5 * deviation * math.sqrt(2 * len(matrix)), 0.03 * float(values.mean()))
    return ((vectors * values.clamp(min=least) ** power) @ vectors.T).float()


def private_moment(held: Records, plans: list[PrivacyPlan]) -> list[float]:
    """The head on features that are whitened by their own noisy moment. `plans` have what is left of the budget."""
    unit = torch.nn.functional.normalize(held.features)
    found = []
    for epsilon, plan in zip(EPSILONS, plans, strict=True):
        deviation = 1 / (mu_of(epsilon) * math.sqrt(SHARE))
        noisy = noisy_moment(unit, deviation, held.generator)
        found += head(held.mapped(clamped(noisy, deviation, -0.5)), [plan])
    return found


def statistics(held: Records) -> list[float]:
    """Linear discriminant analysis from one release: class counts, class sums and the second moment of unit vectors."""
    unit, tests = (torch.nn.functional.normalize(some) for some in (held.features, held.tests))
    member = torch.nn.functional.one_hot(held.labels, held.classes).float()
    found = []
    for epsilon in EPSILONS:
        deviation = math.sqrt(3) / mu_of(epsilon)  # three vectors of norm 1
        sums = member.T @ unit + deviation * torch.randn(held.classes, unit.shape[1], generator=held.generator)
        counts = member.sum(0) + deviation * torch.randn(held.classes, generator=held.generator)
        counts = counts.clamp(min=max(1.0, 0.1 * len(unit) / held.classes))
        means = sums / counts[:, None]
        within = noisy_moment(unit, deviation, held.generator) - (means * counts[:, None]).T @ means
        inverse = clamped(within / len(unit), deviation / len(unit), -1.0)
        shift = -0.5 * ((means @ inverse) * means).sum(1) + counts.log()
        found.append(float(((tests @ inverse @ means.T + shift).argmax(1) == held.test_labels).float().mean()))
    return found


def prototypes(held: Records) -> list[float]:
    """The class with the nearest noisy sum of unit vectors, by angle."""
    unit, tests = (torch.nn.functional.normalize(some) for some in (held.features, held.tests))
    sums = torch.nn.functional.one_hot(held.labels, held.classes).float().T @ unit
    drawn = torch.randn(sums.shape, generator=held.generator)
    noisy = [torch.nn.functional.normalize(sums + drawn / mu_of(epsilon)) for epsilon in EPSILONS]
    return [float(((tests @ one.T).argmax(1) == held.test_labels).float().mean()) for one in noisy]


if __name__ == "__main__":
    main()
