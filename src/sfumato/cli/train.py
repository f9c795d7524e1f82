"""sfumato train: the main job."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from sfumato.cli import recipe
from sfumato.cli.options import (
    BatchSize,
    Choice,
    Delta,
    Device,
    Epsilon,
    Examples,
    Fraction,
    Momentum,
    Names,
    NoDecay,
    NoiseMultiplier,
    NumberByRule,
    One,
    Path,
    Schedule,
    Side,
    Steps,
    Text,
    TextByRule,
    Whole,
    WholeByRule,
    Zero,
)
from sfumato.cli.outcome import show, show_dry_run

if TYPE_CHECKING:
    from sfumato.data import Source
    from sfumato.privacy import PrivacyPlan
    from sfumato.training.directory import RunDirectory
    from sfumato.training.loop import Job
    from sfumato.training.progress import Progress
    from sfumato.training.settings import Settings

SOURCE_OPTIONS = ("classes", "size", "channels", "examples", "root", "download", "test_fraction")


@dataclass(frozen=True, kw_only=True)
class Train:
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

    model: TextByRule = None
    """scattering, lenet5, cnn, linear, wrn-DEPTH-WIDTH, timm:NAME, or package:function."""
    pretrained: Path = None
    """Initial weights, from public data: a safetensors file, or the word timm."""
    optimizer: TextByRule = None
    """sgd, momentum, adam, adamw or lamb."""
    learning_rate: NumberByRule = None
    """For gradients that are divided by the clipping norm."""
    momentum: Momentum = None
    """Heavy-ball coefficient, or the first beta of the Adam family."""
    weight_decay: NoDecay = None
    """L2 coefficient."""
    schedule: Schedule = None
    """constant, cosine or linear."""
    warmup: Zero = None
    """Steps of linear warm-up."""
    views: WholeByRule = None
    """K, views of each example whose mean gradient is clipped; 1 is the image itself."""
    shift: WholeByRule = None
    """By how many pixels a view is moved."""
    flip: Choice = None
    """Whether views are mirrored."""
    ema: NumberByRule = None
    """Decay of the weights' moving average; 0 keeps the last weights."""

    source: Text = None
    """The source, in place of the recipe's."""
    examples: Examples = None
    """N, declared: then the statement need not name it as read from the data."""
    classes: Names = None
    """Class names, declared."""
    size: Side = None
    """Side of the images, declared; others are resized."""
    channels: Whole = None
    """1 for grey, 3 for colour, declared."""
    test_fraction: Fraction = None
    """Share of the test part where a source has none of its own."""
    public: bool = False
    """The data are public: figures measured on them are no secret (digits and torchvision: unless --private)."""
    private: bool = False
    """The data are private, although the source is a published one."""
    root: Path = None
    """Where torchvision's data sets are."""
    download: bool = False
    """Let torchvision download the data set."""

    output: Path = None
    """The run directory. (default: runs/ and the source's name)"""
    seed: Whole = None
    """For experiments: the randomness follows from this number, and the promise is void to whoever knows it."""
    device: Device = None
    """Where to compute."""
    threads: Whole = None
    """CPU threads."""
    micro_batch: WholeByRule = None
    """The most examples in memory at once."""
    dry_run: bool = False
    """Check everything, print plan, model, time and memory, and spend nothing."""
    json: bool = False
    """End with one JSON object on standard output."""

    def run(self) -> int:
        """Train, or say what training would be."""
        from sfumato.training import uses
        from sfumato.training.progress import Bars
        from sfumato.training.run import earlier_plans, execute

        with Bars() as progress:
            job, run = self._job(progress)
            if self.dry_run:
                earlier = earlier_plans(job)
                if earlier and not run.exists:
                    progress.say(uses.told(earlier, job.plan))
                show_dry_run(job, run, json=self.json)
                return 0
            finished = execute(job, run, progress=progress)
        show(finished, json=self.json)
        return 0

    def _job(self, progress: Any) -> tuple[Job, RunDirectory]:
        from sfumato._checks import SfumatoError
        from sfumato.cli import recorded
        from sfumato.data import open_source
        from sfumato.randomness import owner_key
        from sfumato.training import directory as names
        from sfumato.training.prepare import prepare
        from sfumato.training.run import recorded_key, recorded_performance

        if (FilePath(self.what) / names.SETTINGS).is_file():
            given = [name for name, value in self._given().items() if name not in ("what", "dry_run", "json")]
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
        asked = self._with_recipe()
        spec = asked.source or asked.what
        if asked.output is not None and not names.RunDirectory(asked.output).exists:
            names.RunDirectory(asked.output).require_free()
        given = {name: getattr(asked, name) for name in SOURCE_OPTIONS if getattr(asked, name) is not None}
        if asked.public and asked.private:
            raise SfumatoError("--public and --private are both given", "say which of the two the data are")
        if asked.public or asked.private:
            given["public"] = asked.public
        progress.begin("reading", 1)
        source = open_source(spec, **given, owner_key=owner_key(), progress=_reading(progress))
        plan, settings, reasons = _decide(asked, source)
        run = _directory(asked, spec, progress)
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
            request={"source": {"spec": _absolute(spec), **_plain(given)}},
        )
        if not run.exists:
            for line in reasons:
                progress.say(line)
        return job, run

    def _given(self) -> dict[str, Any]:
        """The options that were given, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name == "what" or getattr(self, field.name) != field.default
        }

    def _with_recipe(self) -> Train:
        """These options over those of the recipe, where the source is one."""
        from sfumato._checks import SfumatoError

        if not self.what.endswith(".toml"):
            if self.source is not None:
                raise SfumatoError(
                    f"--source {self.source} and the source {self.what} are both given",
                    "leave out --source, which is for recipes",
                )
            return self
        known = {field.name for field in fields(self)} - {"what", "json", "dry_run"}
        options = recipe.read(self.what, known)
        merged = replace(self, **{**options, **{key: value for key, value in self._given().items() if key != "what"}})
        if merged.source is None:
            raise SfumatoError(
                f"the recipe {self.what} names no source", 'give --source, or add source = "digits" to it'
            )
        return merged


def _decide(asked: Train, source: Source) -> tuple[PrivacyPlan, Settings, list[str]]:
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


def _directory(asked: Train, spec: str, progress: Progress) -> RunDirectory:
    """The directory asked for; else the first of runs/NAME, runs/NAME-2, ... that is free or unfinished."""
    from sfumato.training import directory as names

    if asked.output is not None:
        return names.RunDirectory(asked.output)
    kind, _, argument = spec.partition(":")
    stem = (FilePath(argument.rstrip("/")).resolve().stem if argument and kind != "torchvision" else argument) or kind
    number = 1
    while True:
        run = names.RunDirectory(FilePath("runs") / (stem if number == 1 else f"{stem}-{number}"))
        if not run.path.exists():
            return run
        if run.exists and not run.finished:
            return run  # resumed, or refused with the difference named
        if run.finished:
            progress.say(f"note: {run.path} holds a finished run; this is another one, and privacy costs add up")
        number += 1


def _absolute(spec: str) -> str:
    kind, colon, argument = spec.partition(":")
    if colon and kind != "torchvision":
        return f"{kind}:{FilePath(argument).expanduser().resolve()}"
    return spec


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if "root" in plain:
        plain["root"] = str(FilePath(plain["root"]).expanduser().resolve())
    return plain


def _reading(progress: Any) -> Any:
    state = {"total": 0}

    def tell(done: int, total: int) -> None:
        if state["total"] != total:
            state["total"] = total
            progress.begin("reading images", total)
        progress.advance(done)

    return tell
