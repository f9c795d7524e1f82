"""Four published changes to private training, each against the same run without it.

    python benchmarks/accuracy/four_changes.py DATA PLACE [ROW ...]

10,000 images of CIFAR-10 to train on, (8, 1e-5)-DP, C = 1. What can be tried on the default model is tried there: a
linear head on fixed wavelet features, 100 steps of batches of 512. The form of a network takes one: a WRN-10-1
with 4 groups on images halved to 16 x 16 pixels, 100 steps of batches of 128. A learning rate,
and what a change has of its own, is chosen on 5,000 other training images by a seed of its own (0) where several are
given; then seeds 1 to 5 are scored on the 10,000 test images. Both runs of a pair have the same seed, hence the same
participants, numbers that the noise is made of and, but for the two networks, first weights. The sign is that of a
paired t-test at 0.05.

- `form`: the Wide-ResNet that De et al. 2022 released, `form=de2022`, in place of the one that they print.
- `mixed`: of K views the second half are a x_i + (1 - a) x_j of two of the first half, a from a beta distribution,
  drawn for each mixture by itself (mixup among one example's views, Bao et al. 2023, arXiv 2311.01295). The views of
  features are drawn once for all steps.
- `scaled`: each example's gradient is multiplied by s = 1 / (sqrt(v) + e), v Adam's second moment of the releases so
  far, before it is clipped; the noisy sum is divided by s, and Adam takes it (arXiv 2507.01129, algorithm 8). e counts
  in the root of v's mean, and s is multiplied so that a gradient of squares v keeps its norm, by which C = 1 means the
  same with and without.
- `kept` k below 1: the gradient of step t is taken at x_t + (1 - k) / k (x_t - x_{t-1}), and g_t = (1 - k) g_{t-1} + k
  times that release goes to SGD (Zhang et al. 2024, arXiv 2410.03883, with the gamma that leaves one gradient).

None of them changes a step's sensitivity: the first changes a network, the second a function of one example, and the
other two are functions of earlier releases. PLACE keeps each run, so that the command goes on where it was
cut. Writes benchmarks/results/four-changes.json.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import EMA, ClippedGradient, Noise, PrivacyPlan, PrivateStep, RunKey, Sampler
from sfumato.data import Views
from sfumato.models.networks.dictionary import Scattering
from sfumato.models.networks.resnets import WideResNet

RESULT = RESULTS / "four-changes.json"
TRAINED, VALIDATED, SEEDS = 10_000, 5_000, (1, 2, 3, 4, 5)
BETAS, SMALLEST = (0.9, 0.999), 1e-8
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to train."""

    rate: float
    head: bool = False
    batch: int = 128
    steps: int = 100
    views: int = 1
    form: str = "c1"
    mixed: float = 0.0
    adam: bool = False
    scaled: float = 0.0
    kept: float = 1.0

    @property
    def name(self) -> str:
        """As a file is called."""
        odd = {name: value for name, value in vars(self).items() if value != getattr(Case, name, None)}
        return "-".join(f"{name} {value}" for name, value in odd.items()).replace(" ", "_")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: the cases that the best is chosen of, and the rows that it is compared with."""

    tried: tuple[Case, ...]
    against: tuple[str, ...] = ()


def cases(base: Case, rates: tuple[float, ...], **changes: tuple[Any, ...]) -> tuple[Case, ...]:
    """The base with each rate and each value of what changes."""
    found = [replace(base, rate=rate) for rate in rates]
    for name, values in changes.items():
        found = [replace(case, **{name: value}) for case in found for value in values]
    return tuple(found)


NETWORK = Case(rate=2.0)
HEAD = Case(rate=1.0, head=True, batch=512)
HEAD_VIEWED = replace(HEAD, rate=16.0, views=4)
ADAPTIVE = replace(HEAD, adam=True)
ROWS = {
    "head: SGD": Row(tried=cases(HEAD, (4.0, 8.0, 16.0, 32.0))),
    "head: filtered": Row(tried=cases(HEAD, (8.0, 16.0, 32.0), kept=(0.7,)), against=("head: SGD",)),
    "head: Adam": Row(tried=cases(ADAPTIVE, (3e-3, 1e-2, 3e-2)), against=("head: SGD",)),
    "head: scaled": Row(tried=cases(ADAPTIVE, (1e-2, 3e-2), scaled=(0.3, 1.0)), against=("head: Adam", "head: SGD")),
    "head: 4 views": Row(tried=(HEAD_VIEWED,), against=("head: SGD",)),
    "head: 2 views and 2 mixtures": Row(tried=(replace(HEAD_VIEWED, mixed=1.0),), against=("head: 4 views",)),
    "network": Row(tried=cases(NETWORK, (1.0, 2.0, 4.0))),
    "network: released": Row(tried=cases(NETWORK, (1.0, 2.0, 4.0), form=("de2022",)), against=("network",)),
}


class ScaledHead:
    """The clipped sum of a head's gradients times s, and Adam's second moment of what was released: a `Query`.

    With e = softmax - one-hot an example's gradient is e x^T, so its squared norm is sum_cd e_c^2 s_cd^2 x_d^2.

    Args:
        layer: the head.
        least: e of s = 1 / (sqrt(v) + e), over the root of the moment's mean.
    """

    max_norm, sums_over = 1.0, "examples"

    def __init__(self, layer: nn.Linear, least: float):
        self.layer, self.least, self.steps = layer, least, 0
        self.scale, self.moment = torch.ones(len(layer.bias), layer.in_features + 1), torch.zeros(())

    def sensitivity(self, adjacency: str) -> float:
        """C, of one example more or less."""
        return {"add-or-remove": self.max_norm}[adjacency]

    def zeros(self) -> dict[str, Tensor]:
        """Of no examples."""
        return self.parts(torch.zeros_like(self.scale))

    def parts(self, both: Tensor) -> dict[str, Tensor]:
        """Weights and biases, which stand in the last column."""
        return {"0.weight": both[:, :-1].contiguous(), "0.bias": both[:, -1].contiguous()}

    def __call__(self, inputs: Tensor, targets: Tensor) -> SimpleNamespace:
        """The sum over examples (b, D) and classes (b,)."""
        with torch.no_grad():
            errors = self.layer(inputs).softmax(1) - F.one_hot(targets, len(self.scale))
            wider = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
            norms = ((errors**2 @ self.scale**2) * wider**2).sum(1).sqrt()
            errors = errors * (self.max_norm * (1 - 1e-5) / norms.clamp_min(self.max_norm)).unsqueeze(1)
            return SimpleNamespace(gradients=self.parts(errors.T @ wider * self.scale))

    def end(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The release over s; and s of the next step."""
        found = torch.cat([released["0.weight"], released["0.bias"].unsqueeze(1)], 1) / self.scale
        self.steps += 1
        self.moment = BETAS[1] * self.moment + (1 - BETAS[1]) * found**2
        v = self.moment / (1 - BETAS[1] ** self.steps)
        scale = 1 / (v.sqrt() + self.least * v.mean().sqrt() + SMALLEST)
        self.scale = scale * (v.sum() / (scale**2 * v).sum()).sqrt()
        return self.parts(found)


@dataclass
class Filtered:
    """Where gradients are taken, and what of them goes on."""

    kept: float
    gradient: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)

    def point(self, here: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """x_t + (1 - k) / k (x_t - x_{t-1})."""
        ahead = (1 - self.kept) / self.kept
        return {name: value + ahead * (value - self.before.get(name, value)) for name, value in here.items()}

    def of(self, released: dict[str, Tensor], here: dict[str, Tensor]) -> dict[str, Tensor]:
        """(1 - k) g_{t-1} + k times what was released."""
        before = self.gradient or released
        self.gradient = {name: (1 - self.kept) * before[name] + self.kept * value for name, value in released.items()}
        self.before = here
        return self.gradient


def network(case: Case, width: int) -> nn.Module:
    """The network of a case, drawn from torch's generator; a head of so many features begins at zero."""
    if case.head:
        net = nn.Sequential(nn.Linear(width, 10))
        nn.init.zeros_(net[0].weight)
        nn.init.zeros_(net[0].bias)
        return net
    return WideResNet(depth=10, width=1, classes=10, channels=3, groups=4, form=case.form)


def mixtures(shown: Tensor, alpha: float, generator: np.random.Generator) -> Tensor:
    """Views (n, K, ...) of which the second half are mixtures of pairs of the first."""
    if not alpha:
        return shown
    n, half = len(shown), shown.shape[1] // 2
    first = generator.integers(half, size=(n, half))
    second = (first + generator.integers(1, half, size=(n, half))) % half
    share = torch.from_numpy(generator.beta(alpha, alpha, (n, half))).float()[..., None, None, None]
    rows = torch.arange(n).unsqueeze(1)
    return torch.cat([shown[:, :half], share * shown[rows, first] + (1 - share) * shown[rows, second]], 1)


@cache
def planned(batch: int, steps: int) -> PrivacyPlan:
    """The plan with the least noise."""
    return PrivacyPlan.calibrate(examples=TRAINED, batch_size=batch, steps=steps, epsilon=8.0, delta=1e-5, max_norm=1.0)


def train(case: Case, seed: int, data: dict[str, Batch]) -> dict[str, float]:
    """Accuracies of the last and of the averaged weights: of seed 0 on the validation part, else on the test part."""
    plan, key = planned(case.batch, case.steps), RunKey.from_seed(seed, "four changes")
    torch.manual_seed(seed)
    net = network(case, data["train"][0].shape[-1])
    scaled = ScaledHead(net[0], case.scaled) if case.scaled else None  # pyright: ignore
    filtered = Filtered(case.kept) if case.kept < 1 else None
    gradient = ClippedGradient(net, F.cross_entropy, max_norm=1.0, views=case.views)
    noise = Noise(plan.mechanism, max_norm=1.0, key=key)
    take = PrivateStep(plan=plan, gradient=scaled or gradient, noise=noise)  # pyright: ignore
    inputs, targets = data["train"]
    sampler, weights = Sampler(plan, key, records=TRAINED), dict(net.named_parameters())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(weights.values(), case.rate)
    if case.adam:
        optimizer = torch.optim.Adam(weights.values(), case.rate, BETAS)
    averaging = EMA()
    average = averaging.begin(weights)
    for step in range(case.steps):
        here = {name: value.detach().clone() for name, value in weights.items()}
        if filtered:
            put(weights, filtered.point(here))
        rows = torch.from_numpy(sampler.draw(step))
        released = take(step, [(inputs[rows], targets[rows])])
        if scaled:
            released = scaled.end(released)
        if filtered:
            put(weights, here)
            released = filtered.of(released, here)
        for name, value in released.items():
            weights[name].grad = value
        optimizer.step()
        average = averaging.update(average, weights, step)
    judged = data["test" if seed else "validation"]
    last = accuracy(net, judged)
    put(weights, average)
    return {"last": last, "averaged": accuracy(net, judged)}


def put(weights: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Values in place."""
    with torch.no_grad():
        for name, value in values.items():
            weights[name].copy_(value)


def accuracy(net: nn.Module, part: Batch) -> float:
    """The share of right answers."""
    with torch.no_grad():
        answers = torch.cat([net(inputs).argmax(1) for inputs in part[0].split(128)])
    return float((answers == part[1]).float().mean())


def fixed_views(images: Tensor, case: Case) -> Tensor:
    """Views (n, K, ...) of an image that stay the same in all steps, for features are computed once; by seed 0."""
    views, generator = Views(count=case.views, shift=4, flip=True), np.random.default_rng(0)
    return mixtures(views.apply(images, views.draw(generator, len(images), size=32)), case.mixed, generator)


def parts(path: Path, case: Case) -> dict[str, Batch]:
    """Inputs and classes by part: images (N, 3, 16, 16) from -1 to 1, the mean of each 2 x 2 pixels; or features
    (N, D), (N, K, D) of views to train on.
    """
    arrays, found = np.load(path), {}
    ends = {"train": slice(TRAINED), "validation": slice(TRAINED, TRAINED + VALIDATED), "test": slice(None)}
    wavelets = Scattering(classes=10, channels=3, size=(32, 32))
    for name, chosen in ends.items():
        part = "test" if name == "test" else "train"
        images = torch.from_numpy(arrays[f"x_{part}"][chosen]).permute(0, 3, 1, 2)
        shown = images.float() / 127.5 - 1
        with torch.no_grad():
            if not case.head:
                inputs = F.avg_pool2d(shown, 2)
            elif case.views > 1 and name == "train":
                flat = fixed_views(shown, case).flatten(0, 1).split(128)
                inputs = torch.cat([wavelets.features(some) for some in flat]).unflatten(0, (-1, case.views))
            else:
                inputs = torch.cat([wavelets.features(some) for some in shown.split(128)])
        found[name] = inputs, torch.from_numpy(arrays[f"y_{part}"][chosen]).long()
    return found


def shown(case: Case) -> Case:
    """What of a case its inputs depend on."""
    if case.head:
        return Case(rate=1.0, head=True, views=case.views, mixed=case.mixed)
    return Case(rate=1.0)


def line(best: Case, runs: list[dict[str, float]], others: dict[str, list[float]]) -> dict[str, Any]:
    """A row: test accuracies of averaged weights, and their paired differences from other rows'."""
    values = [run["averaged"] for run in runs]
    found: dict[str, Any] = {"case": vars(best), "runs": values, "mean": float(np.mean(values)), "against": {}}
    found["last weights"] = [run["last"] for run in runs]
    for name, other in others.items():
        apart = np.subtract(values, other)
        error, p = apart.std(ddof=1) / math.sqrt(len(apart)), stats.ttest_1samp(apart, 0.0).pvalue
        sign = "unresolved" if p > 0.05 else "helps" if apart.mean() > 0 else "harms"
        found["against"][name] = {"difference": float(apart.mean()), "error": float(error), "p": float(p), "sign": sign}
    return found


def main() -> None:
    path, place, *names = sys.argv[1:]
    torch.set_num_threads(1)
    Path(place).mkdir(parents=True, exist_ok=True)
    data = cache(lambda how: parts(Path(path), how))

    def outcome(case: Case, seed: int) -> dict[str, float]:
        kept = Path(place) / f"{case.name}-seed{seed}.json"
        if not kept.exists():
            kept.write_text(json.dumps(train(case, seed, data(shown(case)))), "utf-8")
        return json.loads(kept.read_text("utf-8"))

    table: dict[str, Any] = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    for name in names or ROWS:
        row, tried = ROWS[name], {}
        if len(row.tried) > 1:
            tried = {case: outcome(case, 0)["averaged"] for case in row.tried}
        best = max(tried, key=lambda case: tried[case]) if tried else row.tried[0]
        runs = [outcome(best, seed) for seed in SEEDS]
        table[name] = line(best, runs, {other: table[other]["runs"] for other in row.against})
        table[name]["tried"] = {case.name: value for case, value in tried.items()}
        RESULT.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
        print(name, best.name, f"{table[name]['mean']:.2%}", table[name]["against"], flush=True)


if __name__ == "__main__":
    main()
