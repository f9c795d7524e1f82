"""sfumato plan: one unknown from the others, or all pairs of participation and mechanism compared."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from sfumato.cli.options.spellings import (
    Budgets,
    Delta,
    Number,
    OfMomentum,
    OfSchedule,
    Path,
    Period,
    Populations,
    Start,
    UnclearError,
    Whole,
    shown,
)
from sfumato.cli.output import console
from sfumato.experiment.budget import Pair, PairOfRecords, Units, rates_of

if TYPE_CHECKING:
    from sfumato.privacy import PrivacyPlan

FOUR = ("batch_size", "steps", "noise_multiplier", "epsilon")


@shown
@dataclass(frozen=True, kw_only=True)
class Plan(Units, PairOfRecords):
    """Find one of noise multiplier, steps, batch size and epsilon from the others. Looks at no data.

    Give three of the four, with --examples; with --compare all of them but the noise multiplier. For instance:
    sfumato plan --examples 50000 --batch-size 4096 --steps 2500 --epsilon 8. For users give --users in place of
    --examples; without --drawn both ways of drawing are compared.
    """

    examples: Whole = None
    """N, the number of training examples; of users, of those that are kept (by default --per-user of each)."""
    users: Whole = None
    """The number of users, where the unit is a user."""
    batch_size: Whole = None
    """Expected number of examples in a step, or of users where these are drawn; all there are for full-batch steps."""
    steps: Whole = None
    """Number of training steps."""
    noise_multiplier: Number = None
    """Standard deviation of the noise over the clipping norm."""
    epsilon: Budgets = None
    """The privacy budget; with --extrapolate that of the larger populations, one or several with commas."""
    delta: Delta = None
    """The chance at which the bound may fail."""
    max_norm: float = 1.0
    """The clipping norm; it does not change epsilon."""
    momentum: OfMomentum = None
    """Of the optimizer: banded and buffered noise is the best for it."""
    schedule: OfSchedule = None
    """Of the learning rate: likewise."""
    start: Start = None
    """Where each record's own time stamp decides its step: when step 0 begins. It does not change epsilon."""
    period: Period = None
    """And how much time each step then covers."""
    compare: bool = False
    """Compare all pairs of participation and mechanism: the noise in the final weights, epsilon, memory."""
    extrapolate: Populations = None
    """Among so many users in place of --users: the rounds that the budget takes at the same noise in the mean."""
    round_sizes: Populations = None
    """With --extrapolate, in place of --epsilon: rounds of so many users, and what epsilon they come to."""
    plot: Path = None
    """With --compare or --extrapolate, draw it to this SVG file."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Solve and print."""
        from sfumato._checks import positive_integer

        if self.unit == "user":
            from sfumato.cli.output import user_plans

            return user_plans.run(self)
        self._refuse_of_users()
        if self.examples is None:
            raise UnclearError(
                "--examples is missing", "give the number of training examples, such as --examples 50000"
            )
        positive_integer("examples", self.examples)
        self._check_clock()
        given = [f"--{name.replace('_', '-')}" for name in FOUR if getattr(self, name) is not None]
        if self.compare:
            return self._compare(given)
        if self.plot is not None:
            raise UnclearError("--plot is given without --compare", "give --compare, which it draws")
        if len(given) + (self.participation == "full-batch" and self.batch_size is None) != 3:
            raise UnclearError(
                "three of --batch-size, --steps, --noise-multiplier and --epsilon are needed, got "
                f"{', '.join(given) or 'none'}",
                "leave out only the one that should follow from the others; sfumato train SOURCE --dry-run chooses by "
                "rules",
            )
        with console.bar("calibrating"):
            plan = self._plan()
        self.show(plan)
        return 0

    def _refuse_of_users(self) -> None:
        from sfumato._checks import one_of

        if self.unit is not None:
            one_of("unit", self.unit, ("example", "user"))
        for name in ("users", "per_user", "drawn", "extrapolate", "round_sizes"):
            if getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise UnclearError(f"--{option} is for users, and the unit is an example", "give --unit user")
        if isinstance(self.epsilon, tuple):
            raise UnclearError(
                f"--epsilon {','.join(map(str, self.epsilon))} names several budgets", "give one: several are for users"
            )

    @property
    def budget(self) -> float | None:
        """The single budget."""
        return None if isinstance(self.epsilon, tuple) else self.epsilon

    def _check_clock(self) -> None:
        from sfumato.data import Clock

        if Clock.declared(self.start, self.period) is not None and self.order != "time":
            raise UnclearError(
                "--start and --period are given without --order time",
                "leave them out, or give it",
            )

    @property
    def _clock(self) -> str:
        """The options of the clock for the command that trains: as given, or to be filled in."""
        return f" --start {self.start or 'TIME'} --period {self.period or 'DURATION'}" if self.order == "time" else ""

    @property
    def _delta(self) -> float:
        from sfumato.privacy.plan import default_delta

        return default_delta(self.examples or 0) if self.delta is None else self.delta

    @property
    def _momentum(self) -> float:
        return 0.9 if self.momentum is None else self.momentum

    def _plan(self) -> PrivacyPlan:
        from sfumato.privacy import PrivacyPlan

        assert self.examples is not None
        return PrivacyPlan.calibrate(
            examples=self.examples,
            delta=self._delta,
            batch_size=self.batch_size,
            steps=self.steps,
            noise_multiplier=self.noise_multiplier,
            epsilon=self.budget,
            max_norm=self.max_norm,
            **self.request(self.examples, momentum=self._momentum, schedule=self.schedule)._asdict(),
        )

    def show(self, plan: PrivacyPlan) -> None:
        """One plan, as a table or as JSON."""
        from sfumato.privacy.planning.remarks import above_one_record, uneven, weak_signal

        correlated = not plan.mechanism.independent
        gap, ordered = plan.participation.gap(plan.population), plan.participation.name == "fixed-order"
        what, users = ("examples" if plan.unit.drawn == "examples" else "users"), ""
        if what == "examples" and plan.users is not None:
            users = f" --users {plan.users}"
        figures: dict[str, Any] = {
            "epsilon": plan.epsilon(),
            "epsilon_rdp": plan.epsilon_rdp,
            "delta": plan.delta,
            "adjacency": plan.adjacency,
            "noise_multiplier": plan.noise_multiplier,
            "mechanism": type(plan.mechanism).__name__,
            "buffers": plan.mechanism.buffers(plan.steps),
            "steps": plan.steps,
            "batch_size": plan.expected_batch_size,
            what: plan.population,
            **_of_users(plan),
            "sampling": type(plan.participation).__name__,
            **({"order": self.order or "random", "bins": gap} if ordered else {}),
            "sampling_probability": plan.sampling_probability,
            "expected_epochs": plan.expected_epochs,
            "max_norm": plan.max_norm,
            "accountant": plan.theorem.tight,
            "theorem": plan.theorem.name,
            "fingerprint": plan.fingerprint,
        }
        large, odd, weak = above_one_record(plan), uneven(plan), weak_signal(plan, 2)
        for note in filter(None, (large, odd)):
            console.note(f"note: {note}")
        if weak is not None:
            console.note(f"note: even {weak}")
        if self.json:
            console.as_json(figures)
            return
        by_rdp = figures["epsilon_rdp"]
        rows = [
            ("epsilon", f"{figures['epsilon']:.4f}  by {plan.theorem.tight}"),
            *([("", f"{by_rdp:.4f}  by Renyi DP, for comparison with papers")] if by_rdp is not None else []),
            ("delta", f"{plan.delta:g}"),
            *((name.replace("_", " "), f"{value}") for name, value in _of_users(plan).items()),
            ("adjacency", plan.adjacency),
            ("mechanism", plan.mechanism.name),
            ("noise multiplier", f"{plan.noise_multiplier:g} {plan.mechanism.words}".rstrip()),
            *([("memory of the noise", f"{figures['buffers']} copies of the model")] if correlated else []),
            ("steps", f"{plan.steps}"),
            *([(what, f"{plan.population}")] if what == "examples" else []),
            ("participation", plan.participation.name),
            *(
                (name.removesuffix(" B").removesuffix(" q"), f"{value:.6g}" if isinstance(value, float) else f"{value}")
                for name, value in plan.participation.facts(plan.population).items()
            ),
            ("expected epochs", f"{plan.expected_epochs:.4g}"),
            ("theorem", plan.theorem.name),
            ("plan", plan.fingerprint[:16]),
        ]
        console.columns(rows)
        if plan.unit.drawn == "clients":
            return
        norm = "" if plan.max_norm == 1 else f" --max-norm {plan.max_norm:g}"
        console.note(
            f"next: sfumato train SOURCE{users} --{what} {plan.population} --batch-size {plan.expected_batch_size} "
            f"--steps {plan.steps} --noise-multiplier {plan.noise_multiplier!r} --delta {plan.delta!r}{norm}"
            f"{self._asked_for()}{self._clock}"
        )

    def _numbers(self) -> str:
        given = [(name, getattr(self, name)) for name in ("momentum", "schedule") if getattr(self, name) is not None]
        return (
            f"--batch-size {self.batch_size} --steps {self.steps} --epsilon {self.budget:g} --delta {self._delta!r}"
            f"{''.join(f' --{name} {value}' for name, value in given)}{self._clock}"
        )

    def _asked_for(self) -> str:
        """The options that name the pair, as they were given."""
        names = [*(one.name for one in (*fields(Units), *fields(PairOfRecords))), "momentum", "schedule"]
        given = {name.replace("_", "-"): getattr(self, name) for name in names if getattr(self, name) is not None}
        given |= {name: " ".join(value) for name, value in given.items() if isinstance(value, tuple)}
        if self.drift is not None:
            given.setdefault("drift-groups", "NAME")
        return "".join(f" --{name} {value}" for name, value in given.items())

    def _compare(self, given: list[str]) -> int:
        from sfumato.cli.output import compared
        from sfumato.privacy.planning.comparison import compare

        if given != ["--batch-size", "--steps", "--epsilon"]:
            raise UnclearError(
                f"--compare needs --batch-size, --steps and --epsilon, got {', '.join(given) or 'none'}",
                "give these three; the noise multiplier follows for each pair",
            )
        if self.mechanism or self.participation or self.drift is not None:
            raise UnclearError(
                "--compare and a single --mechanism, --participation or --drift are both given", "leave these out"
            )
        if self.plot is not None and FilePath(self.plot).suffix.lower() != ".svg":
            raise UnclearError(f"--plot must end with .svg, got {self.plot!r}", "name a file such as pairs.svg")
        with console.bar("comparing") as progress:
            pairs = compare(
                examples=self.examples or 0,
                batch_size=self.batch_size or 0,
                steps=self.steps or 0,
                epsilon=self.budget or 0.0,
                delta=self._delta,
                momentum=self._momentum,
                rates=rates_of(self.schedule, None),
                options={one.name: getattr(self, one.name) for one in fields(Pair)},
                on_progress=progress,
            )
        figures = {"examples": self.examples, "delta": self._delta, "momentum": self._momentum}
        compared.show(pairs, figures, plot=self.plot, json=self.json, after=self._numbers())
        return 0


def _of_users(plan: PrivacyPlan) -> dict[str, Any]:
    """The rows of a plan for users."""
    from sfumato.privacy import User

    if not isinstance(plan.unit, User):
        return {}
    kept = "all" if plan.unit.at_most is None else plan.unit.at_most
    return {"unit": "user", "users": plan.users, "per_user": kept, "drawn": plan.unit.drawn}
