"""A network on the synthetic images of the dictionary, against it: network_prior.py DATA PLACE [--minutes 30]

DP-RandP (Tang et al. 2023, arXiv 2306.06076) begins with a network that was trained without labels on images from a
random process: two views of one image are brought together, and all images apart (alignment and uniformity, Wang and
Isola 2020, arXiv 2005.10242). This does so for as many minutes of one processor core as are given, on the dead leaves
that the dictionary was learnt from. It scores the network and the dictionary's first layer as fixed features of one
norm under the same private linear head (full batches; DP-RandP's second phase), on 20,000 images of CIFAR-10 with the
noise that 50,000 would have, delta 1e-5. The network's features are scored as they are and whitened by the synthetic
images. Goes on where it stopped; PLACE keeps the network; writes results/network-prior.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from sfumato import PrivacyPlan
from sfumato.models.networks.dictionary import Dictionary
from sfumato.models.networks.prior import prior_for
from studies.dead_leaves import dead_leaves

RESULT = RESULTS / "network-prior.json"
IMAGES, BATCH, RATE = 12_000, 128, 2e-3
TRAINED, AS_OF, TESTED = 20_000, 50_000, 5_000
EPSILONS, DELTA, STEPS = (1, 3, 8), 1e-5, 100
NORM, KAPPAS = 2.0, (0.6, 1.2, 2.4)
WIDTHS = (32, 64, 128)


class Network(nn.Module):
    """Three stages of two convolutions with group norm; its features are means over the quarters of the last."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in WIDTHS:
            for stride in (1, 2):
                layers += [nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.GroupNorm(8, width), nn.ReLU()]
                before = width
        self.body = nn.Sequential(*layers)
        self.project = nn.Linear(before, 128)

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, 3, 32, 32) to points of the sphere (N, 128), of which the loss is."""
        return F.normalize(self.project(self.body(images).mean((2, 3))), dim=1)

    def features(self, images: Tensor) -> Tensor:
        """Means over the quarters of the last two stages' maps, for the image and its mirror image."""

        def one(shown: Tensor) -> Tensor:
            half = self.body[: 3 * 4](shown)
            maps = (half, self.body[3 * 4 :](half))
            return torch.cat([F.adaptive_avg_pool2d(some, 2).flatten(1) for some in maps], 1)

        return one(images) + one(images.flip(3))


def view(images: Tensor, generator: torch.Generator) -> Tensor:
    """One random view of each image (N, 3, 32, 32): a window of 35 to 100% of its area, mirrored by a coin, of another
    contrast and brightness, sometimes grey."""
    count = len(images)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    side = uniform(0.35, 1).sqrt()
    x, y = (1 - side) * uniform(-1, 1), (1 - side) * uniform(-1, 1)
    mirrored = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    zero = torch.zeros(count)
    maps = torch.stack([torch.stack([side * mirrored, zero, x], 1), torch.stack([zero, side, y], 1)], 1)
    shown = F.grid_sample(images, F.affine_grid(maps, list(images.shape), align_corners=False), align_corners=False)
    shown = shown * uniform(0.6, 1.4).view(-1, 1, 1, 1) + uniform(-0.4, 0.4).view(-1, 1, 1, 1)
    plain = (uniform(0, 1) < 0.2).view(-1, 1, 1, 1)
    return torch.where(plain, shown.mean(1, keepdim=True), shown).clamp(-1, 1)


def loss(first: Tensor, second: Tensor) -> Tensor:
    """Alignment with power 2, and uniformity with t = 2 of both views, of equal weight."""
    apart = [torch.pdist(some).square().mul(-2).exp().mean().log() for some in (first, second)]
    return (first - second).square().sum(1).mean() + sum(apart) / 2


def trained(place: Path, minutes: float) -> tuple[Network, dict[str, float]]:
    """The network after so many minutes of one core, kept at PLACE."""
    torch.manual_seed(0)
    network, generator = Network(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=1e-4)
    state, seconds, steps = place / "network.pt", 0.0, 0
    if state.exists():
        held = torch.load(state)
        network.load_state_dict(held["network"])
        optimizer.load_state_dict(held["optimizer"])
        generator.set_state(held["generator"])
        seconds, steps = held["seconds"], held["steps"]
    images = torch.from_numpy(dead_leaves(IMAGES, seed=0)).permute(0, 3, 1, 2) / 127.5 - 1
    value = torch.tensor(math.nan)
    while seconds < 60 * minutes:
        began = time.process_time()
        for _ in range(20):
            for group in optimizer.param_groups:
                group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * min(1.0, seconds / (60 * minutes))))
            some = images[torch.randint(len(images), (BATCH,), generator=generator)]
            value = loss(network(view(some, generator)), network(view(some, generator)))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        steps, seconds = steps + 20, seconds + time.process_time() - began
        held = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "seconds": seconds}
        torch.save(held | {"generator": generator.get_state(), "steps": steps}, state)
        print(f"{steps} steps, {seconds / 60:.1f} of {minutes:g} minutes, loss {float(value.detach()):.3f}", flush=True)
    return network.eval(), {"steps": steps, "minutes": round(seconds / 60, 1)}


@torch.no_grad()
def of_all(features: object, images: np.ndarray, each: int) -> Tensor:
    """Features (N, D) of images uint8 (N, 32, 32, 3)."""
    shown = torch.from_numpy(images).permute(0, 3, 1, 2)
    return torch.cat([features(some / 127.5 - 1) for some in shown.split(each)])  # type: ignore[operator]


def whitened(public: Tensor, *wanted: Tensor) -> list[Tensor]:
    """Features by the mean and covariance of public ones, to the power that the dictionary has."""
    mean = public.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(public.T))
    scales = (values.clamp(min=0) + 0.03 * values.mean()).pow(-0.375)
    return [(some - mean) @ vectors * scales for some in wanted]


def score(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor, epsilon: float, kappa: float) -> float:
    """The accuracy of a head by full batches: noise of the plan for `AS_OF` examples, gradients of `TRAINED`."""
    plan = PrivacyPlan.calibrate(examples=AS_OF, batch_size=AS_OF, steps=STEPS, epsilon=epsilon, delta=DELTA)
    sigma, generator = plan.noise_multiplier * TRAINED / AS_OF, torch.Generator().manual_seed(0)
    train, test = (F.normalize(some) * NORM for some in (train, test))
    rate = kappa * 0.1 / (sigma * math.sqrt(STEPS) / TRAINED * NORM)
    weight, speed, mean = (torch.zeros(10, train.shape[1]) for _ in range(3))
    wanted = F.one_hot(labels, 10).float()
    for step in range(STEPS):
        errors = torch.softmax(train @ weight.T, 1) - wanted
        errors *= (1 / (errors.norm(dim=1, keepdim=True) * NORM)).clamp(max=1)
        gradient = errors.T @ train + sigma * torch.randn(weight.shape, generator=generator)
        speed = 0.9 * speed + gradient / TRAINED
        weight = weight - rate * speed
        if step >= STEPS // 3:
            mean += (weight - mean) / (step - STEPS // 3 + 1)
    return float(((test @ mean.T).argmax(1) == truth).float().mean())


def main(data: Path, place: Path, minutes: float) -> None:
    place.mkdir(parents=True, exist_ok=True)
    network, how = trained(place, minutes)
    with np.load(data / "cifar10.npz") as archive:
        x, y = archive["x_train"][:TRAINED], torch.from_numpy(archive["y_train"][:TRAINED]).long()
        xt, yt = archive["x_test"][:TESTED], torch.from_numpy(archive["y_test"][:TESTED]).long()
    raw = [of_all(network.features, some, 128) for some in (dead_leaves(IMAGES, seed=1), x, xt)]
    first_layer = prior_for(3)._replace(second=None, second_whitening=None)
    dictionary = Dictionary(first_layer, classes=10, channels=3, size=(32, 32))
    ways = {
        "network": tuple(raw[1:]),
        "network, whitened": tuple(whitened(raw[0], *raw[1:])),
        "dictionary": tuple(of_all(dictionary.features, some, 128) for some in (x, xt)),
    }
    white, learnt = ways["network, whitened"], ways["dictionary"]
    ways["both"] = tuple(torch.cat([F.normalize(a), F.normalize(b)], 1) for a, b in zip(white, learnt, strict=True))
    rows = {}
    for name, (train, test) in ways.items():
        scores = {e: {k: score(train, y, test, yt, e, k) for k in KAPPAS} for e in EPSILONS}
        rows[name] = {str(e): max(found.values()) for e, found in scores.items()}
        print(f"{name:<20}", *(f"{value:8.1%}" for value in rows[name].values()), flush=True)
    parameters = sum(one.numel() for one in network.parameters())
    RESULT.write_text(json.dumps({"network": {**how, "parameters": parameters}, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path)
    options.add_argument("place", type=Path)
    options.add_argument("--minutes", type=float, default=30)
    chosen = options.parse_args()
    main(chosen.data, chosen.place, chosen.minutes)
