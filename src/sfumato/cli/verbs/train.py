"""sfumato train, and embed for embeddings; pretrain, which trains without privacy; finish, which ends a run early."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sfumato.cli.options import recipe
from sfumato.cli.options.choices import PrivateChoices, PrivateRun, SharedWork, TrainingChoices
from sfumato.cli.options.run_options import ObserverOptions, RunArgument
from sfumato.cli.output import console
from sfumato.cli.parser import argument, option, refuse_given
from sfumato.experiment.client_choices import BudgetOfRounds, ClientChoices, ServerChoices
from sfumato.experiment.clients import EmbeddingExperiment
from sfumato.experiment.settings import NoiseMade, Pair

if TYPE_CHECKING:
    from sfumato.observers.progress import Progress, ProgressBars
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.job import PrivateJob, PublicJob
    from sfumato.training.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Train(PrivateRun, PrivateChoices):
    """Train an image classifier privately, and state its guarantee.

    SOURCE is digits, folder:PATH, npz:PATH, csv:PATH, parquet:PATH, hf:PATH, torchvision:NAME, or
    features:PATH for a cache made by sfumato features; or a recipe (recipe:NAME, or a .toml file), which any option
    overrides except the one that selects its row; or an unfinished run directory to resume. Every option that is left
    out follows a written rule, from public facts alone; --verbose prints the choices.
    """

    report_epsilon: float | None = option("EPSILON", "no figures are published")
    """Publish the accuracy and the recall of each class on the private test part, from noisy counts. This is the
    epsilon that they cost each test record, or with --unit user each person in the test part. The larger of this and
    --epsilon counts, so figures up to --epsilon are free."""
    title: str | None = option("TEXT")
    """Title of the report, including the public one. (default: the names of data and model)"""
    verbose: bool = False
    """Also print each choice by rule, with its reason, how the data were read, and with --dry-run the whole plan."""

    def run_repeated(self) -> None:
        """Train once for each budget, or with several keys, and print the results."""
        refuse_given("is for one run; sfumato report RUN --title gives each its own", title=self.title)
        if self.budgets is not None:
            refuse_given("and several budgets are both given", "give one --epsilon with it", seeds=self.seeds)
        super().run_repeated()

    def progress_bars(self, **keywords: Any) -> ProgressBars:
        """Progress on standard error, with the choices by rule if `verbose`."""
        return super().progress_bars(verbose=self.verbose, **keywords)

    def summary(self, job: PrivateJob) -> dict[str, str]:
        """Data, model, epsilon, time, the accuracy to expect, and what will not be learnt."""
        from sfumato.cli.output import training_output

        return training_output.summary(job, training_output.seconds_of(job))

    def preview(self, job: PrivateJob, run: RunDirectory, progress: Progress) -> None:
        """Print the dry run."""
        from sfumato.cli.output import training_output
        from sfumato.training.preparation.resume import owner_history
        from sfumato.training.run import notes_before, refuse_finished

        refuse_finished(run)
        for note in notes_before(job, None if run.exists else owner_history(job)):
            progress.report(note)
        data = training_output.dry_run_data(job, run)
        if not run.exists:
            data["summary"] = training_output.summary(job, data["estimate"]["seconds"])
        training_output.show_dry_run(data, every=self.verbose or run.exists, json=self.json)

    @property
    def budgets(self) -> tuple[float, ...] | None:  # type: ignore[override]
        """Several epsilons, given here or by the recipe."""
        epsilons = self.epsilon
        if epsilons is None and recipe.is_recipe(self.what):
            epsilons = recipe.epsilon_of(self.what)
        return epsilons if isinstance(epsilons, tuple) else None

    def trial(self) -> Trial:
        """The requested training."""
        from sfumato.training.preparation.start import OPTIONS

        names = {field.name for field in fields(self)} & set(OPTIONS)
        return replace(super().trial(), options={name: getattr(self, name) for name in OPTIONS if name in names})

    def job_from_record(self, path: str) -> tuple[PrivateJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.training.preparation import from_record

        return from_record.job_from_record(path, made_with="train", trust_code=self.trust_code)


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

        return from_record.job_from_record(path, made_with="pretrain", trust_code=self.trust_code)

    def job(self, progress: Any) -> tuple[PublicJob, RunDirectory]:
        """The job, prepared up to the first step, and the run directory."""
        from sfumato.training import pretraining
        from sfumato.training.preparation.start import Machine

        if self.resumes(self.what):
            return self.job_from_record(self.what)
        chosen = self.with_recipe(self.what)
        run = chosen.directory()
        chosen, notes = chosen.with_pretrained()
        options = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
        machine = Machine(device=chosen.device, threads=chosen.threads, micro_batch=chosen.micro_batch)
        notes = (*chosen.notes_on(run), *notes)
        return pretraining.job_of(chosen.spec, options, run, machine, notes=notes, progress=progress), run


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
        from sfumato.training.preparation import from_record

        ended = from_record.finish(self.run_directory, trust_code=self.trust_code)
        training_output.show(ended, json=self.json)


@dataclass(frozen=True, kw_only=True)
class Embed(PrivateRun, Pair, NoiseMade, ServerChoices, ClientChoices, BudgetOfRounds):
    """Train an image embedding privately, with a guarantee for each person.

    With few people on fixed features, with many by DP-FedEmb. SOURCE is folder:PATH with --user-from (class for
    PATH/PERSON/IMAGE), csv:PATH with a column user, or npz:PATH with users_train; or a recipe (recipe:NAME, or a .toml
    file), or an unfinished run to resume. Batch size is the number of users in a round, and steps the number of rounds.
    Options that are left out follow printed rules.
    """

    examples: int | None = option("N", "counted in the data")
    """Number of training images, declared."""
    private: bool = False
    """The data are private, although the source is a public one."""

    def trial(self) -> Trial:
        """The requested training."""
        from sfumato.training.trial import Trial

        return Trial(
            experiment=EmbeddingExperiment(
                **{field.name: getattr(self, field.name) for field in fields(EmbeddingExperiment)}
            ),
            source=self.spec,
            device=self.device,
            threads=self.threads,
            options={"budget": self.budget, "keep": self.keep},
            earlier_search=partial(recipe.uncovered_search, self.what, self.source, self.batch_size),
        )

    def job_from_record(self, path: str) -> tuple[PrivateJob | PublicJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.training.preparation import from_record

        return from_record.job_from_record(path, made_with="embed", trust_code=self.trust_code)
