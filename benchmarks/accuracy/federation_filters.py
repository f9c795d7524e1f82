"""NVFlare's privacy filters at the epsilon that they really have: python benchmarks/accuracy/federation_filters.py

Three sites of digits, as in federation.py, train a linear model without privacy: 20 rounds of one epoch in batches of
32 at rate 0.1, five seeds. Each site's update passes through the filter of nvflare itself (2.9.0) before the average.
For each setting: accuracy, the cosine of filtered and true update, and epsilon of one round and of all rounds.

Epsilon follows from the filter's code:

- `SVTPrivacy` clips each coordinate of the update to [-gamma, gamma]. So one record moves it by at most 2 gamma, and
  nothing more is known. It releases c = fraction x parameters coordinates with Laplace noise of scale 2 gamma /
  noise_var: noise_var for each, c x noise_var together, which is reached if one record moves all of them by 2 gamma.
- Which c are released costs at most epsilon / fraction more. Noise of scale 2 c gamma / epsilon_query pays for c
  coordinates above the threshold (Lyu et al. 2017, arXiv 1603.01699, theorem 4), but the filter may accept all of them
  before it draws c.
- Rounds add up, or compose as Renyi divergences at delta 1e-5: Laplace noise by Mironov 2017 (table II), the selection
  by alpha epsilon^2 / 2 (Bun and Steinke 2016, proposition 1.4).
- `PercentilePrivacy` adds no noise, so it has no finite epsilon.

NVFlare's own account is c x noise_var + epsilon for each round.

Needs nvflare, torch and scikit-learn. Writes results/federation-filters.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS

SITES, ROUNDS, BATCH, RATE, TESTED, DELTA = 3, 20, 32, 0.1, 360, 1e-5
SETTINGS: tuple[tuple[str | None, dict[str, float]], ...] = (
    (None, {}),
    ("SVTPrivacy", {}),
    ("SVTPrivacy", {"gamma": 0.1}),
    ("SVTPrivacy", {"gamma": 0.1, "noise_var": 1.0}),
    ("SVTPrivacy", {"gamma": 0.1, "noise_var": 10.0}),
    ("SVTPrivacy", {"gamma": 0.1, "fraction": 0.9, "noise_var": 10.0}),
    ("PercentilePrivacy", {}),
    ("PercentilePrivacy", {"gamma": 0.1}),
)
REPORTED = 70_333
"""Epsilon of one round at the defaults, as a user has reported it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    rows = []
    for name, options in SETTINGS:
        found = [measured(name, options, seed) for seed in range(given.seeds)]
        row: dict[str, Any] = {"filter": name, "options": options}
        for figure in ("accuracy", "cosine"):
            values = [one[figure] for one in found]
            row |= {figure: round(float(np.mean(values)), 4), f"{figure}, deviation": round(float(np.std(values)), 4)}
        row |= {"epsilon": epsilons(name, options, parameters=650), "by its own account": found[0]["account"] or None}
        rows.append(row)
        print(json.dumps(row), flush=True)
    parameters = round((REPORTED - 0.1) / 0.1 / 0.1)
    found = {"seeds": given.seeds, "rows": rows, "reported": {"epsilon": REPORTED, "implies parameters": parameters}}
    (RESULTS / "federation-filters.json").write_text(json.dumps(found, indent=1) + "\n")


def epsilons(name: str | None, options: dict[str, float], parameters: int) -> dict[str, float] | None:
    """Upper bounds for one round and all of them; None if there is none."""
    if name != "SVTPrivacy":
        return None
    fraction, noise, selection = (options.get(key, 0.1) for key in ("fraction", "noise_var", "epsilon"))
    released, chosen = math.ceil(parameters * fraction), selection / fraction

    def composed(rounds: int) -> float:
        orders = np.concatenate([np.linspace(1.01, 10, 900), np.geomspace(10, 1e4, 500)])
        divergences = rounds * (
            released * laplace_divergence(orders, noise) + np.minimum(chosen, orders * chosen**2 / 2)
        )
        return min(float((divergences - math.log(DELTA) / (orders - 1)).min()), rounds * (released * noise + chosen))

    found = {f"delta 0, {rounds} rounds": rounds * (released * noise + chosen) for rounds in (1, ROUNDS)}
    found |= {f"delta {DELTA:g}, {rounds} rounds": composed(rounds) for rounds in (1, ROUNDS)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def laplace_divergence(orders: np.ndarray, epsilon: float) -> np.ndarray:
    """Renyi divergences between Laplace noise around two numbers that are `epsilon` times its scale apart."""
    logarithms = np.logaddexp(
        np.log(orders / (2 * orders - 1)) + (orders - 1) * epsilon,
        np.log((orders - 1) / (2 * orders - 1)) - orders * epsilon,
    )
    return logarithms / (orders - 1)


def measured(name: str | None, options: dict[str, float], seed: int) -> dict[str, float]:
    """Accuracy after the last round, and the mean cosine of filtered and true update."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.concatenate([pixels / 16, np.ones((len(pixels), 1))], 1)
    rng = np.random.default_rng(seed)
    test, rest = np.split(rng.permutation(len(labels)), [TESTED])
    np.random.seed(seed)  # the filters draw from it
    filters = [_filter(name, options) for _ in range(SITES)]
    weights, cosines = np.zeros((images.shape[1], 10)), []
    for _ in range(ROUNDS):
        updates = []
        for site, passed in enumerate(filters):
            rows = rest[site::SITES]
            update = trained(weights, images[rows], labels[rows], rng) - weights
            filtered = _through(passed, update)
            norms = np.linalg.norm(update) * np.linalg.norm(filtered)
            cosines.append(float((update * filtered).sum() / norms) if norms else 0.0)
            updates.append(filtered)
        weights = weights + np.mean(updates, 0)
    right = (images[test] @ weights).argmax(1) == labels[test]
    account = filters[0].get_privacy_spent() if name == "SVTPrivacy" else 0.0
    return {"accuracy": float(right.mean()), "cosine": float(np.mean(cosines)), "account": round(account, 1)}


def trained(weights: np.ndarray, images: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The weights after one epoch."""
    order = rng.permutation(len(labels))
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        errors = np.exp(images[some] @ weights)
        errors /= errors.sum(1, keepdims=True)
        errors[np.arange(len(some)), labels[some]] -= 1
        weights = weights - RATE / len(some) * images[some].T @ errors
    return weights


def _filter(name: str | None, options: dict[str, float]) -> Any:
    if name is None:
        return None
    import logging

    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    logging.disable(logging.INFO)
    return {"SVTPrivacy": SVTPrivacy, "PercentilePrivacy": PercentilePrivacy}[name](**options)


def _through(passed: Any, update: np.ndarray) -> np.ndarray:
    if passed is None:
        return update
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    dxo = DXO(DataKind.WEIGHT_DIFF, data={"weight": update[:-1].copy(), "bias": update[-1].copy()})
    found = passed.process_dxo(dxo, Shareable(), FLContext()).data
    return np.concatenate([found["weight"], found["bias"][None]])


if __name__ == "__main__":
    main()
