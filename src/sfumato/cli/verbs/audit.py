"""sfumato audit: a lower bound on epsilon from an attack on a run's own step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.cli.options import recipe
from sfumato.cli.options.run_options import EndsWithJson
from sfumato.cli.output import console
from sfumato.cli.output.console import Note
from sfumato.cli.parser import argument, option, refuse_given

if TYPE_CHECKING:
    from sfumato.observers.progress import Progress
    from sfumato.runs.published import AuditOutcome
    from sfumato.search.audit_subject import Subject


@dataclass(frozen=True, kw_only=True)
class Audit(EndsWithJson):
    """Attack the training step of a finished run, or of a recipe.

    Takes the software's own step thousands of times with a canary and without it, on synthetic inputs. No data of the
    run are read, and no privacy is spent. Prints the epsilon that this proves as a lower bound, and checks the noise of
    each parameter. Exit status 0, or 1 if a bound exceeds the guaranteed epsilon or the noise is not the plan's.
    """

    what: str = argument("RUN|RECIPE")
    """A run directory or a recipe."""
    epsilon: float | None = None
    """Row of a recipe with one row per budget."""
    observations: int | None = option("NUMBER", "by rule")
    """Number of times the step is taken, with and without the canary. (default: 5000, or as many as 18 seconds
    allow)"""
    confidence: float = 0.95
    """One minus the probability that the bound exceeds the true epsilon."""
    model: str | None = option("package:function")
    """The function that builds a model of your own (package:function)."""
    trust_code: bool = False
    """Run the code that a recipe names as its model (package:function)."""

    attack: int | None = None
    """Attack the run's model file on its own records instead, with this many shadow models, such as 64."""

    def run(self) -> int:
        """Run the audit, write the result to the run directory, and print it."""
        if self.attack is not None:
            return self._attack(self.attack)
        from sfumato.runs import directory as names
        from sfumato.training.conclusion import run_report

        with self.progress_bars() as progress:
            outcome = self._run_audit(progress)
        run = None if recipe.is_recipe(self.what) else names.RunDirectory(self.what)
        console.show(
            {"run": self.what, **outcome.summary},
            *run_report.terminal_lines(outcome),
            "",
            _verdict(outcome),
            None if run is None else Note(f"{run / names.STEP_AUDIT}   the observations"),
            None if run is None else Note(f"{run / names.REPORT}   the report, with a plot of it"),
            json=self.json,
        )
        return 1 if outcome.refuted else 0

    def _run_audit(self, progress: Progress) -> AuditOutcome:
        from sfumato.search.step_audit import audit_run, audit_step

        keywords: dict[str, Any] = {
            "observations": self.observations,
            "confidence": self.confidence,
            "progress": progress,
        }
        if recipe.is_recipe(self.what):
            return audit_step(self._recipe_subject(progress), **keywords)
        refuse_given(f"selects a recipe's row, but {self.what} is a run", epsilon=self.epsilon)
        return audit_run(self.what, model=self.model, **keywords)

    def _attack(self, shadows: int) -> int:
        """Attack the model file like an outsider. The result is for the owner only and is not stored."""
        from sfumato.search.membership import shadow_attack

        others = {"epsilon": self.epsilon, "observations": self.observations, "model": self.model}
        refuse_given("and --attack are both given", **others)
        if recipe.is_recipe(self.what):
            refuse_given(f"is for a model file, but {self.what} is a recipe", "name a run directory", attack=shadows)
        with self.progress_bars() as progress:
            result = shadow_attack(self.what, shadows, progress=progress)
        console.show({"run": self.what, **result.to_dict()}, result.sentence, json=self.json)
        return 1 if result.exceeds else 0

    def _recipe_subject(self, progress: Progress) -> Subject:
        """The training of a recipe, prepared as for a dry run."""
        from sfumato.cli.verbs.train import Train
        from sfumato.search.audit_subject import from_job

        training = Train(what=self.what, epsilon=self.epsilon, trust_code=self.trust_code, model=self.model)
        try:
            job, _ = training.job(progress)
        except SfumatoError as error:
            if "`root`" not in error.remedy:
                raise
            row = "" if self.epsilon is None else f" --epsilon {self.epsilon:g}"
            raise SfumatoError(
                error.problem,
                f"download it with sfumato train {self.what}{row} --download --dry-run, or give a recipe of your own "
                "whose root is its folder",
            ) from None
        return from_job(job, self.what)


def _verdict(outcome: AuditOutcome) -> str:
    """The verdict, which is the last line."""
    broken = outcome.noise is not None and outcome.noise.has_fault
    if not outcome.bounds:
        return (
            "no epsilon is proven for correlated noise; in the first steps the noise is "
            f"{'NOT ' if broken else ''}the plan's"
        )
    best = max(outcome.bounds, key=lambda bound: bound.epsilon)
    where = "above" if outcome.exceeds else "within chance of" if outcome.doubtful else "not above"
    noise = "; the noise is NOT the plan's" if broken else ""
    return (
        f"epsilon is at least {int(best.epsilon * 100) / 100:.2f}, {where} the guaranteed {outcome.nominal:.3f}{noise}"
    )
