"""What a promise would take among more users: the simulated run's signal-to-noise kept, with more users in a round.

For instance: python studies/more_users.py --users 10000 --clients --batch-size 1024 --steps 200
--noise-multiplier 0.62 --epsilon 2,8 --populations 1e6,1e7

Source: Xu et al. 2022 (arXiv 2211.10844), section 4.1. With --round-sizes and users in virtual clients, each row is
computed twice: with the two clipping norms that one person counts for, and with one, as the paper counts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `studies`

from sfumato._checks import positive_integer
from sfumato._files import write
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.output import console
from sfumato.cli.parser import UsageError, option
from sfumato.experiment.settings import Pair
from sfumato.privacy import PrivacyPlan, User
from sfumato.privacy.plan import default_delta
from sfumato.privacy.statements.display import rounded_up
from sfumato.report.plots.drawing import SERIES, Axis, Line, draw, plot, svg
from studies import command
from studies.extrapolation import epsilon_of_rounds, extrapolate


@dataclass(frozen=True, kw_only=True)
class MoreUsers(PrintsJson, Pair):
    """The simulated run, and the larger ones."""

    users: int
    """Number of users of the simulated run."""
    populations: tuple[int, ...] = command.whole_numbers(MISSING)
    """Larger numbers of users."""
    batch_size: int
    """Expected number of users in a step."""
    steps: int
    """Number of training steps."""
    noise_multiplier: float
    """Standard deviation of the noise divided by the clipping norm."""
    epsilon: float | tuple[float, ...] | None = command.numbers()
    """Privacy budget of the larger runs, or several separated by commas: gives the size of their steps."""
    round_sizes: tuple[int, ...] | None = command.whole_numbers()
    """Sizes of a step, instead of --epsilon: gives their epsilon."""
    clients: bool = False
    """Users share virtual clients, as in DP-FedEmb."""
    per_user: int | None = None
    """Largest number of records kept of each user."""
    delta: float | None = option("DELTA", "a power of ten, at most 1e-5 and 1/(10 N)")
    """Probability with which the epsilon bound may fail."""
    momentum: float | None = option("NUMBER", "0.9")
    """Momentum of the optimizer, for which banded noise is optimised."""
    schedule: str | None = option("NAME", "constant")
    """Learning rate schedule, for which banded noise is optimised."""
    plot: str | None = option("PATH")
    """Draw the rows into this .svg file."""

    def run(self) -> None:
        """Scale the simulated run to more users, and print the size or the epsilon of the larger runs."""
        positive_integer(users=self.users)
        if (self.round_sizes is None) == (self.epsilon is None):
            raise UsageError(
                f"--round-sizes and --epsilon are {'both' if self.epsilon else 'not'} given",
                "give one: the size of a round determines epsilon, or the budget determines the size",
            )
        by_size = self.round_sizes is not None
        plan = self._simulated()
        delta = self._delta_among(max(self.populations or ()))
        with console.bar("extrapolating"):
            rows = self._rows(plan, delta)
            own = plan.epsilon()  # takes seconds for very little noise
        if self.plot is not None:
            write(Path(self.plot), draw_curves(rows, by_size=by_size).encode())
        if self.json:
            console.print_json({"users": self.users, "delta": delta, "epsilon_of_the_run": own, "rows": rows})
            return
        head = ("users", "epsilon", "accountant", "counted", "in a step", "noise", "zCDP", "")
        console.table(head, [_cells(row, by_size=by_size) for row in rows])
        how = "so many" if by_size else "the fewest"
        console.note(f"in a step: {how} users, the noise in the mean that of the simulated run")
        console.note(
            f"(noise {plan.noise_multiplier:g} over {plan.expected_batch_size}, {plan.steps} steps), delta {delta:g}"
        )
        if any(row["norms"] == 1 for row in rows) and self.clients:
            console.note(
                "counted with C: as Xu et al. 2022 count, for a whole client; it guarantees nothing to a person"
            )
        console.note(
            f"the simulated run itself guarantees {self.users:,} users epsilon {own:.3g} at delta {plan.delta:g}"
        )

    def _delta_among(self, users: int) -> float:
        return default_delta(users) if self.delta is None else self.delta

    def _simulated(self) -> PrivacyPlan:
        """The plan of the simulated run."""
        return PrivacyPlan.calibrate(
            examples=self.users,
            delta=self._delta_among(self.users),
            batch_size=self.batch_size,
            steps=self.steps,
            noise_multiplier=self.noise_multiplier,
            unit=User(clients=self.clients, at_most=self.per_user),
            **self.request(self.users)._asdict(),
        )

    def _rows(self, plan: PrivacyPlan, delta: float) -> list[dict[str, Any]]:
        """The rows of all populations, as plain data."""
        among: dict[str, Any] = {"populations": list(self.populations or ()), "delta": delta}
        among["accountants"] = plan.loss.accountants
        if self.round_sizes is not None:
            counted = [plan, replace(plan, unit=User())] if self.clients else [plan]
            rows = [row for one in counted for row in epsilon_of_rounds(one, batch_sizes=self.round_sizes, **among)]
        else:
            epsilons = self.epsilon if isinstance(self.epsilon, tuple) else (self.epsilon or 0.0,)
            rows = extrapolate(plan, epsilons=epsilons, **among)
        return [
            {
                "users": row.population,
                "epsilon": row.epsilon if math.isfinite(row.epsilon) else None,
                "accountant": row.accountant,
                "norms": int((row.plan or plan).unit.sensitivity),
                "batch_size": row.batch_size,
                "noise_multiplier": row.noise_multiplier,
                "zcdp": row.zcdp,
            }
            for row in rows
        ]


def _cells(row: dict[str, Any], *, by_size: bool) -> list[str]:
    """A row of the table. A given epsilon is printed as it was given; a computed one is rounded up."""
    epsilon = row["epsilon"]
    return [
        f"{row['users']:,}",
        f"{epsilon:g}" if not by_size else rounded_up(math.inf if epsilon is None else epsilon),
        row["accountant"],
        "C" if row["norms"] == 1 else f"{row['norms']}C",
        "none" if row["batch_size"] is None else f"{row['batch_size']:,}",
        "" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.4g}",
        "" if row["zcdp"] is None else f"{row['zcdp']:.4g}",
        "" if row["batch_size"] else "not even with everybody in each step",
    ]


def draw_curves(rows: Sequence[Mapping[str, Any]], *, by_size: bool = False) -> str:
    """A plot with a line for each budget (with `by_size`, for each number of users), accountant ("rdp" dashed) and
    number of clipping norms that one user counts for (one in a pale colour, where two are drawn as well).

    Args:
        rows: `users`, `epsilon`, `accountant`, `norms` and `batch_size` (None if no round meets the budget).
        by_size: draw epsilon against the participants of a round, like figures 2 and 3 of Xu et al. 2022.

    Returns:
        An SVG file.
    """
    with plot("extrapolated", 4.6, 3.2) as figure:
        of, across, up = ("users", "batch_size", "epsilon") if by_size else ("epsilon", "users", "batch_size")
        most = max(row["norms"] for row in rows)
        colours = dict(zip(dict.fromkeys(row[of] for row in rows), SERIES * len(rows), strict=False))
        lines = [
            Line(
                sorted(
                    (row[across], row[up])
                    for row in rows
                    if (row[of], row["accountant"], row["norms"]) == (value, accountant, norms) and row[up] is not None
                ),
                (f"{value:,} users" if by_size else f"epsilon {value:g}")
                + f", {accountant}"
                + (", C" if norms < most else ""),
                {
                    "marker": "o",
                    "markersize": 4,
                    "color": colours[value],
                    "linestyle": "-" if accountant == "pld" else "--",
                    "alpha": 0.4 if norms < most else 1.0,
                },
            )
            for value, accountant, norms in dict.fromkeys((row[of], row["accountant"], row["norms"]) for row in rows)
        ]
        draw(
            figure.add_subplot(),
            [line for line in lines if line.points],
            Axis("in a step, in expectation" if by_size else "users", log=True),
            Axis("epsilon" if by_size else "in a step, in expectation", log=True),
        )
        return svg(figure)


if __name__ == "__main__":
    sys.exit(command.main("more_users"))
