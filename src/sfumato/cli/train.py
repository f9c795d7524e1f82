"""sfumato train: the main job."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from sfumato.cli.choices import Choices
from sfumato.cli.options import BatchSize, Delta, Epsilon, Examples, NoiseMultiplier, One, Steps, Whole, WholeByRule
from sfumato.cli.outcome import show, show_dry_run
from sfumato.cli.repeat import repeat

if TYPE_CHECKING:
    from sfumato.data import Source
    from sfumato.privacy import PrivacyPlan
    from sfumato.training.directory import RunDirectory
    from sfumato.training.loop import Job
    from sfumato.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Train(Choices):
    """Train an image classifier privately, and state what was promised.

    SOURCE is digits, folder:PATH, npz:PATH, csv:PATH or torchvision:NAME; or a recipe (a .toml file), which any option
    overrides; or an unfinished run directory, which is resumed. Every option that is left out follows a written rule,
    from public facts alone, and the choice is printed.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE|RECIPE|RUN")]
    """Where the images are, a recipe, or a run to resume."""

    epsilon: Epsilon = None
    """The privacy budget."""
    delta: Delta = None
    """The chance at which the bound may fail."""
    noise_multiplier: NoiseMultiplier = None
    """Standard deviation of the noise over the clipping norm."""
    batch_size: BatchSize = None
    """Expected number of examples in a step; as many as N means full-batch steps."""
    steps: Steps = None
    """Number of training steps."""
    max_norm: One = None
    """C, the norm to which each example's gradient is clipped."""

    examples: Examples = None
    """N, declared: then the statement need not name it as read from the data."""
    private: bool = False
    """The data are private, although the source is a published one."""
    micro_batch: WholeByRule = None
    """The most examples in memory at once."""
    seeds: Whole = None
    """Train this often, with a key of its own each time, and print the median and the spread."""
    dry_run: bool = False
    """Check everything, print plan, model, time and memory, and spend nothing."""
    json: bool = False
    """End with one JSON object on standard output."""

    def run(self) -> int:
        """Train, or say what training would be."""
        from sfumato.training import uses
        from sfumato.training.progress import Bars
        from sfumato.training.run import earlier_plans, execute

        if self.seeds is not None:
            return repeat(self)
        with Bars() as progress:
            job, run = self.job(progress)
            if self.dry_run:
                earlier = earlier_plans(job)
                if earlier and not run.exists:
                    progress.say(uses.told(earlier, job.plan))
                show_dry_run(job, run, json=self.json)
                return 0
            finished = execute(job, run, progress=progress)
        show(finished, json=self.json)
        return 0

    def job(self, progress: Any) -> tuple[Job, RunDirectory]:
        """Everything up to the first step, and where the run is to be."""
        from sfumato._checks import SfumatoError
        from sfumato.cli import recorded
        from sfumato.training import directory as names
        from sfumato.training.prepare import prepare
        from sfumato.training.run import recorded_key, recorded_performance

        if (FilePath(self.what) / names.SETTINGS).is_file():
            given = [name for name, value in self.given.items() if name not in ("what", "dry_run", "json")]
            if given:
                raise SfumatoError(
                    f"{self.what} is a run, which goes on as it began, but options were given: {', '.join(given)}",
                    "leave them out, or give the source instead of the run",
                )
            return recorded.job(self.what, progress)
        if FilePath(self.what).is_dir() and ":" not in self.what:
            raise SfumatoError(
                f"{self.what} is a folder, but neither a run nor the name of a source", f"write folder:{self.what}"
            )
        asked = self.with_recipe(self.what)
        if asked.output is not None:
            asked.directory(progress)  # refuses a place that is taken before anything is read
        source, request = asked.opened(progress)
        plan, settings, reasons = decide(asked, source)
        run = asked.directory(progress)
        job = prepare(
            None,
            source,
            plan,
            settings,
            device=asked.device,
            threads=asked.threads,
            micro_batch=asked.micro_batch,
            recorded=recorded_performance(run),
            key=recorded_key(run),
            request={"source": request},
        )
        if not run.exists:
            for line in reasons:
                progress.say(line)
        return job, run


def decide(asked: Train, source: Source) -> tuple[PrivacyPlan, Settings, list[str]]:
    """Plan and settings: what was asked for, the rest by rule."""
    from sfumato._checks import SfumatoError
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.plan import default_delta
    from sfumato.training import defaults
    from sfumato.training.settings import Settings

    epsilon, noise, steps, batch_size = asked.epsilon, asked.noise_multiplier, asked.steps, asked.batch_size
    if epsilon is None and noise is None:
        epsilon = defaults.EPSILON
    if None not in (epsilon, noise, steps, batch_size):
        raise SfumatoError(
            "--epsilon, --noise-multiplier, --steps and --batch-size are all given",
            "leave one out: it follows from the others",
        )
    sizes = defaults.plan_rules(source.examples)
    solve_steps = epsilon is not None and noise is not None and steps is None
    solve_batch = epsilon is not None and noise is not None and steps is not None
    if batch_size is None and not solve_batch:
        batch_size = sizes["batch_size"].value
    if steps is None and not solve_steps:
        steps = sizes["steps"].value
    plan = PrivacyPlan.calibrate(
        examples=source.examples,
        delta=default_delta(source.examples) if asked.delta is None else asked.delta,
        batch_size=batch_size,
        steps=steps,
        noise_multiplier=noise,
        epsilon=epsilon,
        max_norm=1.0 if asked.max_norm is None else asked.max_norm,
    )
    given = {field.name: getattr(asked, field.name) for field in fields(asked)}
    chosen = defaults.training_rules(plan, given=given, size=source.size, channels=source.channels)
    names = {field.name for field in fields(Settings)}
    values = {name: rule.value for name, rule in chosen.items()}
    values |= {name: given[name] for name in names if given[name] is not None}
    solved = {"batch_size": solve_batch or given["batch_size"], "steps": solve_steps or given["steps"]}
    reasons = defaults.reasons(sizes, {**given, **{name: value or None for name, value in solved.items()}})
    if asked.delta is None:
        reasons.append(f"by rule: delta {plan.delta:g} (the largest power of ten below 1/N)")
    return plan, Settings(**values), [*reasons, *defaults.reasons(chosen, given)]
