"""The lists of trials that a sweep can run: a grid or draws, single changes, keys, budgets.

A grid, draws and single changes are searches: their runs are compared on held-out records, and the statement of each
run names the search. Keys and budgets repeat one training, and each run is as if it were trained by itself.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.randomness import Choice, Dimension, RunKey, Space, draw_settings
from sfumato.report import curve_of_budgets, figure_of, sweep_panels
from sfumato.runs.directory import RunDirectory
from sfumato.search import space as spaces
from sfumato.search.space import line_of, plain
from sfumato.training.trial import Trial

MOST_DRAWS = 20
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Trials(ABC):
    """A training, and the changes with which it is run.

    Args:
        trial: the training that each run changes.
    """

    is_search: ClassVar[bool]
    """Whether the runs are scored on held-out records, to choose among them."""
    file: ClassVar[str | None] = None
    """The file of the results."""
    plot_file: ClassVar[str | None] = None

    trial: Trial

    @abstractmethod
    def changes(self, key: RunKey) -> dict[str, dict[str, Any]]:
        """Each run's change, by the name of its directory. `key` decides random draws."""

    def trial_with(self, change: Mapping[str, Any]) -> Trial:
        """The trial of one run."""
        trial, names = self.trial, {choice.name for choice in fields(self.trial.experiment)}
        if "source" in change:
            trial = replace(trial, source=replace(trial.spec, spec=change["source"]))
        choices = {name: value for name, value in change.items() if name in names}
        return replace(trial, experiment=replace(trial.experiment, **choices))

    def label(self, name: str, change: Mapping[str, Any]) -> str:
        """The text that stands for one run in messages."""
        return line_of(change)

    def refuse_other(self, place: Path) -> None:  # noqa: B027 - most lists have nothing to refuse
        """Refuse a directory that holds something else."""

    def record(self, runs: int) -> dict[str, Any]:
        """The facts that must be the same when a search is resumed."""
        return {}

    def arranged(self, changes: Rows, rows: Rows) -> list[dict[str, Any]]:
        """The rows of all runs as they are shown, from the runs' changes and figures."""
        return [dict(row) for row in rows]

    def plot(self, rows: Rows, without_privacy: float | None) -> str:
        """The plot of the results, an SVG file."""
        raise NotImplementedError


@dataclass(frozen=True)
class Grid(Trials):
    """A search of a space: every combination of the listed values, or random draws. The best run comes first.

    Args:
        space: {field of the experiment: rule}.
        candidates: the number of different settings to draw at random from the space; None for the whole grid.
    """

    is_search = True
    file, plot_file = "sweep.json", "sweep.svg"

    space: Space
    candidates: int | None = None

    def __post_init__(self) -> None:
        spaces.check(self.space, spaces.varied(type(self.trial.experiment)))
        positive_integer(optional=True, candidates=self.candidates)

    def changes(self, key: RunKey) -> dict[str, dict[str, Any]]:
        """Every combination, or `candidates` different draws."""
        listed: list[dict[str, Any]] = []
        if self.candidates is None:
            without = "of which there is no grid", "or give `candidates`"
            values = [_listed(name, rule, *without) for name, rule in self.space.items()]
            listed = [dict(zip(self.space, combination, strict=True)) for combination in itertools.product(*values)]
        else:
            for number in range(MOST_DRAWS * self.candidates):
                change = draw_settings(number, self.space, key)
                if change not in listed:  # a repeated setting would cost without a result
                    listed.append(change)
                if len(listed) == self.candidates:
                    break
        width = len(str(len(listed)))
        return {f"{number:0{width}d}": change for number, change in enumerate(listed, 1)}

    def record(self, runs: int) -> dict[str, Any]:
        """The space and the number of runs."""
        return {"space": {name: repr(rule) for name, rule in self.space.items()}, "runs": runs}

    def arranged(self, changes: Rows, rows: Rows) -> list[dict[str, Any]]:
        """The rows with their changes, the best run first."""
        joined = [{**plain(change), **row} for change, row in zip(changes, rows, strict=True)]
        return [joined[number] for number in best_first(rows)]

    def plot(self, rows: Rows, without_privacy: float | None) -> str:
        """One panel for each varied setting."""
        return sweep_panels(rows, list(self.space))


@dataclass(frozen=True)
class SingleChanges(Trials):
    """The training unchanged, and with every listed value as a single change (Mehta et al. 2022, table 4).

    Args:
        space: {field of the experiment, or source: listed values}. A source must hold the same data in another form,
            such as another cache of their features.
    """

    is_search = True
    file = "factors.json"

    space: Space

    def __post_init__(self) -> None:
        spaces.check(self.space, (*spaces.varied(type(self.trial.experiment)), "source"))

    def changes(self, key: RunKey) -> dict[str, dict[str, Any]]:
        """No change, then each listed value."""
        listed: list[dict[str, Any]] = [{}]
        for name, rule in self.space.items():
            listed += [{name: value} for value in _listed(name, rule, "", "to change them one at a time")]
        width = len(str(len(listed)))
        return {f"{number:0{width}d}": change for number, change in enumerate(listed)}

    def record(self, runs: int) -> dict[str, Any]:
        """The values."""
        return {"factors": {name: repr(rule) for name, rule in self.space.items()}}

    def arranged(self, changes: Rows, rows: Rows) -> list[dict[str, Any]]:
        """The rows with their changes and their differences to the first row."""
        return [
            {"change": plain(change), **row, "difference": row[figure_of(row)] - rows[0][figure_of(row)]}
            for change, row in zip(changes, rows, strict=True)
        ]


@dataclass(frozen=True)
class Seeds(Trials):
    """The training several times, each with its own key.

    Args:
        count: the number of runs. If the trial has a seed, the first run has this seed, and the others have the
            following ones.
    """

    is_search = False

    count: int | None

    def __post_init__(self) -> None:
        positive_integer(seeds=self.count, remedy="give the number of runs, such as 5")

    def changes(self, key: RunKey) -> dict[str, dict[str, Any]]:
        """A seed for each run."""
        first = self.trial.experiment.seed
        return {str(n + 1): {"seed": None if first is None else first + n} for n in range(self.count or 0)}

    def label(self, name: str, change: Mapping[str, Any]) -> str:
        """The number of the run."""
        return f"run {name} of {self.count}"


@dataclass(frozen=True)
class Budgets(Trials):
    """The training of a classifier with several budgets, in ascending order.

    Args:
        epsilons: two or more budgets. The trial's own epsilon is ignored.
        trial_for_epsilon: makes the trial of one budget. Needed if the trials differ in more than epsilon, such as the
            rows of a recipe.
    """

    is_search = False
    file, plot_file = "budgets.json", "budgets.svg"

    epsilons: Sequence[float]
    trial_for_epsilon: Callable[[float], Trial] | None = None

    def __post_init__(self) -> None:
        if self.trial.experiment.noise_multiplier is not None:
            raise SfumatoError("several budgets and `noise_multiplier` are both given", "give one `epsilon` with it")
        named = ",".join(f"{value:g}" for value in self.epsilons)
        if len(self.budgets) < max(2, len(self.epsilons)):
            problem = f"`epsilon={named}` names fewer than two budgets, or one of them twice"
            raise SfumatoError(problem, "name several, each once; or train a single run")

    @property
    def budgets(self) -> tuple[float, ...]:
        """The budgets in ascending order."""
        return tuple(sorted({positive(epsilon=value) for value in self.epsilons}))

    def changes(self, key: RunKey) -> dict[str, dict[str, Any]]:
        """An epsilon for each run."""
        return {f"epsilon-{epsilon:g}": {"epsilon": epsilon} for epsilon in self.budgets}

    def trial_with(self, change: Mapping[str, Any]) -> Trial:
        """The trial of one budget."""
        make = self.trial_for_epsilon
        return super().trial_with(change) if make is None else make(change["epsilon"])

    def refuse_other(self, place: Path) -> None:
        """Refuse a directory that holds a single run, or the results of other budgets."""
        run = RunDirectory(place)
        if run.exists:
            remedy = "give `directory` another directory for the runs of several budgets"
            raise SfumatoError(f"{place} holds a run", remedy)
        results = run.read_json("budgets.json") if (run / "budgets.json").exists() else {}
        if others := [f"{epsilon:g}" for epsilon in results.get("budgets", ()) if epsilon not in self.budgets]:
            raise SfumatoError(
                f"{place} also holds the curve of other budgets: {', '.join(others)}",
                "name them too, or give another `directory`",
            )

    def plot(self, rows: Rows, without_privacy: float | None) -> str:
        """The curve of accuracy."""
        return curve_of_budgets(rows, without_privacy)


def _listed(name: str, rule: Dimension, without: str, instead: str) -> Sequence[Any]:
    """The values that a rule lists. Refuses a range."""
    if not isinstance(rule, Choice):
        problem = ", ".join(filter(None, (f"{name} varies over a range", without)))
        raise SfumatoError(problem, f"list its values, {instead}")
    return rule.values


def best_first(rows: Rows) -> list[int]:
    """The numbers of the runs by descending accuracy or recall. Diverged runs come last, whatever their figure.

    >>> best_first([{"accuracy": 0.5, "loss": 1.0}, {"accuracy": 0.9, "loss": None}, {"accuracy": 0.7, "loss": 1.0}])
    [2, 0, 1]
    """
    return sorted(
        range(len(rows)),
        key=lambda number: (rows[number].get("loss", 0.0) is not None, rows[number][figure_of(rows[number])]),
        reverse=True,
    )
