"""sfumato plan: one unknown from the others, or all pairs of participation and mechanism compared."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path as FilePath

from sfumato._checks import one_of, positive_integer
from sfumato.cli.options.planning import PlanChoices
from sfumato.cli.options.spellings import UnclearError
from sfumato.cli.output import console
from sfumato.experiment.budget import Pair, rates_of

FOUR = ("batch_size", "steps", "noise_multiplier", "epsilon")


@dataclass(frozen=True, kw_only=True)
class Plan(PlanChoices):
    """Find one of noise multiplier, steps, batch size and epsilon from the others. Looks at no data.

    Give three of the four, with --examples; with --compare all of them but the noise multiplier. For instance:
    sfumato plan --examples 50000 --batch-size 4096 --steps 2500 --epsilon 8. For users give --users in place of
    --examples; without --drawn both ways of drawing are compared.
    """

    def run(self) -> None:
        """Solve and print."""
        from sfumato.cli.output import planned, user_plans

        if self.unit == "user":
            user_plans.run(self)
            return
        self._refuse_of_users()
        if self.examples is None:
            raise UnclearError(
                "--examples is missing", "give the number of training examples, such as --examples 50000"
            )
        positive_integer("examples", self.examples)
        self._check_clock()
        given = [f"--{name.replace('_', '-')}" for name in FOUR if getattr(self, name) is not None]
        delta = self.delta_among(self.examples)
        if self.compare:
            self._compare(self.examples, delta, given)
            return
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
            plan = self.calibrated(self.examples, delta, epsilon=self.budget)
        planned.show(plan, self)

    def _refuse_of_users(self) -> None:
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

    def _check_clock(self) -> None:
        from sfumato.data import Clock

        if Clock.declared(self.start, self.period) is not None and self.order != "time":
            raise UnclearError(
                "--start and --period are given without --order time",
                "leave them out, or give it",
            )

    def _compare(self, examples: int, delta: float, given: list[str]) -> None:
        """All pairs of participation and mechanism."""
        from sfumato.cli.output import planned
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
                examples=examples,
                batch_size=self.batch_size or 0,
                steps=self.steps or 0,
                epsilon=self.budget or 0.0,
                delta=delta,
                momentum=self.assumed_momentum,
                rates=rates_of(self.schedule, None),
                options={one.name: getattr(self, one.name) for one in fields(Pair)},
                on_progress=progress,
            )
        figures = {"examples": examples, "delta": delta, "momentum": self.assumed_momentum}
        planned.show_compared(pairs, figures, plot=self.plot, json=self.json, after=self.numbers(delta))
