"""Networks whose weights are drawn anew in every step, without privacy: which of them tolerate it.

For instance: python studies/noise_study.py torchvision:MNIST --model lenet-300-100 --normalisation none,batch,layer

SOURCE must be public, or --not-private says that nothing is private; or it is a recipe (a .toml file). Weights are
drawn around their trained means in training and in the test. A study that was cut goes on when the same command is
given again, and further models, deviations and runs are added to it.

Source: Davody et al. 2020 (arXiv 2006.10919), section 2.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

sys.path.insert(0, str(FilePath(__file__).parents[1]))  # the repository root, for `studies`

from sfumato._choices import all_optional
from sfumato.cli.options.choices import NewRunChoices, stem_of
from sfumato.cli.output import console
from sfumato.cli.parser import UsageError, argument, option
from sfumato.data.declared import Texts
from sfumato.observers.progress import ProgressBars, open_with_progress
from studies import command
from studies.weight_noise import results
from studies.weight_noise.page import accuracy_cell, slowdown_cell
from studies.weight_noise.study import PAGE, noise_study

CHOICES = (
    *("deviations", "runs", "epochs", "batch_size", "learning_rates", "schedule", "shift", "flip", "seed"),
    "validation_fraction",
)
"""Fields of `Design` that are passed on unchanged."""


@dataclass(frozen=True, kw_only=True)
class NoiseStudy(NewRunChoices, all_optional(Texts)):
    """What is compared, and how it is trained. Options of sources are as in sfumato train."""

    what: str = argument("SOURCE|RECIPE")
    """A source or a recipe."""

    model: str | None = None
    """Models, separated by spaces: "lenet-300-100 lenet5"."""
    normalisation: str | None = None
    """Forms of each model, separated by commas: none for the model as given; batch, layer, group or instance for that
    normalisation after every trainable layer. (default: none)"""
    deviations: float | tuple[float, ...] | None = command.numbers()
    """Standard deviations of the weights. (default: 0,0.01,0.1,0.3,1,2,10)"""
    runs: int | None = None
    """Number of runs of each form at each deviation. (default: 10)"""
    epochs: int | None = None
    """Number of epochs of a run. (default: 5)"""
    batch_size: int | None = None
    """Number of examples in a step. (default: 128)"""
    learning_rates: float | tuple[float, ...] | None = command.numbers()
    """Learning rates of Adam. Of several, each form uses the one with the best mean accuracy over all deviations, from
    one run each that is used for nothing else. (default: 0.01,0.1,0.3)"""
    schedule: str | None = None
    """Learning rate schedule: constant, cosine, linear or step. (default: cosine)"""
    shift: int | None = None
    """Largest shift of an example in pixels. (default: 0)"""
    flip: bool | None = option("True|False", "False")
    """Whether an example may be mirrored."""
    validation_fraction: float | None = None
    """Share of the training part that is held out for choosing learning rates and for convergence curves. (default: 0,
    both use the test part)"""
    margin: float | None = None
    """A run converges if its accuracy ever exceeds the share of the largest class by this margin. (default: 0.1)"""
    share: float | None = None
    """Share of the noiseless accuracy at which the slow-down is measured. (default: 0.95)"""
    seed: int | None = None
    """The randomness of all runs is derived from this number. (default: 0)"""
    not_private: bool = False
    """Study private data without any privacy; the result says so."""

    def run(self) -> None:
        """Train, and show the results."""
        chosen = self.with_recipe(self.what)
        if chosen.model is None:
            raise UsageError("--model is missing", "give one, or several separated by spaces")
        place = FilePath(chosen.output or f"runs/{stem_of(chosen.what)}-noise-study")
        with ProgressBars() as progress:
            found = noise_study(
                open_with_progress(chosen.spec, progress),
                chosen.model.split(),
                directory=place,
                not_private=chosen.not_private,
                device=chosen.device,
                threads=chosen.threads,
                progress=progress,
                **chosen.design,
            )
        if chosen.json:
            console.print_json({**found.to_dict(), "run": str(place)})
        else:
            show(found, place)

    @property
    def design(self) -> dict[str, Any]:
        """The given fields of the study's design."""
        given = {name: getattr(self, name) for name in (*CHOICES, "margin", "share")}
        for name in ("deviations", "learning_rates"):  # a recipe may give a single number
            if isinstance(given[name], (int, float)):
                given[name] = (given[name],)
        if self.normalisation is not None:
            given["normalisations"] = tuple(self.normalisation.split(","))
        return {name: value for name, value in given.items() if value is not None}


def show(found: results.NoiseStudy, place: FilePath) -> None:
    """Print the tables of accuracies and of slow-downs."""
    plain = found.to_dict()
    deviations = found.design["deviations"]
    forms = list(dict.fromkeys(cell.model for cell in found.cells))
    head = ("deviation", *(f"{one:g}" for one in deviations), "")
    for title, figure in (("test accuracy, %", accuracy_cell), ("slow-down", slowdown_cell)):
        console.result()
        console.result(title)
        rows = [(form, *(figure(cell) for cell in plain["cells"] if cell["model"] == form), "") for form in forms]
        console.table(head, rows, texts=1)
    console.result()
    console.result(f"{found.rule} Slow-down: epochs to {found.design['share']:.0%} of the noiseless accuracy.")
    console.result(found.statement)
    console.note(f"{place / PAGE}   the report")


if __name__ == "__main__":
    sys.exit(command.main("noise_study"))
