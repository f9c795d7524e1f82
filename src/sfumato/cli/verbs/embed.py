"""sfumato embed: image embeddings with a promise for each person."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from sfumato.cli.options.choices import Begins, Observed
from sfumato.cli.options.spellings import Examples, shown
from sfumato.cli.output import console
from sfumato.cli.output.outcome import show_uses, uses_of
from sfumato.embedding.experiment import BudgetOfRounds, ClientChoices, EmbeddingExperiment, ServerChoices
from sfumato.experiment.budget import Pair
from sfumato.observers.progress import duration

if TYPE_CHECKING:
    from sfumato.data import SourceSpec
    from sfumato.embedding.jobs.central import CentralJob
    from sfumato.embedding.jobs.dpsgd import DpsgdJob
    from sfumato.embedding.jobs.noiseless import NoiselessJob
    from sfumato.embedding.jobs.private import EmbeddingJob
    from sfumato.runs import Run
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.public.pretraining import PublicRun


@shown
@dataclass(frozen=True, kw_only=True)
class Embed(Observed, Begins, Pair, ServerChoices, ClientChoices, BudgetOfRounds):
    """Train an image embedding privately, with a promise for each person (DP-FedEmb, Xu et al. 2022).

    SOURCE is folder:PATH with --user-from, csv:PATH with a column user, or npz:PATH with users_train. A recipe
    stands in for it (recipe:NAME, or a .toml file), or an unfinished run directory, which is resumed. Of the budget,
    batch size is the number of users in a round, and steps the number of rounds. Every option that is left out follows
    a written rule, and the choice is printed.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE|RECIPE|RUN")]
    """Where the images are, a recipe, or a run to resume."""

    examples: Examples = None
    """Number of training images, declared."""
    private: bool = False
    """The data are private, although the source is a published one."""
    dry_run: bool = False
    """Check everything, print the plan and the model, and spend nothing."""
    json: bool = False
    """End with one JSON object on standard output."""

    def run(self) -> int:
        """Train, or say what training would be."""
        self.refuse_unobserved()
        if self.resumes(self.what):
            return self._resume()
        asked = self.with_recipe(self.what)
        run = asked.directory()
        from sfumato.embedding.experiment import WITHOUT_PLAN
        from sfumato.embedding.run import begin, job_of, public_job_of
        from sfumato.experiment import users
        from sfumato.observers.progress import Bars, read_source
        from sfumato.training.preparation.prepare import check_machine
        from sfumato.training.preparation.start import Machine

        experiment = asked.experiment
        prepared = public_job_of if experiment.chosen in WITHOUT_PLAN else job_of  # refused before data are read
        spec = asked.open_set
        experiment.refuse_at_once(spec)
        check_machine(Machine(device=asked.device, threads=asked.threads))
        with Bars() as progress:
            source = users.kept(read_source(spec, progress), asked.per_user)
            performance = {"device": asked.device, "threads": asked.threads}
            if self.dry_run:
                job, reasons = prepared(experiment, source, **performance)
                for line in reasons:
                    progress.report(line)
                show_dry_run(job, run, json=self.json)
                return 0
            for line in asked.beside(run):
                progress.report(line)
            finished = begin(
                experiment,
                source,
                run,
                **performance,
                progress=progress,
                observers=self.looking_on(run, progress, public=source.public),
                request={"source": spec.record()},
            )
        show(finished, json=self.json)
        return 0

    @property
    def experiment(self) -> EmbeddingExperiment:
        """What was chosen."""
        return EmbeddingExperiment(**{one.name: getattr(self, one.name) for one in fields(EmbeddingExperiment)})

    @property
    def open_set(self) -> SourceSpec:
        """The source, whose test part may have classes of its own."""
        return replace(self.spec, open_set=True)

    def _resume(self) -> int:
        from sfumato.embedding.run import recorded, take
        from sfumato.observers.progress import Bars
        from sfumato.runs.directory import RunDirectory
        from sfumato.runs.run import read
        from sfumato.training.public.pretraining import is_public

        run = RunDirectory(self.what)
        if not is_public(run) and run.complete():
            show(read(run), json=self.json)
            return 0
        with Bars() as progress:
            job, run = recorded(self.what)
            if self.dry_run:
                show_dry_run(job, run, json=self.json)
                return 0
            observers = self.looking_on(run, progress, public=job.source.public)
            finished = take(job, run, progress=progress, observers=observers)
        show(finished, json=self.json)
        return 0


def show(run: Run | PublicRun, *, json: bool) -> None:
    """What a finished training of embeddings has to say."""
    from sfumato.privacy.statements.other_units import group_epsilon
    from sfumato.privacy.statements.statement import rounded_up
    from sfumato.runs import Run
    from sfumato.runs import directory as names

    figures, path = run.figures, run.directory
    of_group = group_epsilon(run.statement.plan) if isinstance(run, Run) else None
    shown = {name: figures[name] for name in ("recall", "far", "threshold", "recall_by_minibatch", "retrieval")}
    if json:
        told: dict[str, Any] = {**shown, "steps": run.steps, "seconds": round(run.seconds, 3), "run": str(path)}
        told |= {"epsilon": None, "statement": run.statement.sentence, "epsilon_of_group": of_group}
        if isinstance(run, Run):
            told |= {
                "epsilon": run.statement.to_dict()["epsilon"],
                "delta": run.statement.plan.delta,
                **uses_of(run),
            }
        console.as_json(told)
        return
    public = run.statement.circumstances.test_public if isinstance(run, Run) else True
    if isinstance(run, Run) and run.steps < run.statement.plan.steps:
        console.note(f"note: ended after {run.steps} of {run.statement.plan.steps} rounds; the promise is the plan's")
    console.result()
    console.result(
        f"recall {figures['recall']:.2%} of the pairs of one class at a false accept rate of {figures['far']:g} "
        f"(similarity at least {figures['threshold']:.4f})"
        + ("" if public else "  (measured on private data: keep it to yourself)")
    )
    console.result()
    if isinstance(run, Run):
        console.result(run.statement.sentence)
        console.result()
        if of_group is not None:
            console.result(
                f"For a whole group of people together, which is fixed and public here, epsilon is "
                f"{rounded_up(of_group)}. For one person of it only the figure above holds."
            )
            console.result()
        show_uses(run)
    else:
        console.result(run.statement.sentence)
        console.result()
    console.note(f"{path / names.REPORT}   the page: what is promised, and which images are found")
    console.note(f"sfumato evaluate {path} SOURCE   measures it on other images")
    if isinstance(run, Run):
        console.note(f"sfumato verify {path}   checks that the statement follows from the record")


def show_dry_run(job: EmbeddingJob | DpsgdJob | CentralJob | NoiselessJob, run: RunDirectory, *, json: bool) -> None:
    """What training would be."""
    from sfumato.embedding.estimate import seconds
    from sfumato.training.conclusion.run_page import plan_table
    from sfumato.training.job import PublicJob
    from sfumato.training.preparation.estimate import average_bytes

    state, expected = "resume" if run.exists else "begin", seconds(job)
    if isinstance(job, PublicJob):  # there is no plan, and so no epsilon
        plan = {"privacy": "none: it promises nothing", "epsilon": None, "steps": job.steps}
        plan["batch size"] = job.batch_size
    else:
        plan = {**plan_table(job.plan, {}), "epsilon": job.plan.epsilon(), "epsilon by RDP": job.plan.epsilon_rdp}
    clients, settings = job.clients.to_dict(), job.settings.to_dict()
    parameters = sum(value.numel() for value in job.module.parameters() if value.requires_grad)
    if json:
        console.as_json(
            {
                "run": str(run.path),
                "would": state,
                "plan": plan,
                "settings": settings,
                "clients": clients,
                "performance": job.performance.to_dict(),
                "parameters": parameters,
                "seconds": None if expected is None else round(expected, 3),
                "average_bytes": average_bytes(job),
            }
        )
        return
    local = clients.pop("local")
    rows = {**plan, "model": settings["model"], "server": f"{settings['optimizer']} {settings['learning_rate']:g}"}
    rows |= {"clients": clients.pop("count"), **clients}
    rows |= {f"client {name.replace('_', ' ')}": value for name, value in local.items() if value is not None}
    rows = {name: value for name, value in rows.items() if value is not None}
    rows |= {"memory": f"{average_bytes(job) / (1 << 20):.1f} MiB for averaged weights"}
    rows["parameters"] = f"{parameters:,}"
    if expected is not None:
        rows["time"] = f"about {duration(expected)} on {job.performance.device}"
    console.columns([(name, f"{v:.6g}" if isinstance(v, float) else str(v)) for name, v in rows.items()])
    console.note(f"nothing was spent; without --dry-run this would {state} the run in {run.path}")
