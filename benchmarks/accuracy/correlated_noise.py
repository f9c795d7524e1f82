"""Independent against correlated noise, in accuracy.

    python benchmarks/accuracy/correlated_noise.py DATA PLACE [--only digits ...]

The default of the rules against pairs of participation and mechanism at the same budget, each with its own batch and
steps by rule, on digits, MNIST (fixed wavelet features) and features of CIFAR-10 (a cache that PLACE/cifar10 holds, or
`--cache`), at epsilon 1, 2, 4 and 8 with five seeds. DATA holds mnist.npz. A seed's runs are a pair; the table has the
mean accuracy of the default, and of each other pair the mean gain with its standard error. Goes on where it stopped;
writes results/pairs.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import sfumato

PAIRS = {
    "default": (),
    "banded": ("--mechanism", "banded"),
    "cyclic": ("--participation", "cyclic"),
    "independent, unsampled": ("--participation", "fixed-order", "--mechanism", "gaussian"),
}
EPSILONS, SEEDS = (1, 2, 4, 8), range(5)
RESULT = RESULTS / "pairs.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--cache", type=Path, help="features of CIFAR-10, made by sfumato features --public")
    parser.add_argument("--only", nargs="+", help="of digits, mnist and cifar10")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    options = parser.parse_args()
    cache = options.cache or options.place / "cifar10"
    sources = {"digits": "digits", "mnist": f"npz:{options.data / 'mnist.npz'}", "cifar10": f"features:{cache}"}
    os.environ["SFUMATO_HOME"] = str(options.place / "home")
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in options.only or sources:
        for epsilon in EPSILONS:
            row = found.setdefault(name, {}).setdefault(str(epsilon), {})
            for seed in SEEDS[: options.seeds]:
                for pair in options.pairs:
                    runs = row.setdefault(pair, {})
                    if str(seed) not in runs:
                        runs[str(seed)] = accuracy(sources[name], epsilon, seed, pair, options.place)
                        RESULT.write_text(json.dumps(found, indent=1) + "\n")
            show(name, epsilon, row)


def accuracy(source: str, epsilon: float, seed: int, pair: str, place: Path) -> float:
    run = place / "run"
    command = ("train", source, "--epsilon", str(epsilon), "--seed", str(seed), *PAIRS[pair], "--output", str(run))
    try:
        return sfumato(*command, "--device", "cpu")["accuracy"]
    finally:
        for file in sorted(run.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        if run.exists():
            run.rmdir()


def show(name: str, epsilon: float, row: dict[str, dict[str, float]]) -> None:
    default = row["default"]
    parts = [f"{name:<8} epsilon {epsilon}  default {statistics.mean(default.values()):.2%}"]
    for pair, runs in row.items():
        both = [seed for seed in runs if seed in default]
        if pair != "default" and len(both) > 1:
            gains = [runs[seed] - default[seed] for seed in both]
            error = statistics.stdev(gains) / math.sqrt(len(gains))
            parts.append(f"{pair} {100 * statistics.mean(gains):+.2f} ({100 * error:.2f})")
    print("   ".join(parts), flush=True)


if __name__ == "__main__":
    main()
