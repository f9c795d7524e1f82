"""One run for each of several privacy budgets: the curve, and the joint cost of the runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from sfumato._checks import SfumatoError, positive
from sfumato._files import write
from sfumato.experiment.fixed_features import fixed_features
from sfumato.observers.notebook import shown
from sfumato.observers.progress import Progress
from sfumato.privacy.statements.presented import ceiling, rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.report import curve_of_budgets
from sfumato.runs.directory import EVALUATION, SETTINGS, RunDirectory
from sfumato.runs.owner import composition
from sfumato.runs.run import Run
from sfumato.search.repeated import cost_of, known_uses
from sfumato.search.trial import Trial, of_trials
from sfumato.training import pretraining
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.trial import Observers
from sfumato.training.run import earlier, execute

PLOT, FILE = "budgets.svg", "budgets.json"
PUBLIC = "without-privacy"
Row = TypeVar("Row")
OF_THE_MODEL = (
    *("model", "pretrained", "pretrained_weights", "head", "head_deviation", "head_bias", "loss", "trainable"),
    "seed",
)
"""Options that the run without privacy shares. The others follow its own rules."""


@dataclass(frozen=True, kw_only=True)
class Foreseen(Generic[Row]):
    """The planned runs of several budgets.

    Args:
        budgets: the budgets, ascending.
        rows: for each budget, what `row_of` returned for its job.
        epsilon_of_all, delta: the cost of all runs together, if they are planned in advance.
        epsilon_of_all_uses: the cost including the owner's other known runs on these data.
        adjacency, adjacency_of_all_uses: the adjacencies for which these figures hold.
        public: whether the data are public. If so, there is another run without privacy.
        promises: whether the runs promise anything. Seeded runs do not; the figures are then those of their plans.
    """

    budgets: tuple[float, ...]
    rows: tuple[Row, ...]
    epsilon_of_all: float
    delta: float
    epsilon_of_all_uses: float
    adjacency: Adjacency
    adjacency_of_all_uses: Adjacency
    public: bool
    promises: bool


@dataclass(frozen=True, kw_only=True)
class Curve(Foreseen[dict[str, Any]]):
    """The results of several budgets.

    Args:
        rows: for each budget, epsilon, accuracy, top5, noise_multiplier, steps, batch_size, and the run directory.
        without_privacy: the accuracy of the same model trained without privacy, if the data are public.
    """

    without_privacy: float | None

    def __repr__(self) -> str:
        reached = [f": {row['accuracy']:.1%}" if self.public else "" for row in self.rows]
        each = ", ".join(f"epsilon {budget:g}{figure}" for budget, figure in zip(self.budgets, reached, strict=True))
        planned = "" if self.promises else "seeded, promises nothing; the plans "
        return f"Curve({each}; {planned}together epsilon {rounded_up(self.epsilon_of_all)} at delta {self.delta!r})"

    def to_dict(self) -> dict[str, Any]:
        """The content of budgets.json."""
        return asdict(self)


@of_trials
def budgets(
    trial: Trial,
    epsilons: Sequence[float],
    *,
    directory: str | os.PathLike[str],
    of_budget: Callable[[float], Trial] | None = None,
    observers: Observers | None = None,
    progress: Progress | None = None,
) -> Curve:
    """Train, resume or read the runs `directory`/epsilon-A, `directory`/epsilon-B, ..., and draw the curve.

    Args:
        trial: the training. Its own epsilon is ignored.
        epsilons: the budgets, two or more.
        directory: the directory of the runs, budgets.json and budgets.svg.
        of_budget: returns the trial of a budget, if trials differ in more than epsilon, like the rows of a recipe.
        observers: further observers of each run.
        progress: where to report progress.

    **Guarantee.** None for seeded runs. Otherwise each run costs at most its own budget, for the plan's unit and
    adjacency, if it alone is shown and the budget was chosen in advance. All of them together cost `epsilon_of_all`, by
    composition, if they were planned in advance (`composition.together`). A run without privacy is trained only if the
    data are public.
    """
    progress, base, found = shown(progress), Path(directory), []
    wanted = _trials(trial, epsilons, base, of_budget)
    for epsilon, one in wanted.items():
        found.append(one.trained(_place(base, epsilon), progress, observers=observers))
        progress.report(f"epsilon {epsilon:g}: test accuracy {found[-1].accuracy:.2%}")
    circumstances = found[0].statement.circumstances
    plain = _without_privacy(trial, found[0], base / PUBLIC, progress) if circumstances.data_public else None
    curve = Curve(
        budgets=tuple(wanted),
        rows=tuple(map(_row, found)),
        without_privacy=plain,
        **cost_of([run.statement.plan for run in found], known_uses(found[0])),
        public=circumstances.data_public,
        promises=found[0].statement.promises,
    )
    RunDirectory(base).write_json(FILE, curve.to_dict(), private=True)
    write(base / PLOT, curve_of_budgets(curve.rows, plain).encode(), private=True)
    return curve


@of_trials
def foresee(
    trial: Trial,
    epsilons: Sequence[float],
    *,
    directory: str | os.PathLike[str],
    row_of: Callable[[PrivateJob, RunDirectory], Row],
    of_budget: Callable[[float], Trial] | None = None,
    progress: Progress | None = None,
) -> Foreseen[Row]:
    """The runs that `budgets` would train, and their joint cost. Spends nothing and writes nothing.

    Args:
        row_of: extracts plain data from each run's job; jobs are not kept, since they hold the data.
        trial, epsilons, directory, of_budget, progress: as for `budgets`.
    """
    progress, base = shown(progress), Path(directory)
    wanted = _trials(trial, epsilons, base, of_budget)
    rows, plans, others, public_data = [], [], [], False
    for number, (epsilon, one) in enumerate(wanted.items()):
        run = RunDirectory(_place(base, epsilon))
        job = one.job(run, progress)
        rows.append(row_of(job, run))
        public_data = job.source.public
        if number == 0:
            others = [use for use in earlier(job).plans if composition.unit_of(use) == job.plan.unit.name]
        if not run.exists:  # a run that has begun is among the owner's uses already
            others.append(job.plan)
        plans.append(job.plan)
    known: dict[str, Any] = {"public": public_data, "promises": trial.experiment.seed is None}
    return Foreseen(budgets=tuple(wanted), rows=tuple(rows), **known, **cost_of(plans, others))


def _trials(
    trial: Trial, epsilons: Sequence[float], base: Path, of_budget: Callable[[float], Trial] | None
) -> dict[float, Trial]:
    """The trial of each budget, ascending. Refuses budgets that cannot be trained together in this directory."""
    trial.refuse_figures()
    if trial.experiment.noise_multiplier is not None:
        raise SfumatoError(
            "several budgets and `noise_multiplier` are both given",
            "give a single `epsilon`",
        )
    wanted = sorted({positive("epsilon", value) for value in epsilons})
    named = ",".join(f"{value:g}" for value in epsilons)
    if len(wanted) < len(epsilons):
        raise SfumatoError(f"`epsilon={named}` names a budget twice", "name each once")
    if len(wanted) < 2:
        raise SfumatoError(f"`epsilon={named}` names no two budgets", "name several, or train a single run")
    _refuse_other(base, wanted)
    trials = {
        epsilon: of_budget(epsilon)
        if of_budget
        else replace(trial, experiment=replace(trial.experiment, epsilon=epsilon))
        for epsilon in wanted
    }
    for one in trials.values():  # before the first run spends anything
        one.refuse_at_once()
    return trials


def _place(base: Path, epsilon: float) -> Path:
    """The run directory of a budget."""
    return base / f"epsilon-{epsilon:g}"


def _refuse_other(base: Path, wanted: Sequence[float]) -> None:
    """Refuse a directory that holds a run, or the curve of other budgets."""
    run = RunDirectory(base)
    if run.exists:
        raise SfumatoError(f"{base} holds a run", "give `directory` another directory for the runs of several budgets")
    if (base / FILE).exists():
        left = [f"{epsilon:g}" for epsilon in run.read_json(FILE).get("budgets", ()) if epsilon not in wanted]
        if left:
            raise SfumatoError(
                f"{base} also holds the curve of other budgets: {', '.join(left)}",
                "name them too, or give another `directory`",
            )


def _row(run: Run) -> dict[str, Any]:
    plan = run.statement.plan
    return {
        "epsilon": ceiling(run.statement.epsilon, 6),
        "accuracy": run.accuracy,
        "top5": run.top5,
        "noise_multiplier": plan.noise_multiplier,
        "steps": plan.steps,
        "batch_size": plan.expected_batch_size,
        "run": str(run.directory),
    }


def _without_privacy(trial: Trial, private: Run, place: Path, progress: Progress) -> float:
    """The accuracy of the same model trained without privacy, by the rules of sfumato pretrain."""
    run = RunDirectory(place)
    if not run.finished:
        if not run.exists:
            run.require_free()
        spec = replace(trial.spec, examples=None, zoom=None)
        given = {name: getattr(trial.experiment, name) for name in OF_THE_MODEL}
        given["model"] = RunDirectory(private.directory).read_json(SETTINGS)["settings"]["model"]
        if (fixed := fixed_features(given["model"])) is not None:  # a head on fixed features, as on a cache
            given |= {"learning_rate": fixed.public_rate, "schedule": "cosine", "shift": 0, "flip": False}
        machine = replace(trial.machine, micro_batch=None)
        job = pretraining.job_of(spec, given, run, machine, notes=trial.notes, progress=progress)
        execute(job, run, progress=progress)
    return run.read_json(EVALUATION)["accuracy"]
