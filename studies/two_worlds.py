"""Two worlds of De et al. 2022, tables 8 and 9: models with one example and without it, told apart.

For instance: python studies/two_worlds.py mnist.npz --table 8, or --table 9 --epsilon 8,1

D is the first 100 training images of MNIST, or all 60,000, and delta is 1 / |D|. Phase I (table 8) tries the 90 choices
of the paper with linear models in each world; phase II (table 9) trains models in each world by the best of them, takes
the threshold from half of them, and bounds epsilon by the other half. The paper has LeNets, 1,000 for each choice and
500,000 in each world of phase II, of which 490,000 give the bound.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `studies`

import numpy as np
import torch

from sfumato._checks import SfumatoError
from sfumato.audit import largest_provable
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.output import console
from sfumato.cli.parser import argument
from studies import command
from studies.worlds import Choice, Problem, World, choices

CLASSES = 10
SIZES = {100: ((64,), (50, 100)), 60_000: ((4096,), (500, 1000))}
"""Table 8: batch sizes and numbers of steps by |D|."""
PAPER = {
    100: {8.0: (4.327, 0.91, 0.67), 1.0: (0.361, 0.59, 0.13), 4.0: (2.461, 0.79, 0.43), 2.0: (0.837, 0.66, 0.22)},
    60_000: {8.0: (2.153, 0.72, 0.31), 1.0: (0.279, 0.54, 0.06), 4.0: (1.139, 0.62, 0.17), 2.0: (0.456, 0.57, 0.10)},
}
"""Table 9 by |D|: (lower bound, AUC, advantage) by nominal epsilon."""
PAPERS_MODELS = 490_000
CHOICE = ("epsilon", "z", "learning rate", "clipping norm", "batch size", "steps", "total variation", "")
HEAD = ("epsilon", "models", "at least", "provable", "AUC", "advantage", "paper", "its AUC", "its advantage", "")


@dataclass(frozen=True, kw_only=True)
class TwoWorlds(PrintsJson):
    """What is tried."""

    mnist: str = argument("MNIST")
    """The file mnist.npz."""
    table: Literal[8, 9] = 9
    """8 for phase I: every choice, the most telling first. 9 for both phases."""
    records: Literal[100, 60000] = 100
    """|D|: 100, or 60000."""
    models: int = 6000
    """Number of models in each world, in phase II."""
    tried: int = 50
    """Number of models in each world for each choice, in phase I."""
    epsilon: float | tuple[float, ...] = command.numbers((8.0, 1.0, 4.0, 2.0))
    """Nominal epsilon, or several."""
    confidence: float = 0.999
    """Confidence level of the bounds."""

    def run(self) -> None:
        """Run phase I, or both phases, for each epsilon, and print the table."""
        torch.set_num_threads(1)
        epsilons = self.epsilon if isinstance(self.epsilon, tuple) else (self.epsilon or 0.0,)
        if self.table == 8:
            self._print_choices(epsilons)
            return
        rows = [self._row(epsilon) for epsilon in epsilons]
        if self.json:
            most = largest_provable(PAPERS_MODELS, 1 / self.records, self.confidence)
            found = {"confidence": self.confidence, "largest_provable_by_the_paper": most, "rows": rows}
            console.print_json(found)
            return
        console.table(HEAD, [_cells(row) for row in rows])

    def _print_choices(self, epsilons: Sequence[float]) -> None:
        """Print all choices for each epsilon, with the total variation distances of their losses on z."""
        rows = [
            {"epsilon": epsilon, **asdict(choice), "total_variation": apart}
            for epsilon in epsilons
            for choice, apart in self.choose(self._problem(epsilon))
        ]
        if self.json:
            console.print_json({"records": self.records, "models": self.tried, "rows": rows})
            return
        shown = ("epsilon", "canary", "learning_rate", "max_norm", "batch_size", "steps")
        console.table(
            CHOICE, [[*(f"{row[name]}" for name in shown), f"{row['total_variation']:.3f}", ""] for row in rows]
        )

    def choose(self, problem: Problem) -> list[tuple[Choice, float]]:
        """Phase I: the choices with their total variation distances, the largest first."""
        batch_sizes, steps = SIZES[self.records]
        return problem.choose(choices(batch_sizes=batch_sizes, steps=steps), models=self.tried)

    def _row(self, epsilon: float) -> dict[str, Any]:
        """The results for one epsilon, with those of the paper."""
        these, began = self._problem(epsilon), time.perf_counter()
        best, apart = self.choose(these)[0]
        console.note(f"epsilon {epsilon:g}: {best}, total variation {apart:.3f}")
        seconds, began = time.perf_counter() - began, time.perf_counter()
        measured = these.measure(best, models=self.models, confidence=self.confidence)
        console.note(f"epsilon {epsilon:g}: {measured.sentence}")
        paper = dict(zip(("epsilon", "auc", "advantage"), PAPER[self.records].get(epsilon, ()), strict=False))
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
            images, labels = stored["x_train"][: self.records], stored["y_train"][: self.records]
            tests, answers = stored["x_test"], stored["y_test"]
        if len(labels) < self.records:
            raise SfumatoError(
                f"records is {self.records}, but {self.mnist} has {len(labels)} images", "leave --records out"
            )
        first = {digit: tests[int(np.flatnonzero(answers == digit)[0])] for digit in (7, 6, 0)}
        noise = np.random.default_rng(0).random(images[0].shape) * 255
        canaries = {"blank": (np.zeros_like(images[0]), 0), "noise": (noise, 0)}
        canaries |= {f"{digit} as {digit + 1}": (image, digit + 1) for digit, image in first.items()}
        return Problem(
            records=_world(images, labels),
            canaries={name: _world(image[None], [label]) for name, (image, label) in canaries.items()},
            classes=CLASSES,
            epsilon=epsilon,
            delta=1 / self.records,
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
