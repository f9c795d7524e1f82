"""What a small network by hand reaches beside the default: python benchmarks/accuracy/small_networks.py DATA

The default model and cnn on the digits and on a few images of MNIST and CIFAR-10 (DATA holds NAME.npz), at
epsilon 1, 3 and 8, with no option but the model. Goes on where it stopped; writes results/networks-by-hand.json.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.scale.little_data import few
from benchmarks.shared.runs import sfumato

SETS = (("digits", 0), ("mnist", 128), ("cifar10", 64))
MODELS = ("scattering", "cnn")
EPSILONS = (1, 3, 8)
RESULT = RESULTS / "networks-by-hand.json"


def main(data: Path) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["SFUMATO_HOME"] = str(place / "home")
        for name, each in SETS:
            source = name
            if each:
                np.savez(place / f"{name}-{each}.npz", **few(data / f"{name}.npz", 10, each))
                source = f"npz:{place / f'{name}-{each}.npz'}"
            for model in MODELS:
                for epsilon in EPSILONS:
                    key = f"{name}{f', 10 classes of {each}' if each else ''}, {model}, epsilon {epsilon}"
                    if key not in found:
                        found[key] = reached(source, model, epsilon, Path(tempfile.mkdtemp(dir=place)) / "run")
                        RESULT.write_text(json.dumps(found, indent=1) + "\n")
                    print(f"{key:<52}{found[key]:8.1%}", flush=True)


def reached(source: str, model: str, epsilon: float, run: Path) -> float:
    """Test accuracy of one run."""
    asked = ("--model", model, "--epsilon", str(epsilon), "--delta", "1e-5", "--output", str(run))
    return sfumato("train", source, "--public", *asked)["accuracy"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
