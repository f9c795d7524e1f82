"""Two worlds of De et al. 2022, tables 8 and 9: models with one example and without it, told apart.

For instance: python studies/two_worlds.py mnist.npz --epsilon 8,1

D is the first 100 training images of MNIST, delta 1 / 100. Phase I tries the 54 choices of table 8 with linear models
in each world; phase II trains models in each world by the best of them, takes the threshold from half of them, and
bounds epsilon by the other half. The paper has LeNets, 500,000 in each world, of which 490,000 give the bound.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `studies`

import numpy as np
import torch

from sfumato._checks import SfumatoError
from sfumato.audit import largest_provable
from sfumato.cli.options import spellings
from sfumato.cli.options.choices import PrintsJson
from sfumato.cli.output import console
from studies import command
from studies.worlds import Problem, World, choices

RECORDS, CLASSES = 100, 10
PAPER = {8.0: (4.327, 0.91, 0.67), 1.0: (0.361, 0.59, 0.13), 4.0: (2.461, 0.79, 0.43), 2.0: (0.837, 0.66, 0.22)}
"""Table 9 for |D| = 100: (lower bound, AUC, advantage) by nominal epsilon."""
PAPERS_MODELS = 490_000
HEAD = ("epsilon", "models", "at least", "provable", "AUC", "advantage", "paper", "its AUC", "its advantage", "")


@dataclass(frozen=True, kw_only=True)
class TwoWorlds(PrintsJson):
    """What is tried."""

    mnist: Annotated[str, spellings.positional("MNIST")]
    """The file mnist.npz."""
    models: int = 6000
    """Number of models in each world, in phase II."""
    tried: int = 50
    """Number of models in each world for each choice, in phase I."""
    epsilon: command.Numbers = (8.0, 1.0, 4.0, 2.0)
    """Nominal epsilon, or several."""
    confidence: float = 0.999
    """Confidence level of the bounds."""

    def run(self) -> None:
        """Run both phases for each epsilon, and print the table."""
        torch.set_num_threads(1)
        epsilons = self.epsilon if isinstance(self.epsilon, tuple) else (self.epsilon or 0.0,)
        rows = [self._row(epsilon) for epsilon in epsilons]
        if self.json:
            most = largest_provable(PAPERS_MODELS, 1 / RECORDS, self.confidence)
            found = {"confidence": self.confidence, "largest_provable_by_the_paper": most, "rows": rows}
            console.print_json(found)
            return
        console.table(HEAD, [_cells(row) for row in rows])

    def _row(self, epsilon: float) -> dict[str, Any]:
        """The results for one epsilon, with those of the paper."""
        these, began = self._problem(epsilon), time.perf_counter()
        best, apart = these.choose(choices(), models=self.tried)[0]
        console.note(f"epsilon {epsilon:g}: {best}, total variation {apart:.3f}")
        seconds, began = time.perf_counter() - began, time.perf_counter()
        measured = these.measure(best, models=self.models, confidence=self.confidence)
        console.note(f"epsilon {epsilon:g}: {measured.sentence}")
        paper = dict(zip(("epsilon", "auc", "advantage"), PAPER.get(epsilon, ()), strict=False))
        return {
            **measured.to_dict(),
            "seconds": time.perf_counter() - began,
            "paper": paper,
            "tried": self.tried,
            "total_variation": apart,
            "seconds_of_phase_one": seconds,
        }

    def _problem(self, epsilon: float) -> Problem:
        """D and the canaries, as flattened pixels in [0, 1]."""
        if not Path(self.mnist).is_file():
            raise SfumatoError(f"there is no file {self.mnist}", "give the file mnist.npz")
        with np.load(self.mnist) as stored:
            images, labels = stored["x_train"][:RECORDS], stored["y_train"][:RECORDS]
            tests, answers = stored["x_test"], stored["y_test"]
        seven = tests[int(np.flatnonzero(answers == 7)[0])]
        noise = np.random.default_rng(0).random(seven.shape) * 255
        canaries = {"blank": (np.zeros_like(seven), 0), "noise": (noise, 0), "mislabelled": (seven, 8)}
        return Problem(
            records=_world(images, labels),
            canaries={name: _world(image[None], [label]) for name, (image, label) in canaries.items()},
            classes=CLASSES,
            epsilon=epsilon,
            delta=1 / RECORDS,
        )


def _world(images: Any, labels: Any) -> World:
    return World(
        torch.as_tensor(images / 255, dtype=torch.float32).flatten(1), torch.as_tensor(labels, dtype=torch.int64)
    )


def _cells(row: dict[str, Any]) -> list[str]:
    bound, paper = row["bound"], row["paper"]
    figures = (bound["epsilon"], bound["at_most"], row["auc"], row["advantage"])
    shown = [f"{figure:.2f}" for figure in figures] + [
        f"{paper.get(name, '')}" for name in ("epsilon", "auc", "advantage")
    ]
    return [f"{row['epsilon']:g}", f"{row['models']:,}", *shown, ""]


if __name__ == "__main__":
    sys.exit(command.main("two_worlds"))
