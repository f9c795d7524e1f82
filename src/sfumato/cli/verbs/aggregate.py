"""sfumato aggregate: a better model from the weights that a finished run has kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.cli.options.choices import OfModel
from sfumato.cli.options.spellings import Number, Path, SourceText, Whole
from sfumato.cli.output import console

if TYPE_CHECKING:
    from sfumato.training.conclusion.aggregating import Aggregate as Made


@dataclass(frozen=True, kw_only=True)
class Aggregate(OfModel):
    """Make a model of the weights that a finished run has kept. It costs its training data nothing more.

    By rule it is of as many of the last weights as noise alone explains. With a source to score on, all numbers of them
    (or decays) are tried: on public data at no cost, on private data for an epsilon of their own.
    """

    method: str = "upa"
    """upa: mean of the weights. ema: exponential moving average of them. opa: mean of the models' outputs. omv:
    majority vote of the models."""
    last: Whole = None
    """Number of last checkpoints to use. (default: by a rule, from the weights themselves; or the best on
    --score-on)"""
    decay: Number = None
    """For ema: decay per step. (default: the same mean age as the rule's mean; or the best on --score-on)"""
    score_on: SourceText = None
    """Source on whose test part all candidates are scored."""
    public: bool = False
    """That source is public, so choosing by it costs nothing. So are digits and torchvision."""
    epsilon: Number = None
    """If that test part is private: epsilon that the choice may cost each of its records. (default: private records are
    refused)"""
    output: Path = None
    """Path of the model file. (default: aggregate-METHOD.safetensors in the run directory)"""

    def run(self) -> None:
        """Make the file and say how it was chosen."""
        from sfumato.training.conclusion.aggregating import aggregate

        made = aggregate(
            self.run_directory,
            self.method,  # type: ignore[arg-type]
            last=self.last,
            decay=self.decay,
            score_on=self.score_on,
            public=self.public,
            epsilon=self.epsilon,
            output=self.output,
            model=self.model,
        )
        if self.json:
            data = {"method": made.recipe.method, "steps": list(made.recipe.steps), "decay": made.recipe.decay}
            data |= {"reason": made.reason, "epsilon": made.epsilon}
            console.as_json({**data, "candidates": _scored(made), "model": str(made.path)})
        else:
            self._show(made)

    def _show(self, made: Made) -> None:
        """How the candidates did, which was chosen why, and what that costs."""
        if rows := _scored(made):
            name = "decay" if made.recipe.method == "ema" else "weights"
            marks = ["<- taken" if one == made.recipe else "" for one in made.candidates]
            lines = [(f"{row[name]}", f"{row['accuracy']:.2%}", mark) for row, mark in zip(rows, marks, strict=True)]
            console.table((name.replace("weights", "last weights"), "accuracy", ""), lines)
        steps = made.recipe.steps
        of = f"{len(steps)} weights after steps {steps[0]} to {steps[-1]}"
        if len(steps) == 1:
            of = f"weights after step {steps[0]} alone, the last ones"
        fall = "" if made.recipe.decay is None else f", decay {made.recipe.decay:g}"
        console.result(f"{made.recipe.method} of the {of}{fall} ({made.reason})")
        if made.epsilon is None:
            console.result("It follows from what the run has released: its promise stays as it is, at no further cost.")
        else:
            console.result(
                f"The run's promise stays as it is. For each record that was scored on, this choice is "
                f"({made.epsilon:g}, 0)-differentially private; further choices by the same records (they are on "
                "your list of uses) and several records of one person add up. A person in one part pays for that "
                "part alone, and one in both pays the sum."
            )
        console.note(f"{made.path}   the model")
        console.note(f"sfumato evaluate {made.path} SOURCE   measures it")
        if made.beside_the_run:
            console.note(f"sfumato verify {self.run_directory}   computes it again from the kept weights")


def _scored(made: Made) -> list[dict[str, Any]]:
    """The candidates that were scored, and their accuracies."""
    return [
        {"weights": len(one.steps), "decay": one.decay, "accuracy": share}
        for one, share in zip(made.candidates, made.accuracies or (), strict=False)
    ]
