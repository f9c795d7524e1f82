"""A federation of sites: python benchmarks/accuracy/federation.py [--seeds 5]

Handwritten digits (scikit-learn's, 8 x 8 pixels): 360 to test on, the others divided among 3, 5 or 10 sites, equally or
skewed by class (sorted by class, cut into two pieces for each site: McMahan et al. 2017, section 3). A linear model,
20 rounds of three full-batch steps, averaged with equal weights; every site has its own epsilon at delta 1e-5. Beside
them the first site alone and all data in one place, with as many steps. Writes results/federation.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS

SITES, EPSILONS, ROUNDS, LOCAL, TESTED = (3, 5, 10), (1.0, 3.0, 8.0), 20, 3, 360
RESULT = RESULTS / "federation.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    os.fsync = os.fstat  # no run here needs to survive a power cut
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    done = {(row["epsilon"], row["sites"], row["split"]) for row in rows}
    for epsilon in EPSILONS:
        for sites in SITES:
            for split in ("equal", "by class"):
                if (epsilon, sites, split) in done:
                    continue
                found = [measured(seed, epsilon, sites, split) for seed in range(given.seeds)]
                means = {name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]}
                errors = {name: round(float(np.std([one[name] for one in found], ddof=1)), 4) for name in found[0]}
                rows.append({"epsilon": epsilon, "sites": sites, "split": split, **means, "deviations": errors})
                print(rows[-1], flush=True)
                RESULT.write_text(json.dumps({"seeds": given.seeds, "rows": rows}, indent=1) + "\n")


def measured(seed: int, epsilon: float, sites: int, split: str) -> dict[str, float]:
    """Accuracies on the test images: of all sites together, of the first one alone, and of all data in one place."""
    _, labels, _, rest = digits(seed)
    if split == "equal":
        parts = [rest[site::sites] for site in range(sites)]
    else:
        pieces = np.array_split(rest[np.argsort(labels[rest], kind="stable")], 2 * sites)
        mixed = np.random.default_rng(seed).permutation(2 * sites)
        parts = [np.concatenate([pieces[mixed[2 * site]], pieces[mixed[2 * site + 1]]]) for site in range(sites)]
    return {
        "federated": accuracy(seed, epsilon, parts),
        "one site": accuracy(seed, epsilon, parts[:1]),
        "one place": in_one_place(seed, epsilon),
    }


@cache
def in_one_place(seed: int, epsilon: float) -> float:
    return accuracy(seed, epsilon, [digits(seed)[3]])


def accuracy(seed: int, epsilon: float, members: list[np.ndarray]) -> float:
    images, labels, test, _ = digits(seed)
    model = together([(images[one], torch.tensor(labels[one])) for one in members], epsilon, seed)
    with torch.no_grad():
        return float((model(images[test]).argmax(1).numpy() == labels[test]).mean())


def digits(seed: int) -> tuple[Tensor, np.ndarray, np.ndarray, np.ndarray]:
    """Images (N, 64), labels (N,), and the rows to test and to train on."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    return torch.tensor(pixels / 16, dtype=torch.float32), labels, order[:TESTED], order[TESTED:]


def together(members: list[tuple[Tensor, Tensor]], epsilon: float, seed: int) -> nn.Module:
    """Federated averaging of the members' private rounds."""
    torch.manual_seed(seed)
    model = nn.Linear(64, 10)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as place:
        runs = []
        for number, data in enumerate(members):
            own = nn.Linear(64, 10)
            runs.append(
                sfumato.private_rounds(
                    own,
                    torch.optim.SGD(own.parameters(), lr=0.5, momentum=0.9),
                    data,
                    rounds=ROUNDS,
                    steps=LOCAL * ROUNDS,
                    epsilon=epsilon,
                    delta=1e-5,
                    batch_size=len(data[0]),
                    directory=Path(place) / str(number),
                    public=True,
                    seed=1000 * seed + number,
                    threads=1,
                )
            )
        for _ in range(ROUNDS):
            sent = [run.train(weights) for run in runs]
            weights = {name: torch.stack([one[name] for one in sent]).mean(0) for name in weights}
    model.load_state_dict(weights)
    return model


if __name__ == "__main__":
    main()
