"""sfumato plan: one unknown from the others."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import one_of, positive_integer
from sfumato.cli.options.planning import PlanChoices
from sfumato.cli.options.spellings import UnclearError
from sfumato.cli.output import console

FOUR = ("batch_size", "steps", "noise_multiplier", "epsilon")


@dataclass(frozen=True, kw_only=True)
class Plan(PlanChoices):
    """Find one of noise multiplier, steps, batch size and epsilon from the others. Looks at no data.

    Give three of the four, with --examples. For instance: sfumato plan --examples 50000 --batch-size 4096 --steps 2500
    --epsilon 8. For users give --users in place of --examples; without --drawn both ways of drawing are compared.
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
        if len(given) + (self.participation == "full-batch" and self.batch_size is None) != 3:
            raise UnclearError(
                "three of --batch-size, --steps, --noise-multiplier and --epsilon are needed, got "
                f"{', '.join(given) or 'none'}",
                "leave out only the one that should follow from the others; sfumato train SOURCE --dry-run chooses by "
                "rules",
            )
        with console.bar("calibrating"):
            plan = self.calibrated(self.examples, self.delta_among(self.examples))
        planned.show(plan, self)

    def _refuse_of_users(self) -> None:
        if self.unit is not None:
            one_of("unit", self.unit, ("example", "user"))
        for name in ("users", "per_user", "drawn"):
            if getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise UnclearError(f"--{option} is for users, and the unit is an example", "give --unit user")

    def _check_clock(self) -> None:
        from sfumato.data import Clock

        if Clock.declared(self.start, self.period) is not None and self.order != "time":
            raise UnclearError(
                "--start and --period are given without --order time",
                "leave them out, or give it",
            )
