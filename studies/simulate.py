"""Settings for a long run from short ones: every setting at a fraction of its batch and noise, and how well that held.

For instance: python studies/simulate.py folder:public-pictures --public --epsilon 3 --factor 16 --confirm 1 --vary
learning-rate=0.3,1,3

Source: Sander, Stock and Sablayrolles 2023, "TAN without a burn: scaling laws of DP-SGD" (arXiv 2210.03403).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `studies`

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.cli.options import recipe
from sfumato.cli.options.choices import PrivateChoices, stem_of
from sfumato.cli.output import console
from sfumato.cli.output.search_output import costs
from sfumato.cli.parser import argument, option
from sfumato.cli.verbs.sweep import BEST, Sweep, read_space
from sfumato.experiment import defaults
from sfumato.observers.progress import ProgressBars
from sfumato.search import Scoring
from sfumato.search.space import VARIED, line_of, plain
from studies import command, simulation
from studies.simulation import LargerRuns, Simulation

SIZES = ("epsilon", "noise_multiplier", "batch_size", "steps")


@dataclass(frozen=True, kw_only=True)
class Simulate(PrivateChoices):
    """Options are as in sfumato sweep, and those of batch, noise, steps and epsilon mean the full size."""

    what: str = argument("SOURCE|RECIPE")
    """A source or a recipe."""

    factor: int
    """Factor by which batch and noise of the simulated runs are smaller."""
    vary: tuple[tuple[str, ...], ...] = option(
        "NAME=VALUES [NAME=VALUES ...]", "the recipe's table [sweep]; repeatable", default=()
    )
    """Options to vary: NAME=A,B,C, NAME=LOW..HIGH, or NAME=log:LOW..HIGH."""
    confirm: int = 0
    """Number of the best settings to train at full size too, to check the predictions."""
    candidates: int | None = option("NUMBER", "the whole grid")
    """Number of settings to draw at random."""
    validation: float | None = option("SHARE", "0.1")
    """Share of the training part that is held out for scoring."""
    score_on: str | None = option("SOURCE")
    """Score on the test part of this public source instead."""
    processes: int | None = option("NUMBER", "1")
    """Number of runs at once."""
    dry_run: bool = False
    """Show what would run, and spend nothing."""

    def run(self) -> None:
        """Search by simulation, and show the results."""
        if recipe.is_embedding(self.what):
            raise SfumatoError(
                "a simulation counts correct predictions, which embeddings do not give", "search with sweep"
            )
        asked = Sweep(**{one.name: getattr(self, one.name) for one in fields(Sweep) if hasattr(self, one.name)})
        chosen = asked.with_recipe(self.what)
        given = [text for together in self.vary for text in together]
        rules = read_space(given, self.what, VARIED, trust_code=self.trust_code)
        place = Path(chosen.output or f"runs/{stem_of(chosen.what)}-sweep")
        share = {} if chosen.validation is None else {"validation": chosen.validation}
        with ProgressBars() as progress:
            found = simulation.simulate(
                (replace(chosen, epsilon=None) if "epsilon" in rules else chosen).trial(),
                rules,
                self.factor,
                directory=place,
                confirm=self.confirm,
                candidates=chosen.candidates,
                scoring=Scoring(**share, score_on=chosen.score_on),
                processes=chosen.processes or 1,
                dry_run=self.dry_run,
                progress=progress,
            )
        if self.dry_run:
            _announce(found, json=self.json)
            return
        write(place / BEST, chosen.best_recipe(found).encode(), private=True)
        _show(found, place / BEST, _command(chosen, found), json=self.json)


def command_of(verb: str, what: str, options: Mapping[str, Any], switches: Mapping[str, bool]) -> str:
    """The command line of a verb with these options.

    Args:
        verb: the verb of sfumato.
        what: its argument.
        options: the values of options by name. The items of a list follow the option one by one, except for `window`,
            whose items are joined by a comma.
        switches: options without a value by name, and whether they are on.

    >>> command_of("train", "folder:my pictures", {"learning_rate": 0.5, "flip": True}, {"public": True})
    "sfumato train 'folder:my pictures' --learning-rate 0.5 --flip True --public"
    """
    words = ["sfumato", verb, what]
    for name, value in options.items():
        values = value if isinstance(value, (tuple, list)) else (value,)
        joined = [",".join(map(str, values))] if name == "window" else [str(one) for one in values]
        words += [f"--{name.replace('_', '-')}", *joined]
    words += [f"--{name.replace('_', '-')}" for name, on in switches.items() if on]
    return shlex.join(words)


def _command(chosen: Sweep, found: Simulation) -> str:
    """The command that trains at full size with the best settings."""
    options = {name: value for name, value in chosen.best_options(found).items() if name != "source"}
    if not {"epsilon", "noise_multiplier"} & set(options):
        options = {"epsilon": defaults.EPSILON, **options}
    switches = [one.name for one in fields(chosen) if isinstance(one.default, bool)]
    return command_of(
        "train",
        chosen.source or "",
        {name: value for name, value in options.items() if name not in switches},
        {name: bool(options.get(name)) for name in switches} | {"public": chosen.public},
    )


def _announce(found: Simulation, *, json: bool) -> None:
    """Print the planned runs of a simulation, and the full-size runs that they simulate."""
    rows = [
        {"change": plain(change), "simulated": _sizes(small), "full_size": _sizes(full)}
        for change, small, full in zip(found.changes, found.plans, found.full_plans, strict=True)
    ]
    if json:
        console.print_json({"simulate": found.simulate, "runs": rows, "notes": found.notes})
        return
    for change, row in zip(found.changes, rows, strict=True):
        console.result(f"{line_of(change)}: {_sizes_text(row['simulated'])}, for {_sizes_text(row['full_size'])}")
    for line in found.notes:
        console.note(line)
    console.note(console.dry_run_note(f"train {len(rows)} runs at 1/{found.simulate} of their batch and noise"))


def _show(found: Simulation, best: Path, command: str, *, json: bool) -> None:
    """Print all simulated runs, the best one first; the larger runs; and the command for the full size."""
    if json:
        data = {"search": "public", "simulate": found.simulate, **found.to_dict()}
        console.print_json({**data, "notes": found.notes, "train": command})
        return
    names = list(found.rows[0]["change"])
    lines = [
        [
            *(_cell(row["change"][name]) for name in names),
            *(f"{row['accuracy']:.2%}", str(row["batch_size"]), f"{row['noise_multiplier']:.4g}"),
            *(f"{row['epsilon']:.3f}", str(row["run"])),
        ]
        for row in found.rows
    ]
    head = (*(name.replace("_", " ") for name in names), "accuracy", "batch", "noise", "its epsilon", "run")
    console.result()
    console.table(head, lines)
    console.result()
    console.note(
        f"simulated at 1/{found.simulate} of their batch and noise; scored on {found.scored_on:,} records that no run "
        "was trained on"
    )
    for line in found.notes:
        console.note(line)
    for line in costs(found):
        console.result(line)
    for larger in found.larger_runs:
        _show_larger(larger, found.simulate)
    plan = found.full_plan
    console.result(f"best           {line_of(found.best)}")
    full = f"{_sizes_text(_sizes(plan))} at delta {plan.delta!r}"
    console.result(f"at full size   {full}, for the N = {plan.population:,} that are trained on here")
    console.result(f"predicted      accuracy {found.predicted:.2%}{_accuracy_text(found)}")
    console.result()
    console.note(f"{best.parent / 'sweep.svg'}   accuracy by setting")
    console.note(f"sfumato train {best}   trains with the best settings on the whole training part; or, as a command:")
    console.note(command)


def _show_larger(larger: LargerRuns, simulate: int) -> None:
    """Print predicted and measured accuracies."""
    size = "full size" if larger.simulate == 1 else f"1/{larger.simulate} of batch and noise"
    console.result(f"Predicted at 1/{simulate}, found at {size}:")
    lines = [
        (
            line_of(row["change"]),
            *(f"{row['predicted']:.2%}", f"{row['accuracy']:.2%}"),
            *(f"{100 * (row['accuracy'] - row['predicted']):+.2f}", f"{row['epsilon']:.3f}", str(row["run"])),
        )
        for row in larger.rows
    ]
    console.result()
    console.table(("change", "predicted", "found", "difference", "its epsilon", "run"), lines, texts=1)
    console.result()
    correlation, chance = larger.rank_correlation, f"one standard error of {larger.scored_on:,} records"
    ranks = "" if correlation is None else f"; rank correlation {correlation:.2f} (Spearman's)"
    console.result(
        f"found minus predicted: {100 * larger.difference:+.2f} points on average, at most "
        f"{100 * larger.largest_difference:.2f} in size; {chance} is {100 * larger.standard_error:.2f}{ranks}"
    )
    console.result()


def _accuracy_text(found: Simulation) -> str:
    """A text with the accuracy of the best settings at full size; empty if they were not trained there."""
    last = found.larger_runs[-1] if found.larger_runs else None
    if last is None or last.simulate != 1:
        return ""
    row: Mapping[str, Any] = next(row for row in last.rows if row["change"] == plain(found.best))
    return f", found {row['accuracy']:.2%} at full size"


def _sizes(plan: Any) -> dict[str, Any]:
    values = (plan.epsilon(), plan.noise_multiplier, plan.expected_batch_size, plan.steps)
    return dict(zip(SIZES, values, strict=True))


def _sizes_text(sizes: Mapping[str, Any]) -> str:
    return (
        f"epsilon {sizes['epsilon']:.4g}, batch {sizes['batch_size']:,}, noise {sizes['noise_multiplier']:.4g}, "
        f"{sizes['steps']:,} steps"
    )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(command.main("simulate"))
