"""sfumato tradeoff: which noise allows how many steps within one budget, and what it costs to compute."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato._checks import positive_integer
from sfumato.cli.options.choices import PrintsJson
from sfumato.cli.options.spellings import BatchSizes, Delta, Multipliers, Number, Path, SingleView, UnclearError, Whole
from sfumato.cli.output import console

if TYPE_CHECKING:
    from sfumato.privacy.planning.tradeoff import Frontier, Point

SIGNAL = (
    "S/N compares plans, it forecasts nothing: a step's is at most B / sigma, where all gradients are clipped and "
    "agree, over the noise in their one direction; the run's is sqrt(T) times that; of limit is the run's share of N "
    "mu, which full batches get from the same budget with any number of steps"
)


@dataclass(frozen=True, kw_only=True)
class Tradeoff(PrintsJson):
    """Show which noise allows how many steps within a budget, for one or several batch sizes. Looks at no data.

    For instance: sfumato tradeoff --examples 50000 --epsilon 8 --batch-size 1024 4096 --epochs 150
    """

    examples: Whole = None
    """N, the number of training examples."""
    epsilon: Number = None
    """Privacy budget."""
    delta: Delta = None
    """Probability with which the epsilon bound may fail."""
    batch_size: BatchSizes = None
    """One or several expected batch sizes. N means full-batch steps."""
    noise_multiplier: Multipliers = None
    """Noise multipliers to show. (default: powers of the square root of two that allow 30 to 30,000 steps, or up to
    1,000 epochs)"""
    epochs: Number = None
    """Computation allowed, B T / N. The best point within it is marked. (default: no limit)"""
    views: SingleView = None
    """K, the views of each example, counted in the gradients to compute."""
    parameters: Whole = None
    """Number of trained parameters. Also shows the signal relative to the norm of the noise."""
    plot: Path = None
    """Draw the frontiers into this file: .svg, .png or .pdf."""

    def run(self) -> None:
        """Solve, draw and print."""
        from sfumato.privacy.participation import participation_for
        from sfumato.privacy.plan import default_delta
        from sfumato.privacy.planning.tradeoff import BATCH_SIZE, chosen, frontier
        from sfumato.report.plots import tradeoff as plot

        if self.examples is None or self.epsilon is None:
            missing = "--examples" if self.examples is None else "--epsilon"
            raise UnclearError(
                f"{missing} is missing", "give budget and number of examples, as in --examples 50000 --epsilon 8"
            )
        positive_integer("examples", self.examples)
        for name in ("views", "parameters"):
            if getattr(self, name) is not None:
                positive_integer(name, getattr(self, name))
        if self.plot is not None:
            plot.check(self.plot)
        sizes = sorted(set(self.batch_size or [min(BATCH_SIZE, self.examples)]))
        for size in sizes:
            participation_for(population=self.examples, batch_size=size)
        frontiers = []
        for size in sizes:
            with console.bar(f"batch size {size}") as on_progress:
                found = frontier(
                    examples=self.examples,
                    batch_size=size,
                    epsilon=self.epsilon,
                    delta=default_delta(self.examples) if self.delta is None else self.delta,
                    noise_multipliers=self.noise_multiplier or None,
                    epochs=self.epochs,
                    on_progress=on_progress,
                )
            frontiers.append(found)
        best = chosen(frontiers, self.epochs)
        if self.plot is not None:
            plot.draw(frontiers, self.plot, best=best, epochs=self.epochs)
        if self.json:
            console.as_json(self._figures(frontiers, best))
        else:
            self._show(frontiers, best)

    def _show(self, frontiers: Sequence[Frontier], best: Point) -> None:
        """A table for each batch size; what the columns and marks mean, and what to do next, beside it."""
        from sfumato.privacy.planning.tradeoff import FLAT

        for found in frontiers:
            plan = found.best.plan
            console.result(
                f"batch size {plan.expected_batch_size:,} of {plan.population:,}, epsilon {found.epsilon:g}, "
                f"delta {plan.delta:g}"
            )
            console.table(*self._table(found))
            console.result()
        rules = _rules(frontiers)
        for text in (SIGNAL, rules.pop("source"), *(f"- {name}: {rule}" for name, rule in rules.items())):
            console.note(textwrap.fill(text, width=110, subsequent_indent="  "))
        if len(frontiers) > 1:
            console.note(f"taken: batch size {best.plan.expected_batch_size:,}, {self._why(best)}")
        share = next(found.share(best) for found in frontiers if best in found.points)
        if share < FLAT:
            console.note(
                f"note: the point taken has {share:.0%} of the limit; more steps, with more noise, would raise it"
            )
        if self.plot is not None:
            console.note(f"{self.plot}   the frontiers as a plot")
        console.note(f"next: {self._next(best)}")

    def _table(self, found: Frontier) -> tuple[list[str], list[list[str]]]:
        from sfumato.privacy.statements.presented import rounded_up
        from sfumato.report.sections.numbers import significant

        norm = self.parameters or 0
        head = ["noise", "steps", "epochs", "gradients", "epsilon", "by RDP", "S/N step", "S/N run"]
        head += ["step, norm", "run, norm"] if norm else []
        rows = []
        for point in found.points:
            signals = [point.signal_to_noise_step, point.signal_to_noise_run]
            signals += [signal / norm**0.5 for signal in signals] if norm else []
            rows.append(
                [
                    f"{point.plan.noise_multiplier:g}",
                    f"{point.plan.steps:,}",
                    f"{point.plan.expected_epochs:,.1f}",
                    f"{point.gradients(self.views or 1):.3g}",
                    rounded_up(point.plan.epsilon()),
                    rounded_up(point.plan.epsilon(accountant="rdp")),
                    *(significant(signal) for signal in signals),
                    f"{100 * found.share(point):.1f}%",
                    self._remark(found, point),
                ]
            )
        return [*head, "of limit", ""], rows

    def _remark(self, found: Frontier, point: Point) -> str:
        """What the marks of a row say; the arrow is the row to take."""
        remarks = {
            "steps": "steps: rule of De et al. 2022",
            "noise": "noise: rule of De et al. 2022",
            "epochs": f"the most steps in {self.epochs or 0:g} epochs",
        }
        marks = [remarks[point.rule]] if point.rule else []
        marks += ["flat from here"] if point is found.flat_from else []
        if point is found.best and not marks:
            marks = ["enough steps: more of full batches gain nothing"]
        return ("<- " if point is found.best else "   ") + ", ".join(marks) if marks else ""

    def _why(self, best: Point) -> str:
        """Why this batch size of several."""
        from sfumato.privacy.planning.tradeoff import batch_by_rule

        if self.epochs is None:
            return "the largest; with --epochs it would be one that fits them"
        ideal = batch_by_rule(best.plan.population, self.epsilon or 0, self.epochs)
        return f"the nearest to {ideal:,.0f}, which is what the rules suggest for {self.epochs:g} epochs"

    def _next(self, best: Point) -> str:
        """The command that trains by this point, with every digit of it: a rounded noise could miss the budget."""
        plan = best.plan
        views = f" --views {self.views}" if (self.views or 1) > 1 else ""
        return (
            f"sfumato train SOURCE --examples {plan.population} --batch-size {plan.expected_batch_size} "
            f"--steps {plan.steps} --noise-multiplier {plan.noise_multiplier!r} --delta {plan.delta!r}{views}"
        )

    def _figures(self, frontiers: Sequence[Frontier], best: Point) -> dict[str, Any]:
        """The result as plain data."""
        return {
            "examples": best.plan.population,
            "epsilon": frontiers[0].epsilon,
            "delta": best.plan.delta,
            "views": self.views or 1,
            "epochs": self.epochs,
            "accountant": best.plan.theorem.tight,
            "frontiers": [
                {
                    "batch_size": found.best.plan.expected_batch_size,
                    "sampling": type(found.best.plan.participation).__name__,
                    "sampling_probability": found.best.plan.sampling_probability,
                    "limit": found.limit,
                    "flat_from": found.flat_from.plan.noise_multiplier if found.flat_from else None,
                    "points": [self._point(found, point, best) for point in found.points],
                }
                for found in frontiers
            ],
            "rules": _rules(frontiers),
            "next": self._next(best),
        }

    def _point(self, found: Frontier, point: Point, best: Point) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "noise_multiplier": point.plan.noise_multiplier,
            "steps": point.plan.steps,
            "expected_epochs": point.plan.expected_epochs,
            "gradients": point.gradients(self.views or 1),
            "epsilon": point.plan.epsilon(),
            "epsilon_rdp": point.plan.epsilon(accountant="rdp"),
            "signal_to_noise_step": point.signal_to_noise_step,
            "signal_to_noise_run": point.signal_to_noise_run,
            "effective_noise": point.effective_noise,
            "share_of_limit": found.share(point),
            "rule": point.rule,
            "take": point is best,
        }
        if self.parameters is not None:
            figures["signal_to_noise_step_norm"] = point.signal_to_noise_step / self.parameters**0.5
            figures["signal_to_noise_run_norm"] = point.signal_to_noise_run / self.parameters**0.5
        return figures


def _rules(frontiers: Sequence[Frontier]) -> dict[str, str]:
    """The rules of thumb that concern these frontiers, and where they come from."""
    from sfumato.privacy.planning.tradeoff import FOUND, MODERATE_BATCH, RULES

    left_out = set()
    if not any(point.rule == "noise" for found in frontiers for point in found.points):
        left_out.add("noise")
    if all(found.best.plan.expected_batch_size >= MODERATE_BATCH for found in frontiers):
        left_out.add("small batches")
    return {"source": FOUND, **{name: rule for name, rule in RULES.items() if name not in left_out}}
