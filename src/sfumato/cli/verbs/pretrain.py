"""sfumato pretrain: training without privacy, on public data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from sfumato.cli.options.choices import Together, TrainingChoices
from sfumato.cli.options.observed import Observed
from sfumato.cli.options.spellings import BatchSize, SourceRecipeOrRun, Steps, Unclipped, WholeByRule, spelt
from sfumato.cli.output import console
from sfumato.observers.progress import Bars

if TYPE_CHECKING:
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.job import PublicJob
    from sfumato.training.run import PublicRun


@partial(spelt, weight_decay="by rule: 0.0005", schedule="by rule: step")
@dataclass(frozen=True, kw_only=True)
class Pretrain(Observed, Together, TrainingChoices):
    """Train without privacy, on public data: the start of private fine-tuning, or a figure to compare it with.

    SOURCE is as in sfumato train, and must be public; or a recipe (recipe:NAME, or a .toml file); or an unfinished run
    directory, which is resumed. The model promises nothing, and says so. Fine-tune it with sfumato train --pretrained
    RUN.
    """

    what: SourceRecipeOrRun
    """A public source, a recipe, or a run to resume."""

    batch_size: BatchSize = None
    """Number of examples in a step. Epochs are shuffled."""
    steps: Steps = None
    """Number of training steps."""
    max_norm: Unclipped = None
    """L2 norm to which the mean gradient of a step is clipped. No promise follows from it."""
    micro_batch: WholeByRule = None
    """Largest number of examples in memory at once."""

    def run(self) -> None:
        """Train, and say how well the model does."""
        if not self.resumes(self.what):
            self.with_recipe(self.what)  # what cannot be read is refused before anything heavy is imported
        self.refuse_unobserved()
        from sfumato.training.run import execute

        with Bars() as progress:
            job, run = self.job(progress)
            observers = self.observers(run, progress, public=True)
            done = execute(job, run, progress=progress, observers=observers)
        show_public(done, json=self.json)
        if not self.json:
            console.note(f"sfumato train SOURCE --pretrained {done.directory} --model {job.settings.model}")
            console.note("   fine-tunes it privately, with a classifier that starts at zero")

    def of_record(self, path: str) -> tuple[PublicJob, RunDirectory]:
        """The job of a run directory, from its record."""
        from sfumato.training.preparation import recorded

        return recorded.public_job(path, trust_code=self.trust_code)

    def job(self, progress: Any) -> tuple[PublicJob, RunDirectory]:
        """Everything up to the first step, and where the run is to be."""
        from sfumato.training import pretraining
        from sfumato.training.preparation.start import Machine

        if self.resumes(self.what):
            return self.of_record(self.what)
        chosen = self.with_recipe(self.what)
        run = chosen.directory()
        chosen, notes = chosen.as_pretrained()
        given = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
        machine = Machine(device=chosen.device, threads=chosen.threads, micro_batch=chosen.micro_batch)
        notes = (*chosen.notes_on(run), *notes)
        return pretraining.job_of(chosen.spec, given, run, machine, notes=notes, progress=progress), run


def show_public(run: PublicRun, *, json: bool) -> None:
    """How well a model without a promise does."""
    if json:
        console.as_json(
            {
                "accuracy": run.accuracy,
                "top5": run.top5,
                "epsilon": None,
                "steps": run.steps,
                "seconds": round(run.seconds, 3),
                "run": str(run.directory),
                "statement": run.statement.sentence,
            }
        )
        return
    console.result()
    top5 = "" if run.top5 is None else f", top five {run.top5:.2%}"
    console.paragraph(f"test accuracy  {run.accuracy:.2%}{top5}")
    console.paragraph(run.statement.sentence)
