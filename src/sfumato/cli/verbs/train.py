"""sfumato train: the main job."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.cli.options import recipe, spellings
from sfumato.cli.options.choices import PrivateChoices, Together, refuse_seeds_foreseen, refuse_several, stem_of
from sfumato.cli.options.observed import Observed
from sfumato.cli.options.spellings import EpsilonOfFigures, FreeText, SourceRecipeOrRun, SourceText, Whole, WholeByRule
from sfumato.observers.progress import Bars

if TYPE_CHECKING:
    from sfumato.observers.observer import Observer
    from sfumato.observers.progress import Progress
    from sfumato.runs.directory import RunDirectory
    from sfumato.search import Trial
    from sfumato.training.job import PrivateJob


@dataclass(frozen=True, kw_only=True)
class Train(Observed, Together, PrivateChoices):
    """Train an image classifier privately, and state what was promised.

    SOURCE is digits, folder:PATH, npz:PATH, csv:PATH, parquet:PATH, hf:PATH, webdataset:SHARDS, torchvision:NAME, or
    features:PATH for a cache that sfumato features has made; or a recipe (recipe:NAME, or a .toml file), which any
    option overrides but the one that chooses its row; or an unfinished run directory, which is resumed. Every option
    that is left out follows a written rule, from public facts alone, and the choice is printed.
    """

    what: SourceRecipeOrRun
    """Where the images are, a recipe, or a run to resume."""

    budget: spellings.BudgetName = None
    """Reserve the whole plan in this budget before the first step, or do not begin: see sfumato budget."""
    keep: WholeByRule = None
    """How many weights of single steps are kept beside the model, half of them of the very last steps, for sfumato
    aggregate and for intervals. By rule 20, or as many as take 64 MiB, or none where that is below 4."""
    report_epsilon: EpsilonOfFigures = None
    """Publish figures of the private test part: accuracy, classes, ROC, calibration, from counts with noise. This is
    what they cost each test record, which pays the larger of this and --epsilon, so as much as --epsilon is free."""
    calibrate_on: SourceText = None
    """A public source that a temperature is fitted on, so that scores are as often right as they say. With
    --report-epsilon alone one is chosen from that budget, where there are images enough."""
    operating_point: spellings.RuleOfLabels = None
    """Of two classes: from which score on an image is said to be of one, chosen from what --report-epsilon publishes,
    at no further cost. shares: where the model expects each class as often as there is of it; balanced; or a class with
    the share of it that is to be found, such as pneumonia=0.95."""
    prevalence: spellings.Shares = None
    """Each class's share where the model is to be used, declared: its scores are moved there."""
    training_prevalence: spellings.Shares = None
    """Each class's share in the training data, declared and not counted, from which scores are moved."""
    audit: Whole = None
    """Put so many canaries, made-up records with labels of chance, among the examples or leave them out, each by a fair
    coin, and say which epsilon their guessed coins prove at least. Those that are in are noise to the model."""
    audit_source: SourceText = None
    """A public source whose images the canaries are, in place of noise; none of them may be a private record. Or
    directions: random directions of the weights, which are added to the sums."""
    seeds: Whole = None
    """Train this often, with a key of its own each time, and print the median and the spread."""
    title: FreeText = None
    """What the run's page is called, the public one too."""
    dry_run: bool = False
    """Check everything, print plan, model, time and memory, and spend nothing."""

    def run(self) -> None:
        """Train, or say what training would be."""
        resumed = self.resumes(self.what)
        if not resumed:
            self.chosen()  # refuses what cannot be read, before anything heavy is imported
        self.refuse_unobserved()
        budget = self.epsilons if isinstance(self.epsilons, tuple) else None
        from sfumato.cli.output.outcome import show
        from sfumato.runs.heading import Heading
        from sfumato.training.preparation import recorded
        from sfumato.training.run import execute

        heading = Heading(title=self.title)
        if budget is not None or self.seeds is not None:
            self.repeated(budget)
            return
        finished = recorded.ended(self.what) if resumed else None
        if finished is None:
            with Bars() as progress:
                job, run = self.job(progress)
                if self.dry_run:
                    self.foresee(job, run, progress)
                    return
                observers = self.observers(run, progress, public=job.source.public)
                finished = execute(job, run, heading=heading, progress=progress, observers=observers)
        show(finished, json=self.json)

    def foresee(self, job: PrivateJob, run: RunDirectory, progress: Progress) -> None:
        """Say what training would be."""
        from sfumato.cli.output.outcome import show_dry_run
        from sfumato.runs.owner import sentences
        from sfumato.training.preparation import sources
        from sfumato.training.run import overlaps, refuse_finished

        refuse_finished(run)
        note = sentences.before(job.source, job.plan, seeded=job.circumstances.seeded)
        if note is not None and not run.exists:
            progress.report(note)
        for note in () if run.exists else overlaps(job):
            progress.report(note)
        for note in (*sources.notes(job.source), *job.notes):
            progress.report(f"note: {note}")
        for note in (note for part in job.parts for note in part.notes(job.source, job.plan)):
            progress.report(note)
        show_dry_run(job, run, json=self.json)

    def repeated(self, budgets: tuple[float, ...] | None) -> None:
        """Train once for each budget, or by several keys, and say what came of it."""
        from sfumato import search
        from sfumato.cli.output import repeated
        from sfumato.cli.output.outcome import foreseen

        self._check_repeated(budgets)
        chosen = self.chosen()
        base = FilePath(self.output or f"runs/{stem_of(self.what)}-{'seeds' if budgets is None else 'budgets'}")
        with Bars(repeating=False) as progress:

            def observers(job: PrivateJob, run: RunDirectory) -> tuple[Observer, ...]:
                return self.observers(run, progress, public=job.source.public)

            how: dict[str, Any] = {"directory": base, "progress": progress}
            if budgets is None:
                found = search.seeds(chosen.trial(), self.seeds or 0, **how, observers=observers)
                show = partial(repeated.show_seeds, found)
            else:
                trial = replace(chosen, epsilon=None).trial()
                how["of_budget"] = self.of_budget
                if self.dry_run:
                    show = partial(repeated.show_dry_run, search.foresee(trial, budgets, row_of=foreseen, **how))
                else:
                    show = partial(
                        repeated.show_budgets, search.budgets(trial, budgets, **how, observers=observers), base
                    )
        show(json=self.json)

    def of_budget(self, epsilon: float) -> Trial:
        """The training of one budget, which may have a row of its own in the recipe."""
        return replace(self, epsilon=epsilon).chosen().trial()

    def of_record(self, path: str) -> tuple[PrivateJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.training.preparation import recorded

        return recorded.job(path, trust_code=self.trust_code)

    def refuse_together(self) -> None:
        """Refuse several processes for what is not one private run."""
        refuse_several(
            {
                "several budgets": isinstance(self.epsilons, tuple),
                "--seeds": self.seeds is not None,
            }
        )

    def _check_repeated(self, budgets: tuple[float, ...] | None) -> None:
        """Refuse options that several runs cannot have together."""
        if self.title is not None:
            raise SfumatoError(
                "--title is given for several runs, each of which has a page of its own",
                "leave it out, and write it over one of them: sfumato report RUN --title",
            )
        if budgets is None:
            refuse_seeds_foreseen(dry_run=self.dry_run)
        if budgets is not None and self.seeds is not None:
            raise SfumatoError("several budgets and --seeds are both given", "give one --epsilon with it")

    def chosen(self) -> Train:
        """These options over the recipe's. What cannot be read is refused, before anything heavy is imported."""
        if self.what and FilePath(self.what).is_dir() and ":" not in self.what:
            from sfumato.data import Cache

            raise SfumatoError(
                f"{self.what} is a folder, but neither a run nor the name of a source",
                f"write {'features' if Cache(self.what).exists else 'folder'}:{self.what}",
            )
        return self.with_recipe(self.what)

    def trial(self) -> Trial:
        """One training as it is requested here."""
        from sfumato.training.parts.registry import OPTIONS

        own = {name: getattr(self, name) for name in OPTIONS if name in {one.name for one in fields(self)}}
        return replace(super().trial(), options=own)

    @property
    def epsilons(self) -> float | tuple[float, ...] | None:
        """The epsilon given here, or else by the recipe, or several."""
        if self.epsilon is None and recipe.named_by(self.what):
            return recipe.budget_of(self.what)
        return self.epsilon

    def job(self, progress: Any) -> tuple[PrivateJob, RunDirectory]:
        """Everything up to the first step, and where the run is to be."""
        from sfumato.training.preparation import recorded

        if self.resumes(self.what):
            return recorded.job(self.what, trust_code=self.trust_code)
        chosen = self.chosen()
        run = chosen.directory()  # refuses a place that is taken before anything is read
        trial = chosen.trial()
        return replace(trial, notes=(*chosen.notes_on(run), *trial.notes)).job(run, progress), run
