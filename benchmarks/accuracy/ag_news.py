"""Layer norm for a BiLSTM on AG News: python benchmarks/accuracy/ag_news.py AG_NEWS_TEST.csv.gz

Table 7 of Davody et al. 2020 in small: not its 96,000 training texts, but four fifths of the 7,600 test texts, about
6,080 of them, and the last fifth to test on. BiLSTM-DL and LN-BiLSTM-DL at epsilon 0.1, 0.5, 1, 3 and 7 (delta 1e-5)
with five seeds each, of which each has a keyed split of its own, and the default model beside them. What both have in
common is fixed; each has its own learning rate, found by a few runs on one more split at epsilon 1 and 3, in
inverse proportion to the noise. Differences are of the same seed and split, with their standard error.

Goes on where it stopped; writes results/ag-news.json. About 15 seconds a run on one core.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.data import Source, open_source
from sfumato.privacy import PrivacyPlan

RESULT = RESULTS / "ag-news.json"
EPSILONS = (0.1, 0.5, 1.0, 3.0, 7.0)
SEEDS = range(5)
DELTA = 1e-5
BATCH_SIZE, STEPS = 1024, 100
MODELS = {
    "BiLSTM-DL": ("bilstm,embedding=16,hidden=16", 1.8),
    "LN-BiLSTM-DL": ("bilstm,embedding=16,hidden=16,norm=layer", 0.3),
}
"""With their learning rates at epsilon 1."""
DECLARED: dict[str, Any] = {"classes": ["World", "Sports", "Business", "Sci/Tech"], "length": 24, "vocabulary": 2048}
DEFAULT = "default"


def main(path: Path) -> None:
    """Measure what is missing, and print the table."""
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {"runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SFUMATO_HOME"] = str(Path(folder) / "home")
        for seed in SEEDS:
            for epsilon in EPSILONS:
                for model in (*MODELS, DEFAULT):
                    key = f"{model}, epsilon {epsilon:g}, seed {seed}"
                    if key not in found["runs"]:
                        found["runs"][key] = measure(path, model, epsilon, seed, Path(folder))
                        found["summary"] = summary(found["runs"])
                        RESULT.write_text(json.dumps(found, indent=1) + "\n")
                        print(key, found["runs"][key], flush=True)
    for row in found["summary"]:
        print(row)


def source_of(path: Path, seed: int, **declared: Any) -> Source:
    """The texts, split by a key of this seed's own."""
    key = hashlib.sha256(f"AG News {seed}".encode()).digest()
    return open_source(f"csv:{path}", owner_key=key, classes=DECLARED["classes"], **declared)


def plan_of(source: Source, epsilon: float) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        examples=source.examples, batch_size=BATCH_SIZE, steps=STEPS, epsilon=epsilon, delta=DELTA
    )


def measure(path: Path, model: str, epsilon: float, seed: int, folder: Path) -> dict[str, float]:
    """Test accuracy of one run, and what it took."""
    began = time.monotonic()
    directory = folder / f"{model}-{epsilon:g}-{seed}"
    how: dict[str, Any] = {"directory": directory, "seed": seed, "threads": 1, "keep": 0}
    if model == DEFAULT:
        run = sfumato.train(None, source_of(path, seed), epsilon=epsilon, delta=DELTA, **how)
    else:
        source = source_of(path, seed, length=DECLARED["length"], vocabulary=DECLARED["vocabulary"])
        name, at_one = MODELS[model]
        plan = plan_of(source, epsilon)
        rate = at_one * plan_of(source, 1.0).noise_multiplier / plan.noise_multiplier
        how |= {"learning_rate": float(f"{rate:.2g}")}
        run = sfumato.train(name, source, plan, **how)
    return {"accuracy": round(run.accuracy, 5), "seconds": round(time.monotonic() - began, 1)}


def summary(runs: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Means, and the mean difference that layer norm makes, with their standard errors."""

    def accuracies(model: str, epsilon: float) -> dict[int, float]:
        keys = {seed: f"{model}, epsilon {epsilon:g}, seed {seed}" for seed in SEEDS}
        return {seed: runs[key]["accuracy"] for seed, key in keys.items() if key in runs}

    rows = []
    for epsilon in EPSILONS:
        without, with_norm = (accuracies(model, epsilon) for model in MODELS)
        rows.append(
            {
                "epsilon": epsilon,
                "BiLSTM-DL": figure(list(without.values())),
                "LN-BiLSTM-DL": figure(list(with_norm.values())),
                "difference": figure([with_norm[seed] - without[seed] for seed in with_norm.keys() & without.keys()]),
                "default model": figure(list(accuracies(DEFAULT, epsilon).values())),
            }
        )
    return rows


def figure(values: list[float]) -> dict[str, float | int | None]:
    """Their mean and its standard error, None of fewer than two."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {
        "mean": round(statistics.mean(values), 4) if values else None,
        "standard_error": None if error is None else round(error, 4),
        "of": len(values),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
