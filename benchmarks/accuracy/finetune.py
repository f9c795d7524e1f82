"""CIFAR-100 -> CIFAR-10 of De et al. 2022, table 11, scaled to two cores.

    python benchmarks/accuracy/finetune.py DATA PLACE

A WRN-16-1 is trained without privacy on 20,000 images of CIFAR-100, then fine-tuned on CIFAR-10 at several epsilons:
all layers, and the classifier alone, whose features are computed once. One run without privacy stands beside. Learning
rates are chosen on a tenth of the training part, at epsilon 4 with half of the steps. DATA is a folder with cifar10.npz
and cifar100.npz; PLACE keeps the runs, so that the command goes on where it was cut. Writes results/finetune.json.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.runs import last_row, public_network, sfumato

RESULT = RESULTS / "finetune.json"
EPSILONS = (1.0, 2.0, 4.0, 8.0)
TUNED_AT = 4.0
RATES = {"all": (1.0, 2.0, 4.0, 8.0), "classifier": (1.0, 4.0, 16.0, 64.0)}
STEPS = {"all": 100, "classifier": 250}
ALL = ("--batch-size", "1024", "--flip", "True", "--shift", "4")
CLASSIFIER = ("--model", "head", "--batch-size", "4096")


def main() -> None:
    data, place = (Path(word) for word in sys.argv[1:])
    public = public_network(place / "cifar100", data)
    start = ("--model", "wrn-16-1", "--pretrained", str(place / "cifar100"))
    source = f"npz:{data / 'cifar10.npz'}"
    cache = place / "features"
    sfumato("features", source, "--public", "--backbone", str(place / "cifar100"), "--output", str(cache))

    common = ("--optimizer", "sgd", "--views", "1", "--seed", "0", "--examples", "50000", "--delta", "1e-5")
    options = {
        "all": (source, "--public", *start, *ALL, *common),
        "classifier": (f"features:{cache}", *CLASSIFIER, *common),
    }

    def best_rate(what: str) -> float:
        found = sfumato(
            *("sweep", *options[what], "--epsilon", str(TUNED_AT), "--steps", str(STEPS[what] // 2)),
            *("--vary", f"learning-rate={','.join(map(str, RATES[what]))}", "--device", "cpu"),
            *("--processes", "2", "--output", str(place / f"{what}-rates")),
        )
        return found["best"]["learning_rate"]

    rates = {what: best_rate(what) for what in RATES}

    def private(epsilon: float, what: str) -> float:
        return last_row(
            place / f"{what}-rate{rates[what]:g}-eps{epsilon:g}",
            *("train", *options[what], "--epsilon", str(epsilon), "--steps", str(STEPS[what])),
            *("--learning-rate", str(rates[what])),
        )["accuracy"]

    def plain() -> float:
        return last_row(
            place / "without-privacy",
            *("pretrain", source, "--public", *start, "--batch-size", "128", "--steps", "1560"),
            *("--learning-rate", "0.05", "--flip", "True", "--shift", "4", "--seed", "0"),
        )["accuracy"]

    with ThreadPoolExecutor(2) as pool:
        jobs = {
            (what, epsilon): pool.submit(private, epsilon, what)
            for what in ("classifier", "all")
            for epsilon in EPSILONS
        }
        without = pool.submit(plain)
        rows = [
            {"epsilon": epsilon, **{what: jobs[what, epsilon].result() for what in ("classifier", "all")}}
            for epsilon in EPSILONS
        ]
    table = {"pretraining": public["accuracy"], "rates": rates, "rows": rows, "without_privacy": without.result()}
    RESULT.write_text(json.dumps(table, indent=1) + "\n")
    print(f"CIFAR-100 without privacy {public['accuracy']:.1%}")
    for row in rows:
        print(f"epsilon {row['epsilon']:g}: all layers {row['all']:.1%}, classifier {row['classifier']:.1%}")
    print(f"without privacy {table['without_privacy']:.1%}")


if __name__ == "__main__":
    main()
