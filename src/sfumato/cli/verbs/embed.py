"""sfumato embed: image embeddings with a promise for each person."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from sfumato.cli.options.choices import Begins, Together
from sfumato.cli.options.observed import Observed
from sfumato.cli.options.spellings import BudgetName, Examples, SourceRecipeOrRun, Whole, spelt
from sfumato.embedding.choices import BudgetOfRounds, ClientChoices, ServerChoices
from sfumato.embedding.experiment import EmbeddingExperiment
from sfumato.experiment.budget import NoiseMade, Pair
from sfumato.observers.progress import Bars, read_source

if TYPE_CHECKING:
    from sfumato.embedding.job import AnyJob
    from sfumato.runs.directory import RunDirectory


@spelt
@dataclass(frozen=True, kw_only=True)
class Embed(Observed, Together, Begins, Pair, NoiseMade, ServerChoices, ClientChoices, BudgetOfRounds):
    """Train an image embedding privately, with a promise for each person.

    Of few people on fixed features, of many by DP-FedEmb. SOURCE is folder:PATH with --user-from (class for
    PATH/PERSON/IMAGE), csv:PATH with a column user, or npz:PATH with users_train; or a recipe (recipe:NAME, or a .toml
    file), or an unfinished run, which is resumed. Batch size is the number of users in a round, and steps the number of
    rounds. What is left out follows printed rules.
    """

    what: SourceRecipeOrRun
    """Where the images are, a recipe, or a run to resume."""

    examples: Examples = None
    """Number of training images, declared."""
    private: bool = False
    """The data are private, although the source is a published one."""
    budget: BudgetName = None
    """Reserve the whole plan in this budget before the first round: see sfumato budget."""
    audit: Whole = None
    """Put so many canary users, random directions of the weights, into the rounds or leave them out, each by a fair
    coin, and say which epsilon their guessed coins prove at least, and what it is estimated at."""
    dry_run: bool = False
    """Check everything, print the plan and the model, and spend nothing."""

    def run(self) -> None:
        """Train, or say what training would be."""
        self.refuse_unobserved()
        if self.resumes(self.what):
            self._resume()
            return
        chosen = self.with_recipe(self.what)
        run = chosen.directory()
        from sfumato.cli.output import embedded
        from sfumato.embedding import canary_users
        from sfumato.embedding.run import begin, job_of
        from sfumato.experiment import users
        from sfumato.experiment.as_recipe import request_of
        from sfumato.training.parts import budgeted
        from sfumato.training.preparation.prepare import check_machine
        from sfumato.training.preparation.start import Machine, Start

        experiment = chosen.experiment
        spec = replace(chosen.spec, open_set=True)  # the test part may have classes of its own
        experiment.refuse_at_once(spec)
        budgeted.check(chosen.budget, public=spec.is_public)
        canary_users.check(chosen.audit, experiment.chosen)
        performance = {"device": chosen.device, "threads": chosen.threads}
        start = Start(machine=Machine(**performance))
        check_machine(start.machine)
        with Bars() as progress:
            source = users.kept(read_source(spec, progress), chosen.per_user)
            if self.dry_run:
                job, reasons = job_of(experiment, source, start=start, budget=chosen.budget, audit=chosen.audit)
                for line in reasons:
                    progress.report(line)
                embedded.show_dry_run(job, run, json=self.json)
                return
            for line in chosen.notes_on(run):
                progress.report(line)
            observers = self.observers(run, progress, public=source.public)
            around = {"budget": chosen.budget, "audit": chosen.audit}
            how = {
                **performance,
                **around,
                "progress": progress,
                "observers": observers,
                "request": request_of(spec, experiment, start.machine, around),
            }
            finished = begin(experiment, source, run, **how)
        embedded.show(finished, json=self.json)

    def of_record(self, path: str) -> tuple[AnyJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.embedding.run import recorded

        return recorded(path)

    @property
    def experiment(self) -> EmbeddingExperiment:
        """What was chosen."""
        return EmbeddingExperiment(**{one.name: getattr(self, one.name) for one in fields(EmbeddingExperiment)})

    def _resume(self) -> None:
        from sfumato.cli.output import embedded
        from sfumato.embedding.run import recorded
        from sfumato.runs.directory import RunDirectory
        from sfumato.runs.run import read
        from sfumato.training.job import is_public
        from sfumato.training.run import execute

        run = RunDirectory(self.what)
        if not is_public(run) and run.complete():
            embedded.show(read(run), json=self.json)
            return
        with Bars() as progress:
            job, run = recorded(self.what)
            if self.dry_run:
                embedded.show_dry_run(job, run, json=self.json)
                return
            observers = self.observers(run, progress, public=job.source.public)
            finished = execute(job, run, progress=progress, observers=observers)
        embedded.show(finished, json=self.json)
