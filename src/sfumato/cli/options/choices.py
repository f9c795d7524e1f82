"""Options that several verbs share: model, source, run directory and computation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sfumato._cards import Detail
from sfumato._checks import SfumatoError
from sfumato._choices import all_optional, choices_of
from sfumato.cli.options import recipe
from sfumato.cli.options.run_options import DeviceOptions, EndsWithJson, ObserverOptions
from sfumato.cli.parser import argument, numbers, option, refuse_given
from sfumato.cli.registry import name_of
from sfumato.data.declared import Declared, Labels, Loading, People, Pixels, Texts
from sfumato.data.paths import stem_of
from sfumato.experiment.experiment import Choices, ClassShares, Experiment, Normalisation
from sfumato.experiment.settings import Budget, NoiseMade, PairOfRecords, Units

if TYPE_CHECKING:
    from sfumato.data import SourceSpec
    from sfumato.observers.observer import Observer
    from sfumato.observers.progress import Progress
    from sfumato.runs.directory import RunDirectory
    from sfumato.training.trial import Trial

NOT_IN_RECIPES = (
    *("what", "json", "copy", "verbose", "dry_run", "seeds", "title", "trust_code", "tensorboard", "track"),
    *("vary", "one_at_a_time", "search", "candidates", "validation"),
    *("score_on", "processes"),
)


@dataclass(frozen=True, kw_only=True)
class SourceChoices(Labels, Pixels, Loading, People):
    """Where the images are, and what is declared of them."""

    public: bool = False
    """The data are public. digits and torchvision sources are public unless --private is given."""


class SharedWork:
    """A verb whose work the processes of torchrun share."""

    def check_processes(self) -> None:
        """Refuse several processes for work that they cannot share, before any of them starts."""


@dataclass(frozen=True, kw_only=True)
class NewRunChoices(EndsWithJson, DeviceOptions, SourceChoices):
    """Options of a verb that begins runs, from the command line and from a recipe."""

    output: str | None = option("PATH")
    """Run directory. (default: runs/ and the source's name)"""
    seed: int | None = None
    """For experiments: derive all randomness from this number. Such a run has no privacy guarantee."""
    source: str | None = None
    """Source to use instead of the recipe's."""
    trust_code: bool = False
    """Run the code that a recipe, a run or its weights name as their model (package:function)."""

    def trial(self) -> Trial:
        """The requested training."""
        raise NotImplementedError

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "what" and getattr(self, field.name) != field.default
        }

    def resumes(self, path: str) -> bool:
        """Whether `path` is a run directory to resume. Refuses options that would change the run."""
        from sfumato.runs import directory as names

        if not path or not (Path(path) / names.SETTINGS).is_file():
            return False
        harmless = ("copy", "dry_run", "json", "verbose", "title", "trust_code", "tensorboard", "track")
        options = [name for name in self.given if name not in harmless]
        if options:
            raise SfumatoError(
                f"{path} is a run, which resumes with its own settings, but options were given: {', '.join(options)}",
                "leave them out, or give the source to start a new run",
            )
        return True

    def with_recipe(self, spec: str) -> Self:
        """These options, completed by those of the recipe if `spec` is one."""
        from sfumato.data import refuse_absent
        from sfumato.experiment.client_choices import unused_choices

        if not recipe.is_recipe(spec):
            refuse_given(f"is for recipes, but {spec} is a source", source=self.source)
            refuse_absent(spec)
            return replace(self, source=spec)
        names = {field.name for field in fields(self)} - set(NOT_IN_RECIPES)
        chosen = self.given
        options = recipe.read(spec, chosen, names, verb=name_of(type(self)))
        if getattr(self, "model", None) is None and "model" in options:
            for model in options["model"].split():
                recipe.check_trusted(model, recipe.title(spec), trust_code=self.trust_code)
        if {"source", "private"} & set(chosen):  # the recipe's `public` is about its own source
            options.pop("public", None)
        if "public" in chosen:
            options.pop("private", None)
        if "pretrained" in chosen and not Path(chosen["pretrained"]).is_dir():
            options.pop("pretrained_weights", None)  # only a run has several weights to choose from
        if {"method", "client_loss"} & set(chosen):  # drop options that the given method or loss does not use
            method, loss = (chosen.get(name, options.get(name)) for name in ("method", "client_loss"))
            options = {name: value for name, value in options.items() if name not in unused_choices(method, loss)}
        alternatives = ("bit_depth", "window")  # only one of them can be given
        if set(alternatives) & set(chosen):
            options = {name: value for name, value in options.items() if name not in alternatives}
        merged = replace(self, **{**options, **chosen})
        if merged.source is None:
            raise SfumatoError(f"{recipe.title(spec)} names no source", 'give --source, or add source = "digits" to it')
        refuse_absent(merged.source)
        return merged

    @property
    def spec(self) -> SourceSpec:
        """The source, as these options name and declare it."""
        return source_spec(self, self.source or "")

    @property
    def default_output(self) -> Path:
        """The default run directory, runs/NAME."""
        return Path("runs") / stem_of(self.source or "")

    def directory(self) -> RunDirectory:
        """The given directory; otherwise the first of runs/NAME, runs/NAME-2, ... that is free or unfinished.

        Errors: `SfumatoError` if no run can begin there.
        """
        from sfumato.runs import directory as names

        if self.output is not None:
            run = names.RunDirectory(self.output)
            if not run.exists:
                run.require_free()
            return run
        for number in itertools.count(1):
            run = names.RunDirectory(f"{self.default_output}-{number}" if number > 1 else self.default_output)
            if not run.path.exists():
                run.require_free()
                break
            if run.exists and not run.finished:
                break  # it is resumed, or an error names the difference
        return run

    def notes_on(self, run: RunDirectory) -> list[str]:
        """A note if another directory was chosen because the default one holds a finished run."""
        from sfumato.runs import directory as names

        if (
            self.output is not None
            or run.path == self.default_output
            or not names.RunDirectory(self.default_output).finished
        ):
            return []
        return [f"note: {self.default_output} holds a finished run; the new run is in {run.path}"]


@dataclass(frozen=True, kw_only=True)
class PrivateRun(ObserverOptions, SharedWork, NewRunChoices):
    """Options of a verb that trains privately, and the course of its run."""

    what: str = argument("SOURCE|RECIPE|RUN")
    """A source, a recipe, or a run to resume."""

    budget: str | None = option("NAME", "no budget")
    """Reserve the whole plan in this budget, and refuse to start if it does not fit."""
    keep: int | None = option("NUMBER", "by rule")
    """Number of checkpoints kept with the model, for sfumato aggregate and intervals. 0 keeps none. (default: 20, or
    as many as fit in 64 MiB, or none if fewer than 4 fit)"""
    seeds: int | None = None
    """Train this many runs, into OUTPUT/1, OUTPUT/2, ..., and print their figures, the spread, and their joint
    guarantee."""
    copy: bool = False
    """Resume a run although another copy of it went on. The steps that the other may have taken are counted as spent.
    """
    dry_run: bool = False
    """Check everything, print plan, model, time and memory, and spend nothing."""

    budgets: ClassVar[Any] = None
    """Several epsilons, one for each run."""
    title: ClassVar[Any] = None

    def run(self) -> None:
        """Train, or print the dry run."""
        resumed = self.resumes(self.what)
        if not resumed:
            self.resolved()  # refuses unreadable input before slow imports
        self.check_observers()
        if self.budgets is not None or self.seeds is not None:
            self.run_repeated()
            return
        from sfumato.cli.output import training_output
        from sfumato.runs.directory import Heading
        from sfumato.training.preparation import from_record
        from sfumato.training.run import execute

        finished = from_record.load_if_complete(self.what) if resumed else None
        if finished is None:
            with self.progress_bars() as progress:
                job, run = self.job(progress)
                if self.dry_run:
                    self.preview(job, run, progress)
                    return
                for name, line in ({} if run.exists else self.summary(job)).items():
                    progress.report(f"{name}: {line}")
                observers = self.observers(run, progress, public=job.source.public)
                keywords = {"progress": progress, "observers": observers, "copy": self.copy}
                finished = execute(job, run, heading=Heading(title=self.title), **keywords)
        training_output.show(finished, json=self.json)

    def summary(self, job: Any) -> dict[str, str]:
        """What is about to be trained, in a few lines."""
        return {}

    def preview(self, job: Any, run: RunDirectory, progress: Progress) -> None:
        """Print the dry run."""
        from sfumato.cli.output import training_output

        training_output.show_dry_run(training_output.dry_run_data(job, run), every=True, json=self.json)

    def run_repeated(self) -> None:
        """Train once for each budget, or with several keys, and print the results."""
        from sfumato import search
        from sfumato.cli.output import search_output, training_output

        if self.budgets is None and self.dry_run:
            refuse_given(
                "and --dry-run are both given", "leave --seeds out to see the cost of one run", seeds=self.seeds
            )
        chosen, budgets = self.resolved(), self.budgets
        base = Path(self.output or f"runs/{stem_of(self.what)}-{'seeds' if budgets is None else 'budgets'}")
        if budgets is None:
            trials = search.Seeds(chosen.trial(), self.seeds)
        else:
            trials = search.Budgets(replace(chosen, epsilon=None).trial(), budgets, self.trial_for_epsilon)
        with self.progress_bars(repeating=False) as progress:

            def observers(job: Any, run: RunDirectory) -> tuple[Observer, ...]:
                return self.observers(run, progress, public=job.source.public)

            result = search.sweep(
                trials,
                directory=base,
                dry_run=self.dry_run,
                preview=training_output.dry_run_data,
                observers=observers,
                progress=progress,
            )
        search_output.show_repeated(result, base, json=self.json)

    def check_processes(self) -> None:
        """Refuse several processes for anything but one private run."""
        several = {"epsilon": self.budgets, "seeds": self.seeds}
        refuse_given("means several runs, but several processes train one", "use one process", **several)

    def resolved(self) -> Self:
        """These options, completed by those of the recipe. Refuses unreadable input before slow imports."""
        if self.what and Path(self.what).is_dir() and ":" not in self.what:
            from sfumato.data import Cache

            raise SfumatoError(
                f"{self.what} is a folder, but neither a run nor a source",
                f"write {'features' if Cache(self.what).exists else 'folder'}:{self.what}",
            )
        return self.with_recipe(self.what)

    def trial_for_epsilon(self, epsilon: float) -> Trial:
        """The training for one budget. The recipe may have a row for it."""
        return replace(self, epsilon=epsilon).resolved().trial()

    def job(self, progress: Progress) -> tuple[Any, RunDirectory]:
        """The job, prepared up to the first step, and the run directory."""
        if self.resumes(self.what):
            return self.job_from_record(self.what)
        chosen = self.resolved()
        run = chosen.directory()  # refuses an occupied directory before data are read
        trial = chosen.trial()
        return replace(trial, notes=(*chosen.notes_on(run), *trial.notes)).job(run, progress), run

    def job_from_record(self, path: str) -> tuple[Any, RunDirectory]:
        """The job of a run directory, from its record."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TrainingChoices(NewRunChoices, all_optional(Texts), Choices):
    """Options of a verb that trains a classifier."""

    def with_pretrained(self) -> tuple[Self, list[str]]:
        """Take over missing model, size and channels from the pre-trained weights. Returns the options and notes."""
        if self.pretrained in (None, "timm"):
            return self, []
        from sfumato import models

        weights, which = self.pretrained, self.pretrained_weights
        file = models.resolve_weights(weights if which is None else models.weights_file(weights, which))
        about = models.read_description(file) or {}
        if about.get("features"):
            raise SfumatoError(
                f"{self.pretrained} is a head on the features of a fixed backbone",
                "give the backbone as --model, with its own weights, to train all of its layers",
            )
        taken = {name: about[name] for name in ("model", "size", "channels") if name in about}
        taken = {name: value for name, value in taken.items() if getattr(self, name) is None and value != "module"}
        if "model" in taken:
            recipe.check_trusted(taken["model"], file, trust_code=self.trust_code)
        notes: list[str] = [
            Detail(f"{name} {value} (by rule: from the pre-trained weights)") for name, value in taken.items()
        ]
        return replace(self, **taken), notes


@dataclass(frozen=True, kw_only=True)
class PrivateChoices(Units, PairOfRecords, NoiseMade, Budget, ClassShares, Normalisation, TrainingChoices):
    """Options of a verb that trains privately."""

    epsilon: float | tuple[float, ...] | None = option("EPSILON[,EPSILON...]", "3", read=numbers)
    """Privacy budget. sfumato train takes several, separated by commas, and trains one model for each."""
    examples: int | None = option("N", "counted in the data")
    """N, the number of training examples (with --unit user, of those kept), declared. If counted, the statement says
    so."""
    private: bool = False
    """The data are private, although the source is a public one."""
    micro_batch: int | None = option("NUMBER", "by rule")
    """Largest number of examples in memory at once. (default: measured on synthetic examples)"""
    precision: str | None = option("float32|bfloat16", "by rule")
    """Precision of matrix products and convolutions. The guarantee does not change. (default: bfloat16 on GPUs that
    have it in hardware, if a whole network is trained; else float32)"""

    @property
    def experiment(self) -> Experiment:
        """The experiment of a single training. Refuses several budgets."""
        if isinstance(self.epsilon, tuple):
            raise SfumatoError(
                f"--epsilon {','.join(map(str, self.epsilon))} names several budgets", "give one, or use sfumato train"
            )
        return Experiment(**{field.name: getattr(self, field.name) for field in fields(Experiment)})

    def trial(self) -> Trial:
        """The requested training, with values taken over from pre-trained weights."""
        from sfumato.training.trial import Trial

        chosen, notes = self.with_pretrained()
        return Trial(
            experiment=chosen.experiment,
            source=chosen.spec,
            device=chosen.device,
            threads=chosen.threads,
            micro_batch=chosen.micro_batch,
            precision=chosen.precision,
            notes=tuple(notes),
            earlier_search=partial(recipe.uncovered_search, self.what, self.source, self.batch_size),
        )


def source_spec(options: SourceChoices, spec: str, **by_rule: Any) -> SourceSpec:
    """The source with this name, as the options declare it; `by_rule` replaces missing declarations."""
    from sfumato.data import SourceSpec

    declared = {
        field.name: getattr(options, field.name) for field in fields(options) if field.name in choices_of(Declared)
    }
    declarations = by_rule | {name: value for name, value in declared.items() if value is not None and name != "public"}
    private = getattr(options, "private", False)
    if options.public and private:
        raise SfumatoError("--public and --private are both given", "give one of them")
    return SourceSpec(spec=spec, **declarations, public=options.public if options.public or private else None)
