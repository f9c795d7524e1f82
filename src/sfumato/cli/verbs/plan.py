"""sfumato plan and sfumato tradeoff: solve a plan for one unknown, and show how many steps each noise allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sfumato._checks import one_of, positive_integer
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note, Table
from sfumato.cli.parser import UsageError, option, refuse_given, required
from sfumato.experiment.settings import PairOfRecords, Units, make_plan
from sfumato.privacy.planning.target import Target, target_figures, target_of

if TYPE_CHECKING:
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.planning.tradeoff import Point
    from sfumato.privacy.unit import Unit

FOUR = ("batch_size", "steps", "noise_multiplier")
"""The numbers of which, with the target, one is computed."""
FRONTIER_COLUMNS = {
    "noise": "{noise_multiplier:g}",
    "steps": "{steps:,}",
    "epochs": "{expected_epochs:,.1f}",
    "gradients": "{gradients:.3g}",
    "epsilon": "{epsilon:up}",
    "by RDP": "{epsilon_rdp:up}",
    "S/N step": "{signal_to_noise_step:,.4g}",
    "S/N run": "{signal_to_noise_run:,.4g}",
    "of limit": "{share_of_limit:.1%}",
    "": "{remark}",
}
NOTES = (
    "S/N (signal to noise) compares plans but is no forecast: B / sigma per step, sqrt(T) times that per run; of "
    "limit: relative to full batches with the same budget",
    "the rule of De et al. 2022, section 5, is from CIFAR-10 with a WRN-16-4 trained from scratch at epsilon 8: a "
    "starting point for other data",
)


@dataclass(frozen=True, kw_only=True)
class Plan(PrintsJson, Units, PairOfRecords):
    """Compute noise multiplier, steps, batch size or epsilon from the other three. Reads no data.

    Give three of the four, with --examples. For instance: sfumato plan --examples 50000 --batch-size 4096 --steps 2500
    --epsilon 8. --mu or --attack-risk can stand for --epsilon. For users give --users instead of --examples.
    """

    examples: int | None = None
    """N, the number of training examples."""
    users: int | None = None
    """Number of users, if the unit is a user."""
    batch_size: int | None = None
    """Expected number of examples, or of sampled users, in a step; all of them for full-batch steps."""
    steps: int | None = None
    """Number of training steps."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise divided by the clipping norm."""
    epsilon: float | None = None
    """Privacy budget."""
    mu: float | None = option("MU")
    """Budget as the mu of Gaussian differential privacy, in place of epsilon."""
    attack_risk: str | None = option("TPR@FPR")
    """Budget as an attacker's success, in place of epsilon. 0.01@0.001: at one false alarm in a thousand, at most 1% of
    the members are found."""
    accountant: str | None = option("pld|rdp", "pld")
    """How to find noise, steps or batch size that meet epsilon."""
    delta: float | None = option("DELTA", "a power of ten, at most 1e-5 and 1/(10 N)")
    """Probability with which the epsilon bound may fail."""
    max_norm: float = 1.0
    """Clipping norm. It does not change epsilon."""
    momentum: float | None = option("NUMBER", "0.9")
    """Momentum of the optimizer, for which banded noise is optimised."""
    schedule: str | None = option("NAME", "constant")
    """Learning rate schedule, for which banded noise is optimised."""

    def run(self) -> None:
        """Solve and print."""
        from sfumato.privacy.planning import remarks

        unit, population = self._unit()
        self._check_numbers()
        with console.bar("calibrating"):
            plan = make_plan(self, population, unit, self.request(population), mu=self.mu, attack_risk=self.attack_risk)
        weak = remarks.weak_signal_note(plan, 2)
        notes = (remarks.large_delta_note(plan), remarks.unused_examples_note(plan), weak and f"even {weak}")
        for note in filter(None, notes):
            console.note(f"note: {note}")
        data = remarks.costs(plan) | target_figures(plan, self.target) | remarks.figures(plan)
        if self.per_step is None:  # then a rule of train's decides, which moves no figure here
            data.pop("per_step", None)
        console.show(data, Facts(data), Note(f"next: {_command(plan, **self._further_options(plan))}"), json=self.json)

    @property
    def target(self) -> Target | None:
        """The target that the plan is calibrated to. Refuses two of them."""
        return target_of(self.epsilon, self.mu, self.attack_risk)

    def _unit(self) -> tuple[Unit, int]:
        """The unit, and the number of examples or users to draw from."""
        from sfumato.privacy import Example, User
        from sfumato.privacy.unit import ALL, shown_by_plan

        if self.unit == "user":
            users, *_ = required(self, users=3400)
            per_step = ALL if self.per_step is None else positive_integer(per_step=self.per_step)
            unit = User(at_most=self.per_user, per_step=shown_by_plan(per_step, self.per_user))
            return unit, positive_integer(users=users)
        one_of(("example", "user"), optional=True, unit=self.unit)
        of_users = {name: getattr(self, name) for name in ("users", "per_user", "per_step")}
        refuse_given("is for users, but the unit is an example", "give --unit user", **of_users)
        examples, *_ = required(self, examples=50000)
        return Example(), positive_integer(examples=examples)

    def _check_numbers(self) -> None:
        """Refuses other numbers than three of the four."""
        numbers = [f"--{name.replace('_', '-')}" for name in FOUR if getattr(self, name) is not None]
        numbers += [f"--{self.target.name.replace('_', '-')}"] if self.target is not None else []
        if len(numbers) + (self.participation == "full-batch" and self.batch_size is None) != 3:
            raise UsageError(
                "three of --batch-size, --steps, --noise-multiplier and --epsilon are needed, got "
                f"{', '.join(numbers) or 'none'}",
                "leave out the one to compute; sfumato train SOURCE --dry-run chooses them by rules",
            )

    def _further_options(self, plan: PrivacyPlan) -> dict[str, Any]:
        """The options of sfumato train, besides the plan's numbers, that make the same plan."""
        names = [*(field.name for field in (*fields(Units), *fields(PairOfRecords))), "momentum", "schedule"]
        options = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        options = {name: " ".join(value) if isinstance(value, tuple) else value for name, value in options.items()}
        if self.drift is not None:
            options.setdefault("drift_groups", "NAME")
        if plan.max_norm != 1:
            options["max_norm"] = f"{plan.max_norm:g}"
        if plan.users is not None and self.examples is not None:
            options["examples"] = self.examples
        return options


@dataclass(frozen=True, kw_only=True)
class Tradeoff(PrintsJson):
    """Show the trade-off between noise and steps within a budget, for one or several batch sizes. Reads no data.

    For instance: sfumato tradeoff --examples 50000 --epsilon 8 --batch-size 1024 4096 --epochs 150
    """

    examples: int | None = None
    """N, the number of training examples."""
    epsilon: float | None = None
    """Privacy budget."""
    delta: float | None = option("DELTA", "a power of ten, at most 1e-5 and 1/(10 N)")
    """Probability with which the epsilon bound may fail."""
    batch_size: tuple[int, ...] | None = option("B [B ...]", "4096, or N if that is less")
    """Expected numbers of examples in a step; the number of --examples means full-batch steps."""
    noise_multiplier: tuple[float, ...] | None = option("SIGMA [SIGMA ...]", "by rule")
    """Noise multipliers to show."""
    epochs: float | None = None
    """The allowed compute, B T / N. The recommended point within it is marked."""

    def run(self) -> None:
        """Solve and print."""
        from sfumato.privacy.participation import participation_for
        from sfumato.privacy.plan import default_delta
        from sfumato.privacy.planning.tradeoff import frontier, recommended_point

        examples, epsilon = required(self, examples=50000, epsilon=8)
        positive_integer(examples=examples)
        sizes = sorted(set(self.batch_size or [min(4096, examples)]))
        for size in sizes:
            participation_for(population=examples, batch_size=size)
        delta, frontiers = default_delta(examples) if self.delta is None else self.delta, []
        for size in sizes:
            with console.bar(f"batch size {size}") as on_progress:
                points = frontier(
                    examples=examples,
                    batch_size=size,
                    epsilon=epsilon,
                    delta=delta,
                    noise_multipliers=self.noise_multiplier or None,
                    epochs=self.epochs,
                    on_progress=on_progress,
                )
            frontiers.append(points)
        best = recommended_point(frontiers, self.epochs)
        share = next(points.share(best) for points in frontiers if best in points.points)
        rows = [points.to_dict() for points in frontiers]
        data = {"examples": examples, "epsilon": epsilon, "delta": delta, "epochs": self.epochs}
        data |= {"frontiers": rows, "take": best.plan.to_dict(), "next": _command(best.plan)}
        console.show(data, *self._parts(rows, data), *map(Note, self._notes(data, best, share)), json=self.json)

    def _parts(self, rows: list[dict[str, Any]], data: dict[str, Any]) -> Iterator[str | Table]:
        """A heading and a table for each batch size."""
        for row in rows:
            yield "batch size {batch_size:,} of {examples:,}, epsilon {epsilon:g}, delta {delta:g}".format(**data | row)
            yield Table([point | {"remark": self._remark(point)} for point in row["points"]], FRONTIER_COLUMNS)
            yield ""

    def _notes(self, data: dict[str, Any], best: Point, share: float) -> Iterator[str]:
        """What the figures mean, and which point to take."""
        from sfumato.privacy.planning.tradeoff import FLAT

        yield from NOTES
        if len(data["frontiers"]) > 1:
            yield f"recommended: batch size {best.plan.expected_batch_size:,}, {self._batch_size_reason(best)}"
        if share < FLAT:
            yield f"note: the recommended point reaches {share:.0%} of the limit; more steps with more noise raise it"
        yield f"next: {data['next']}"

    def _remark(self, point: dict[str, Any]) -> str:
        """The remark on a row. An arrow marks the row to take."""
        words = {"steps": "steps: rule of De et al. 2022", "epochs": f"the most steps in {self.epochs or 0:g} epochs"}
        marks = [words[point["rule"]]] if point["rule"] else []
        marks += ["flat from here"] if point["flat"] else []
        if point["take"] and not marks:
            marks = ["enough steps: more full batches gain nothing"]
        return ("<- " if point["take"] else "   ") + ", ".join(marks) if marks else ""

    def _batch_size_reason(self, best: Point) -> str:
        """The reason for this batch size among several."""
        from sfumato.privacy.planning.tradeoff import batch_by_rule

        if self.epochs is None:
            return "the largest; with --epochs, the largest that fits"
        ideal = batch_by_rule(best.plan.population, self.epsilon or 0, self.epochs)
        return f"the nearest to {ideal:,.0f}, the rule's suggestion for {self.epochs:g} epochs"


def _command(plan: PrivacyPlan, **further: Any) -> str:
    """The command that trains by this plan, with all digits: a rounded noise multiplier could exceed the budget."""
    options = {
        "users" if plan.users else "examples": plan.population,
        "batch_size": plan.expected_batch_size,
        "steps": plan.steps,
        "noise_multiplier": repr(plan.noise_multiplier),
        "delta": repr(plan.delta),
        **further,
    }
    return "sfumato train SOURCE" + "".join(f" --{name.replace('_', '-')} {value}" for name, value in options.items())
