"""sfumato train; sfumato pretrain, which trains without privacy; and sfumato finish, which ends a run early."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.cli.options import recipe
from sfumato.cli.options.choices import PrivateChoices, SharedWork, TrainingChoices, refuse_dry_seeds, refuse_several
from sfumato.cli.options.run_options import ObserverOptions, RunArgument
from sfumato.cli.output import console
from sfumato.cli.parser import argument, option
from sfumato.data.paths import stem_of

if TYPE_CHECKING:
    from sfumato.observers.observer import Observer
    from sfumato.observers.progress import Progress
    from sfumato.runs.directory import RunDirectory
    from sfumato.search import Trial
    from sfumato.training.job import PrivateJob, PublicJob


@dataclass(frozen=True, kw_only=True)
class Train(ObserverOptions, SharedWork, PrivateChoices):
    """Train an image classifier privately, and state its guarantee.

    SOURCE is digits, folder:PATH, npz:PATH, csv:PATH, parquet:PATH, hf:PATH, torchvision:NAME, or
    features:PATH for a cache made by sfumato features; or a recipe (recipe:NAME, or a .toml file), which any option
    overrides except the one that selects its row; or an unfinished run directory to resume. Every option that is left
    out follows a written rule, from public facts alone; --verbose prints the choices.
    """

    what: str = argument("SOURCE|RECIPE|RUN")
    """A source, a recipe, or a run to resume."""

    budget: str | None = option("NAME", "no budget")
    """Reserve the whole plan in this budget, and refuse to start if it does not fit."""
    keep: int | None = option("NUMBER", "by rule")
    """Number of checkpoints kept beside the model, for sfumato aggregate and intervals. 0 keeps none. (default: 20, or
    as many as fit in 64 MiB, or none if fewer than 4 fit)"""
    report_epsilon: float | None = option("EPSILON", "no figures are published")
    """Publish the accuracy and the recall of each class on the private test part, from noisy counts. This is the
    epsilon that they cost each test record, or with --unit user each person in the test part. The larger of this and
    --epsilon counts, so figures up to --epsilon are free."""
    seeds: int | None = None
    """Train this many runs, into OUTPUT/1, OUTPUT/2, ..., and print the median, the spread, and their joint guarantee.
    """
    title: str | None = option("TEXT")
    """Title of the report, including the public one. (default: the names of data and model)"""
    copy: bool = False
    """Resume a run although another copy of it went on. The steps that the other may have taken are counted as spent.
    """
    verbose: bool = False
    """Also print each choice by rule, with its reason, and how the data were read."""
    dry_run: bool = False
    """Check everything, print plan, model, time and memory, and spend nothing."""

    def run(self) -> None:
        """Train, or print the dry run."""
        resumed = self.resumes(self.what)
        if not resumed:
            self.resolved()  # refuses unreadable input before slow imports
        self.check_observers()
        budget = self.epsilons if isinstance(self.epsilons, tuple) else None
        from sfumato.cli.output.training_output import prospects, show, summary
        from sfumato.runs.directory import Heading
        from sfumato.training.preparation import from_record
        from sfumato.training.run import execute

        heading = Heading(title=self.title)
        if budget is not None or self.seeds is not None:
            self.run_repeated(budget)
            return
        finished = from_record.load_if_complete(self.what) if resumed else None
        if finished is None:
            with self.progress_bars(verbose=self.verbose or self.dry_run) as progress:
                job, run = self.job(progress)
                if not run.exists:
                    for line in (prospects if self.dry_run else summary)(job, self.forecast(job)):
                        progress.report(line)
                if self.dry_run:
                    self.preview(job, run, progress)
                    return
                observers = self.observers(run, progress, public=job.source.public)
                how = {"progress": progress, "observers": observers, "copy": self.copy}
                finished = execute(job, run, heading=heading, **how)
        show(finished, json=self.json)

    def forecast(self, job: PrivateJob) -> str | None:
        """The accuracy to expect, from public facts alone; None for models without a forecast."""
        return self.resolved().trial().experiment.forecast(job.plan, job.source)

    def preview(self, job: PrivateJob, run: RunDirectory, progress: Progress) -> None:
        """Print the dry run."""
        from sfumato.cli.output.training_output import show_dry_run
        from sfumato.training.preparation import sources
        from sfumato.training.preparation.resume import earlier_use_notes
        from sfumato.training.run import option_notes, refuse_finished

        refuse_finished(run)
        for note in () if run.exists else earlier_use_notes(job):
            progress.report(note)
        for note in (*sources.notes(job.source, job.plan), *(f"note: {note}" for note in job.notes)):
            progress.report(note)
        for note in option_notes(job):
            progress.report(note)
        show_dry_run(job, run, json=self.json)

    def run_repeated(self, budgets: tuple[float, ...] | None) -> None:
        """Train once for each budget, or with several keys, and print the results."""
        from sfumato import search
        from sfumato.cli.output import search_output, training_output

        self._check_repeated(budgets)
        chosen = self.resolved()
        base = Path(self.output or f"runs/{stem_of(self.what)}-{'seeds' if budgets is None else 'budgets'}")
        how: dict[str, Any] = {"seeds": self.seeds}
        if budgets is not None:
            chosen = replace(chosen, epsilon=None)
            how = {"epsilons": budgets, "trial_for_epsilon": self.trial_for_epsilon}
            how["dry_run"] = training_output.dry_run_data if self.dry_run else None
        with self.progress_bars(repeating=False, verbose=self.verbose or self.dry_run) as progress:

            def observers(job: PrivateJob, run: RunDirectory) -> tuple[Observer, ...]:
                return self.observers(run, progress, public=job.source.public)

            found = search.repeat(chosen.trial(), directory=base, observers=observers, progress=progress, **how)
        show = search_output.show_dry_run if self.dry_run else search_output.show_repeated
        show(found, base, json=self.json)

    def trial_for_epsilon(self, epsilon: float) -> Trial:
        """The training for one budget. The recipe may have a row for it."""
        return replace(self, epsilon=epsilon).resolved().trial()

    def job_from_record(self, path: str) -> tuple[PrivateJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.training.preparation import from_record

        return from_record.job_from_record(path, trust_code=self.trust_code)

    def check_processes(self) -> None:
        """Refuse several processes for anything but one private run."""
        refuse_several({"several budgets": isinstance(self.epsilons, tuple), "--seeds": self.seeds is not None})

    def _check_repeated(self, budgets: tuple[float, ...] | None) -> None:
        """Refuse options that do not apply to several runs."""
        if self.title is not None:
            raise SfumatoError(
                "--title is given for several runs, which each have a report",
                "leave it out, and give it for one of them: sfumato report RUN --title",
            )
        if budgets is None:
            refuse_dry_seeds(dry_run=self.dry_run)
        if budgets is not None and self.seeds is not None:
            raise SfumatoError("several budgets and --seeds are both given", "give one --epsilon with it")

    def resolved(self) -> Train:
        """These options, completed by those of the recipe. Refuses unreadable input before slow imports."""
        if self.what and Path(self.what).is_dir() and ":" not in self.what:
            from sfumato.data import Cache

            raise SfumatoError(
                f"{self.what} is a folder, but neither a run nor a source",
                f"write {'features' if Cache(self.what).exists else 'folder'}:{self.what}",
            )
        return self.with_recipe(self.what)

    def trial(self) -> Trial:
        """The requested training."""
        from sfumato.training.parts.options import OPTIONS

        own = {name: getattr(self, name) for name in OPTIONS if name in {one.name for one in fields(self)}}
        return replace(super().trial(), options=own)

    @property
    def epsilons(self) -> float | tuple[float, ...] | None:
        """One or several epsilons, given here or by the recipe."""
        if self.epsilon is None and recipe.is_recipe(self.what):
            return recipe.epsilon_of(self.what)
        return self.epsilon

    def job(self, progress: Any) -> tuple[PrivateJob, RunDirectory]:
        """The job, prepared up to the first step, and the run directory."""
        from sfumato.training.preparation import from_record

        if self.resumes(self.what):
            return from_record.job_from_record(self.what, trust_code=self.trust_code)
        chosen = self.resolved()
        run = chosen.directory()  # refuses an occupied directory before data are read
        trial = chosen.trial()
        return replace(trial, notes=(*chosen.notes_on(run), *trial.notes)).job(run, progress), run


@dataclass(frozen=True, kw_only=True)
class Pretrain(ObserverOptions, SharedWork, TrainingChoices):
    """Train without privacy on public data, for private fine-tuning or for comparison.

    SOURCE is as in sfumato train, and must be public; or a recipe (recipe:NAME, or a .toml file); or an unfinished run
    directory to resume. The model has no privacy guarantee, and its statement says so. Fine-tune it with sfumato train
    --pretrained RUN.
    """

    what: str = argument("SOURCE|RECIPE|RUN")
    """A public source, a recipe, or a run to resume."""

    weight_decay: float | None = option("NUMBER", "by rule: 0.0005")
    schedule: str | None = option("NAME", "by rule: step")
    batch_size: int | None = option("B", "by rule")
    """Number of examples in a step."""
    steps: int | None = option("T", "by rule")
    """Number of training steps."""
    max_norm: float | None = option("NUMBER", "no clipping")
    """L2 norm to which a step's mean gradient is clipped. Gives no privacy guarantee."""
    agc: float | None = option("NUMBER", "no clipping")
    """Adaptive gradient clipping: largest norm of a unit's mean gradient, relative to its weights'. Gives no privacy
    guarantee."""
    micro_batch: int | None = option("NUMBER", "by rule")
    """Largest number of examples in memory at once."""

    def run(self) -> None:
        """Train, and print the figures of the model."""
        if not self.resumes(self.what):
            self.with_recipe(self.what)  # refuses unreadable input before slow imports
        self.check_observers()
        from sfumato.cli.output import training_output
        from sfumato.training.run import execute

        with self.progress_bars() as progress:
            job, run = self.job(progress)
            observers = self.observers(run, progress, public=True)
            done = execute(job, run, progress=progress, observers=observers)
        training_output.show(done, json=self.json)
        if not self.json:
            console.note(f"sfumato train SOURCE --pretrained {done.directory} --model {job.settings.model}")
            console.note("   fine-tunes it privately, with a classifier that starts at zero")

    def job_from_record(self, path: str) -> tuple[PublicJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.training.preparation import from_record

        return from_record.public_job_from_record(path, trust_code=self.trust_code)

    def job(self, progress: Any) -> tuple[PublicJob, RunDirectory]:
        """The job, prepared up to the first step, and the run directory."""
        from sfumato.training import pretraining
        from sfumato.training.preparation.start import Machine

        if self.resumes(self.what):
            return self.job_from_record(self.what)
        chosen = self.with_recipe(self.what)
        run = chosen.directory()
        chosen, notes = chosen.with_pretrained()
        given = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
        machine = Machine(device=chosen.device, threads=chosen.threads, micro_batch=chosen.micro_batch)
        notes = (*chosen.notes_on(run), *notes)
        return pretraining.job_of(chosen.spec, given, run, machine, notes=notes, progress=progress), run


@dataclass(frozen=True, kw_only=True)
class Finish(RunArgument):
    """Finish an unfinished run early, at its last checkpoint. The statement still gives the epsilon of the whole plan:
    stopping early saves no privacy.
    """

    trust_code: bool = False
    """Run the code that the run names as its model (package:function)."""

    def run(self) -> None:
        """Finish the run and print the results."""
        from sfumato.cli.output import training_output
        from sfumato.embedding.run import is_embedding
        from sfumato.embedding.run import job_from_record as of_embedding
        from sfumato.runs.directory import RunDirectory
        from sfumato.training.preparation import from_record

        embeds = is_embedding(RunDirectory(self.run_directory))
        if (ended := from_record.ended_already(self.run_directory)) is None and embeds:
            job, run = of_embedding(self.run_directory)
            ended = from_record.finish_early(job, run)  # type: ignore[arg-type] - a private job, as checked
        elif ended is None:
            ended = from_record.finish(self.run_directory, trust_code=self.trust_code)
        training_output.show(ended, json=self.json)
