"""Expected calibration error before and after a temperature.

    python benchmarks/trust/calibration.py NAME SOURCE [--epsilon 3]

Trains with no option but the budget, and publishes figures for the same epsilon. Two temperatures: the one that is
chosen from that budget, and one that is fitted on a half of the test part that is taken for public, and measured on the
other half. Errors are over 15 bins of equal width; "none" is what the estimate comes to, in the mean of 200 draws, for
labels that have just the probabilities that the model gives after the first temperature: no model has less.
With digits every fifth of all images is a test part once, and the five are taken together. Adds a row called NAME to
results/calibration.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.evaluation import accuracy
from sfumato.evaluation.temperature import fit_temperature

RESULT = RESULTS / "calibration.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("source")
    parser.add_argument("--epsilon", type=float, default=3.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        sources = fifths(place) if given.source == "digits" else [given.source]
        parts = [measured(spec, given.epsilon, place / f"run-{number}") for number, spec in enumerate(sources)]
    before, chosen, public = ([part[which] for part in parts] for which in ("before", "chosen", "public"))
    temperatures = {which: [part[f"{which} temperature"] for part in parts] for which in ("chosen", "public")}
    row = {
        "epsilon": given.epsilon,
        "images": sum(len(labels) for _, labels in before),
        "accuracy": together(before)[1],
        "before": together(before)[0],
        "chosen from the budget": together(chosen)[0],
        "fitted on public data": together(public)[0],
        "none": floor(chosen),
        "temperatures": temperatures,
        "published": [part["published"] for part in parts],
    }
    rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(dict(sorted((rows | {given.name: row}).items())), indent=2) + "\n")
    print(json.dumps(row, indent=2))


def fifths(place: Path) -> list[str]:
    """Five sources in which every image of scikit-learn's digits is in the test part once."""
    images, labels = load_digits(return_X_y=True)
    images = np.round(images * 255 / 16).astype(np.uint8).reshape(-1, 8, 8)
    turns = np.random.default_rng(0).permutation(len(images)) % 5
    for turn in range(5):
        test = turns == turn
        parts = {"x_train": images[~test], "y_train": labels[~test], "x_test": images[test], "y_test": labels[test]}
        np.savez(place / f"{turn}.npz", **parts)
    return [f"npz:{place}/{turn}.npz" for turn in range(5)]


def measured(spec: str, epsilon: float, place: Path) -> dict:
    """Logits and labels of the test part, as they are, and over each temperature."""
    source = sfumato.open_source(spec, owner_key=sfumato.owner_key(), public=False)
    run = sfumato.train(None, source, directory=place, epsilon=epsilon, report_epsilon=epsilon, keep=0)
    assert run.published is not None
    loaded = run.load()
    module, transform = loaded.module_for(source)
    outputs = accuracy.logits(module, source.test, transform, torch.device("cpu")).double()
    labels = torch.from_numpy(source.test.labels)
    half = torch.from_numpy(np.random.default_rng(1).permutation(len(labels)) % 2 == 0)
    public = fit_temperature(outputs[half], labels[half], loss="softmax")
    return {
        "before": (outputs, labels),
        "chosen": (outputs / loaded.temperature, labels),
        "public": (outputs[~half] / public, labels[~half]),
        "chosen temperature": loaded.temperature,
        "public temperature": public,
        "published": {name: getattr(run.published, name) for name in ("accuracy", "calibration_error")},
    }


def together(parts: list) -> tuple[float, float]:
    """Expected calibration error and accuracy of several parts taken together."""
    outputs, labels = (torch.cat([part[which] for part in parts]) for which in (0, 1))
    found = accuracy.calibration(outputs, labels, loss="softmax")
    assert found is not None
    return found.error, (outputs.argmax(1) == labels).double().mean().item()


def floor(parts: list) -> float:
    """What the estimate is in the mean where the probabilities are right."""
    generator, outputs = torch.Generator().manual_seed(0), torch.cat([part[0] for part in parts])
    said = outputs.softmax(1)
    drawn = (torch.multinomial(said, 1, generator=generator).flatten() for _ in range(200))
    return float(np.mean([together([(outputs, labels)])[0] for labels in drawn]))


if __name__ == "__main__":
    main()
