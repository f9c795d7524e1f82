"""sfumato embed: trains image embeddings with a promise for each person."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.cli.options import recipe
from sfumato.cli.options.choices import NewRunChoices, SharedWork, refuse_dry_seeds, refuse_several
from sfumato.cli.options.run_options import ObserverOptions
from sfumato.cli.parser import argument, option
from sfumato.data.paths import stem_of
from sfumato.embedding.choices import BudgetOfRounds, ClientChoices, ServerChoices
from sfumato.embedding.experiment import EmbeddingExperiment
from sfumato.experiment.settings import NoiseMade, Pair

if TYPE_CHECKING:
    from sfumato.embedding.job import AnyJob
    from sfumato.embedding.run import EmbeddingTrial
    from sfumato.observers.observer import Observer
    from sfumato.runs.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Embed(ObserverOptions, SharedWork, NewRunChoices, Pair, NoiseMade, ServerChoices, ClientChoices, BudgetOfRounds):
    """Train an image embedding privately, with a guarantee for each person.

    With few people on fixed features, with many by DP-FedEmb. SOURCE is folder:PATH with --user-from (class for
    PATH/PERSON/IMAGE), csv:PATH with a column user, or npz:PATH with users_train; or a recipe (recipe:NAME, or a .toml
    file), or an unfinished run to resume. Batch size is the number of users in a round, and steps the number of rounds.
    Options that are left out follow printed rules.
    """

    what: str = argument("SOURCE|RECIPE|RUN")
    """A source, a recipe, or a run to resume."""

    examples: int | None = option("N", "counted in the data")
    """Number of training images, declared."""
    private: bool = False
    """The data are private, although the source is a public one."""
    budget: str | None = option("NAME", "no budget")
    """Reserve the whole plan in this budget, and refuse to start if it does not fit."""
    keep: int | None = option("NUMBER", "by rule")
    """Number of checkpoints kept beside the model, for sfumato aggregate. 0 keeps none. (default: 20, or as many as fit
    in 64 MiB, or none if fewer than 4 fit)"""
    seeds: int | None = None
    """Train this many runs, into OUTPUT/1, OUTPUT/2, ..., and print the mean recall, its 95% prediction interval, and
    their joint guarantee."""
    copy: bool = False
    """Resume a run although another copy of it went on. The steps that the other may have taken are counted as spent.
    """
    dry_run: bool = False
    """Check everything, print the plan and the model, and spend nothing."""

    def run(self) -> None:
        """Train, or print the dry run."""
        from sfumato.runs.directory import RunDirectory

        self.check_observers()
        resumed = self.resumes(self.what)
        if self.seeds is not None and not resumed:
            self._repeated(self.seeds)
            return
        chosen = self if resumed else self.with_recipe(self.what)
        run = RunDirectory(self.what) if resumed else chosen.directory()
        from sfumato.cli.output import training_output
        from sfumato.runs.run import read
        from sfumato.training.job import is_public
        from sfumato.training.run import execute

        if resumed and not is_public(run) and run.complete():
            training_output.show(read(run), json=self.json)
            return
        with self.progress_bars() as progress:
            if resumed:
                job, run = self.job_from_record(self.what)
            else:
                job = replace(chosen.trial(), notes=tuple(chosen.notes_on(run))).job(run, progress)
            if self.dry_run:
                training_output.show_dry_run(job, run, json=self.json)
                return
            observers = self.observers(run, progress, public=job.source.public)
            finished = execute(job, run, progress=progress, observers=observers, copy=self.copy)
        training_output.show(finished, json=self.json)

    def trial(self) -> EmbeddingTrial:
        """The requested training."""
        from sfumato.embedding.run import EmbeddingTrial

        return EmbeddingTrial(
            experiment=self.experiment,
            source=self.spec,
            device=self.device,
            threads=self.threads,
            options={"budget": self.budget, "keep": self.keep},
            earlier_search=partial(recipe.uncovered_search, self.what, self.source, self.batch_size),
        )

    def check_processes(self) -> None:
        """Refuse several processes for several runs."""
        refuse_several({"--seeds": self.seeds is not None})

    def _repeated(self, seeds: int) -> None:
        """Train with several keys and print the results."""
        from sfumato import search
        from sfumato.cli.output import search_output

        refuse_dry_seeds(dry_run=self.dry_run)
        trial = self.with_recipe(self.what).trial()
        base = Path(self.output or f"runs/{stem_of(self.what)}-seeds")
        with self.progress_bars(repeating=False) as progress:

            def observers(job: AnyJob, run: RunDirectory) -> tuple[Observer, ...]:
                return self.observers(run, progress, public=job.source.public)

            result = search.sweep(search.Seeds(trial, seeds), directory=base, observers=observers, progress=progress)
        search_output.show_repeated(result, base, json=self.json)

    def job_from_record(self, path: str) -> tuple[AnyJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.embedding.run import job_from_record

        return job_from_record(path)

    @property
    def experiment(self) -> EmbeddingExperiment:
        """The requested experiment."""
        return EmbeddingExperiment(**{one.name: getattr(self, one.name) for one in fields(EmbeddingExperiment)})
