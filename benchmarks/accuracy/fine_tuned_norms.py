"""Normalisation in fine-tuning: python benchmarks/accuracy/fine_tuned_norms.py CIFAR10 CIFAR100 PLACE [--seeds 3]

TensorFlow's tutorial network bare, with layer norm, and with batch norm by the statistics of 128 public images, is
pre-trained on CIFAR-100 without privacy, for so many steps as two cores allow, and its linear layers are fine-tuned on
CIFAR-10 under privacy: the order of table 6 of Davody et al. 2020. The learning rate of each is the best of three with
a further key at epsilon 2. Both sources are npz archives and taken as public. Goes on where it stopped; writes
results/fine-tuned-norms.json, to which several processes may add, each with another --only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.experiment import Experiment
from sfumato.randomness import RunKey
from sfumato.runs.directory import RunDirectory
from sfumato.training.preparation.prepare import prepare
from sfumato.training.run import execute

RESULT = RESULTS / "fine-tuned-norms.json"
FORMS = {"public batch norm": ",norm=batch", "layer norm": ",norm=layer", "none": ""}
RATES = (0.1, 0.4, 1.6)
TUNED_WITH, TUNED_AT = 1000, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("private", type=Path)
    parser.add_argument("public", type=Path)
    parser.add_argument("place", type=Path, help="for what is pre-trained")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0, 2.0])
    parser.add_argument("--pretraining", type=int, default=3000, help="steps of 128 images")
    parser.add_argument("--only", nargs="+", choices=FORMS, help="some of the forms")
    options = parser.parse_args()
    source = sfumato.open_source(f"npz:{options.private}", owner_key=bytes(32), public=True)
    for seed in range(options.seeds):
        for name in options.only or FORMS:
            fine_tuned(source, name, seed, options)


def fine_tuned(source: Any, name: str, seed: int, options: argparse.Namespace) -> None:
    """The runs of a form with that key, as far as they are not known; the form is pre-trained first."""
    form, begun, found = FORMS[name], options.place / name.replace(" ", "-"), known().get(name, {})
    if not (begun / "done").exists():
        found["pre-training"] = {"steps": options.pretraining}
        found["pre-training"]["accuracy"] = pretrained(form, options.public, begun, options.pretraining)
    tried = found.setdefault("tried", {})
    for rate in RATES:
        if str(rate) not in tried:
            tried[str(rate)] = tuned(source, form, options.public, begun, TUNED_AT, rate, TUNED_WITH)
    rate = float(max(tried, key=tried.__getitem__))
    for epsilon in options.epsilons:
        cell = found.setdefault(f"{epsilon:g}", {})
        if str(seed) not in cell:
            cell[str(seed)] = tuned(source, form, options.public, begun, epsilon, rate, seed)
            RESULT.write_text(json.dumps(known() | {name: found}, indent=1) + "\n")
            print(f"{name:<18} epsilon {epsilon:g} seed {seed} rate {rate} {cell[str(seed)]:.2%}", flush=True)


def known() -> dict[str, Any]:
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def pretrained(form: str, public: Path, place: Path, steps: int) -> float:
    """Accuracy on the public classes of the run that is written to `place`."""
    how = {"directory": place, "public": True, "device": "cpu", "threads": 1}
    length = {"steps": steps, "batch_size": 128, "learning_rate": 0.05, "schedule": "cosine", "weight_decay": 5e-4}
    views = {"views": 1, "shift": 4, "flip": True}
    return sfumato.pretrain(f"tf-tutorial{form}", f"npz:{public}", **how, **length, **views, seed=0).accuracy


def tuned(source: Any, form: str, public: Path, begun: Path, epsilon: float, rate: float, seed: int) -> float:
    """Test accuracy after private fine-tuning of the linear layers."""
    experiment = Experiment(
        model=f"tf-tutorial{form}",
        pretrained=str(begun),
        trainable=("hidden*", "norm3.*", "norm4.*", "head.*") if form else ("hidden*", "head.*"),
        epsilon=epsilon,
        delta=1e-5,
        batch_size=500,
        steps=60,
        optimizer="momentum",
        schedule="cosine",
        ema=0.0,
        learning_rate=rate,
        **({"normalisation": "public-batch", "public_data": f"npz:{public}"} if form == ",norm=batch" else {}),
    )
    plan, settings, _ = experiment.decide(source)
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(
            None, source, plan, settings, device="cpu", threads=1, key=RunKey.from_seed(seed, "norms"), keep=0
        )
        return execute(job, RunDirectory(Path(folder) / "run")).accuracy


if __name__ == "__main__":
    main()
