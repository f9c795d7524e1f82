"""sfumato aggregate: makes a better model from the kept weights of a finished run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.cli.options.run_options import ModelOptions
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table
from sfumato.cli.parser import option

if TYPE_CHECKING:
    from sfumato.training.conclusion.aggregating import Aggregate as Result


@dataclass(frozen=True, kw_only=True)
class Aggregate(ModelOptions):
    """Average the weights that a finished run has kept. This adds nothing to the privacy cost of its training data.

    By default it averages as many of the last weights as noise alone explains. With a source to score on, all numbers
    of weights (or decays) are tried: at no cost on public data, for an epsilon of their own on private data.
    """

    method: str = "upa"
    """upa: mean of the weights. ema: exponential moving average of them. opa: mean of the models' outputs. omv:
    majority vote of the models."""
    last: int | None = None
    """Number of last checkpoints to use. (default: by a rule, from the weights themselves; or the best on
    --score-on)"""
    decay: float | None = None
    """For ema: decay per step. (default: the same mean age as the rule's mean; or the best on --score-on)"""
    score_on: str | None = option("SOURCE")
    """Source on whose test part all candidates are scored."""
    public: bool = False
    """The scoring source is public, so choosing by it costs nothing."""
    epsilon: float | None = None
    """For a private test part: epsilon that the choice may cost each of its records. (default: private records are
    refused)"""
    output: str | None = option("PATH")
    """Path of the model file. (default: aggregate-METHOD.safetensors in the run directory)"""

    def run(self) -> None:
        """Write the model file and print how the weights were chosen."""
        from sfumato.training.conclusion.aggregating import aggregate

        result = aggregate(
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
        recipe = result.recipe
        data: dict[str, Any] = {"method": recipe.method, "steps": list(recipe.steps), "decay": recipe.decay}
        data |= {
            "reason": result.reason,
            "epsilon": result.epsilon,
            "candidates": _scored(result),
            "model": str(result.path),
        }
        console.show(data, *self._parts(result, data), json=self.json)

    def _parts(self, result: Result, data: dict[str, Any]) -> Iterator[str | Table]:
        """The scores of the candidates, the choice and its reason, and the privacy cost."""
        steps = data["steps"]
        if data["candidates"]:
            columns = {"decay": "{decay}"} if data["method"] == "ema" else {"last weights": "{weights}"}
            marks = ["<- taken" if candidate == result.recipe else "" for candidate in result.candidates]
            rows = [row | {"mark": mark} for row, mark in zip(data["candidates"], marks, strict=True)]
            yield Table(rows, columns | {"accuracy": "{accuracy:.2%}", "": "{mark}"})
        of = f"{len(steps)} weights after steps {steps[0]} to {steps[-1]}"
        if len(steps) == 1:
            of = f"weights after step {steps[0]} (the last one)"
        fall = "" if data["decay"] is None else f", decay {data['decay']:g}"
        yield f"{data['method']} of the {of}{fall} ({result.reason})"
        if result.epsilon is None:
            yield "It uses only what the run has released: the run's guarantee is unchanged, and nothing more is spent."
        else:
            yield (
                f"The run's guarantee is unchanged. For each scored record, this choice is ({result.epsilon:g}, "
                "0)-differentially private. Further choices by the same records (they are on your list of uses) and "
                "several records of one person add up. A person in one part pays for that part alone; a person in both "
                "pays the sum."
            )
        yield Note(f"{result.path}   the model")
        yield Note(f"sfumato evaluate {result.path} SOURCE   measures it")
        if result.beside_the_run:
            yield Note(f"sfumato verify {self.run_directory}   computes it again from the kept weights")


def _scored(result: Result) -> list[dict[str, Any]]:
    """The scored candidates and their accuracies."""
    return [
        {"weights": len(candidate.steps), "decay": candidate.decay, "accuracy": share}
        for candidate, share in zip(result.candidates, result.accuracies or (), strict=False)
    ]
