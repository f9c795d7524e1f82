"""sfumato plan: one unknown from the others, or all pairs of participation and mechanism compared."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from sfumato.cli import console
from sfumato.cli.options import Delta, Number, OfMomentum, OfSchedule, Path, Period, Start, UnclearError, Whole, shown
from sfumato.training.experiment import Pair, rates_of

if TYPE_CHECKING:
    from sfumato.privacy import PrivacyPlan

FOUR = ("batch_size", "steps", "noise_multiplier", "epsilon")


@shown
@dataclass(frozen=True, kw_only=True)
class Plan(Pair):
    """Find one of noise multiplier, steps, batch size and epsilon from the others. Looks at no data.

    Give three of the four, with --examples; with --compare all of them but the noise multiplier. For instance:
    sfumato plan --examples 50000 --batch-size 4096 --steps 2500 --epsilon 8
    """

    examples: Whole = None
    """N, the number of training examples."""
    batch_size: Whole = None
    """Expected number of examples in a step; as many as --examples means full-batch steps."""
    steps: Whole = None
    """Number of training steps."""
    noise_multiplier: Number = None
    """Standard deviation of the noise over the clipping norm."""
    epsilon: Number = None
    """The privacy budget."""
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
    plot: Path = None
    """With --compare, draw it to this SVG file."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Solve and print."""
        from sfumato._checks import positive_integer

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
                "leave out only the one that should follow from the others",
            )
        with console.bar("calibrating"):
            plan = self._plan()
        self._show(plan)
        return 0

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
            epsilon=self.epsilon,
            max_norm=self.max_norm,
            **self.request(self.examples, momentum=self._momentum, schedule=self.schedule)._asdict(),
        )

    def _show(self, plan: PrivacyPlan) -> None:
        from sfumato.privacy.remarks import above_one_record, uneven, weak_signal

        correlated = not plan.mechanism.independent
        gap, ordered = plan.participation.gap(plan.population), plan.participation.name == "fixed-order"
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
            "examples": plan.population,
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
            ("adjacency", plan.adjacency),
            ("mechanism", plan.mechanism.name),
            ("noise multiplier", f"{plan.noise_multiplier:g} {plan.mechanism.words}".rstrip()),
            *([("memory of the noise", f"{figures['buffers']} copies of the model")] if correlated else []),
            ("steps", f"{plan.steps}"),
            ("examples", f"{plan.population}"),
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
        norm = "" if plan.max_norm == 1 else f" --max-norm {plan.max_norm:g}"
        console.note(
            f"next: sfumato train SOURCE --examples {plan.population} --batch-size {plan.expected_batch_size} "
            f"--steps {plan.steps} --noise-multiplier {plan.noise_multiplier!r} --delta {plan.delta!r}{norm}"
            f"{self._asked_for()}{self._clock}"
        )

    def _numbers(self) -> str:
        given = [(name, getattr(self, name)) for name in ("momentum", "schedule") if getattr(self, name) is not None]
        return (
            f"--batch-size {self.batch_size} --steps {self.steps} --epsilon {self.epsilon:g} --delta {self._delta!r}"
            f"{''.join(f' --{name} {value}' for name, value in given)}{self._clock}"
        )

    def _asked_for(self) -> str:
        """The options that name the pair, as they were given."""
        names = [*(one.name for one in fields(Pair)), "momentum", "schedule"]
        given = [(name.replace("_", "-"), getattr(self, name)) for name in names if getattr(self, name) is not None]
        return "".join(f" --{name} {value}" for name, value in given)

    def _compare(self, given: list[str]) -> int:
        from sfumato.cli import compared
        from sfumato.privacy.comparison import compare

        if given != ["--batch-size", "--steps", "--epsilon"]:
            raise UnclearError(
                f"--compare needs --batch-size, --steps and --epsilon, got {', '.join(given) or 'none'}",
                "give these three; the noise multiplier follows for each pair",
            )
        if self.mechanism or self.participation:
            raise UnclearError(
                "--compare and a single --mechanism or --participation are both given", "leave these out"
            )
        if self.plot is not None and FilePath(self.plot).suffix.lower() != ".svg":
            raise UnclearError(f"--plot must end with .svg, got {self.plot!r}", "name a file such as pairs.svg")
        with console.bar("comparing") as progress:
            pairs = compare(
                examples=self.examples or 0,
                batch_size=self.batch_size or 0,
                steps=self.steps or 0,
                epsilon=self.epsilon or 0.0,
                delta=self._delta,
                momentum=self._momentum,
                rates=rates_of(self.schedule, None),
                options={one.name: getattr(self, one.name) for one in fields(Pair)},
                on_progress=progress,
            )
        figures = {"examples": self.examples, "delta": self._delta, "momentum": self._momentum}
        compared.show(pairs, figures, plot=self.plot, json=self.json, after=self._numbers())
        return 0
