"""What sfumato plan answers where the unit is a user: one plan, both ways of drawing, or more users."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import one_of, positive_integer
from sfumato._files import write
from sfumato.cli.options.spellings import UnclearError
from sfumato.cli.output import console, planned
from sfumato.privacy.statements.presented import rounded_up

if TYPE_CHECKING:
    from sfumato.cli.options.planning import PlanChoices
    from sfumato.privacy import PrivacyPlan


def run(options: PlanChoices) -> None:
    """Solve and print."""
    from sfumato.privacy.unit import DRAWN

    if options.users is None:
        raise UnclearError("--users is missing", "give the number of users, such as --users 3400")
    positive_integer("users", options.users)
    if options.drawn is not None:
        one_of("drawn", options.drawn, DRAWN)
    if options.extrapolate is not None:
        _extrapolate(options, options.users, options.extrapolate)
        return
    if options.plot is not None:
        raise UnclearError("--plot is given without --extrapolate", "give --extrapolate, which it draws")
    if options.round_sizes is not None:
        raise UnclearError(
            "--round-sizes is given without --extrapolate", "give the numbers of users too, such as --extrapolate 1e6"
        )
    if isinstance(options.epsilon, tuple):
        raise UnclearError(
            f"--epsilon {','.join(map(str, options.epsilon))} names several budgets", "give one, or --extrapolate"
        )
    if options.drawn is None:
        _both(options, options.users)
        return
    with console.bar("calibrating"):
        plan = _plan(options, options.users, epsilon=options.budget)
    planned.show(plan, options)


def _both(options: PlanChoices, users: int) -> None:
    """Both ways at one promise, and the one to take."""
    from sfumato.privacy import user_rule

    if missing := _missing(options, ("per_user", "batch_size", "steps", "epsilon")):
        raise UnclearError(f"{missing} must be given to compare both ways of drawing", "give it, or say --drawn")
    if options.noise_multiplier is not None or options.mechanism or options.participation:
        raise UnclearError(
            "a noise multiplier, mechanism or participation is given, and both ways of drawing are compared by the "
            "noise that they need",
            "leave it out, or say --drawn",
        )
    per_user = options.per_user or 0
    kept = users * per_user if options.examples is None else options.examples
    with console.bar("calibrating both ways"):
        rule = user_rule(
            users=users,
            records=per_user,
            gradients=options.batch_size or 0,
            steps=options.steps or 0,
            epsilon=options.budget or 0.0,
            delta=options.delta_among(users),
            each=max(1, round(kept / users)),
            population=kept,
        )
    if options.json:
        console.as_json({"users": users, "per_user": per_user, "ways": rule.rows(), "take": rule.take})
        return
    rows = [
        [
            row["drawn"],
            rounded_up(row["epsilon"]),
            f"{row['noise_multiplier']:g}",
            f"{row['batch_size']}",
            f"{row['parallel']:.4g}",
            f"{row['orthogonal']:.4g}",
            "<- take" if row["taken"] else "",
        ]
        for row in rule.rows()
    ]
    console.table(("drawn", "epsilon", "noise", "batch", "cosine 1", "cosine 0", ""), rows, texts=1)
    console.note("noise: its multiplier; batch: examples, or users, in a step, the same gradients to compute;")
    console.note("cosine: noise over signal where a user's gradients all agree (1), or are orthogonal (0)")
    if not rule.sure:
        console.note("note: which is better depends on the data; the rule takes the geometric mean of both columns")
    plan = (rule.users if rule.take == "users" else rule.examples).plan
    console.note(
        f"next: sfumato train SOURCE --unit user --users {users} --per-user {per_user} --drawn {rule.take} "
        f"--batch-size {plan.expected_batch_size} --steps {plan.steps} --epsilon {options.budget:g} "
        f"--delta {plan.delta!r}"
    )


def _plan(options: PlanChoices, users: int, *, epsilon: float | None) -> PrivacyPlan:
    from sfumato.privacy import User

    among = {"users": users} if options.drawn == "examples" else {}
    unit, population = User(drawn=options.drawn or "users", at_most=options.per_user, **among), users  # type: ignore
    if options.drawn == "examples":  # these are then what coins are tossed for
        population = users * unit.vectors if options.examples is None else options.examples
    return options.calibrated(population, options.delta_among(users), epsilon=epsilon, unit=unit)


def _extrapolate(options: PlanChoices, users: int, populations: tuple[int, ...]) -> None:
    """More users: the simulated run's noise over its batch kept, and the fewest participants that meet the budget."""
    by_size = options.round_sizes is not None
    _check_extrapolation(options, by_size=by_size)
    plan = _plan(options, users, epsilon=None)
    delta = options.delta_among(max(populations))
    with console.bar("extrapolating"):
        rows = _extrapolated(options, plan, users, populations, delta)
        own = plan.epsilon()  # of hardly any noise it takes seconds
    if options.plot is not None:
        from sfumato.report import extrapolated

        write(Path(options.plot), extrapolated(rows, by_size=by_size).encode())
    if options.json:
        console.as_json({"users": users, "delta": delta, "epsilon_of_the_run": own, "rows": rows})
        return
    console.table(
        ("users", "epsilon", "accountant", "in a step", "noise", "zCDP", ""),
        [_cells(row, by_size=by_size) for row in rows],
    )
    what = "examples" if plan.unit.drawn == "examples" else "users"
    console.note(
        f"in a step: {'so many' if by_size else 'the fewest'} {what}, the noise in the mean that of the simulated run"
    )
    console.note(
        f"(noise {plan.noise_multiplier:g} over {plan.expected_batch_size}, {plan.steps} steps), delta {delta:g}"
    )
    console.note(f"the simulated run itself promises {users:,} users epsilon {own:.3g} at delta {plan.delta:g}")


def _check_extrapolation(options: PlanChoices, *, by_size: bool) -> None:
    """Refuse what leaves nothing to find, or too much."""
    if by_size and options.epsilon is not None:
        raise UnclearError(
            "--round-sizes and --epsilon are both given",
            "leave one out: the size of a round decides what it comes to, or the budget how large a round must be",
        )
    needed = ("batch_size", "steps", "noise_multiplier", *(() if by_size else ("epsilon",)))
    if missing := _missing(options, needed):
        raise UnclearError(
            f"{missing} must be given with --extrapolate",
            "give batch size, steps and noise of the simulated run, and the budget of the larger ones",
        )


def _missing(options: PlanChoices, needed: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in needed if getattr(options, name) is None)


def _extrapolated(
    options: PlanChoices, plan: PrivacyPlan, users: int, populations: tuple[int, ...], delta: float
) -> list[dict[str, Any]]:
    """The rounds of each of the populations, as plain data."""
    from sfumato.privacy.planning.extrapolation import extrapolate, spent_by

    each = max(1, plan.population // users)  # as many records of each
    among = {"populations": [each * count for count in populations], "delta": delta}
    among["accountants"] = plan.loss.accountants
    if options.round_sizes is not None:
        rows = spent_by(plan, batch_sizes=options.round_sizes, **among)
    else:
        epsilons = options.epsilon if isinstance(options.epsilon, tuple) else (options.epsilon or 0.0,)
        rows = extrapolate(plan, epsilons=epsilons, **among)
    return [
        {
            "users": row.population // each,
            "epsilon": row.epsilon if math.isfinite(row.epsilon) else None,
            "accountant": row.accountant,
            "batch_size": row.batch_size,
            "noise_multiplier": row.noise_multiplier,
            "zcdp": row.zcdp,
        }
        for row in rows
    ]


def _cells(row: dict[str, Any], *, by_size: bool) -> list[str]:
    """A row of the table: a budget as it was given; what was computed, rounded up."""
    epsilon = row["epsilon"]
    return [
        f"{row['users']:,}",
        f"{epsilon:g}" if not by_size else rounded_up(math.inf if epsilon is None else epsilon),
        row["accountant"],
        "none" if row["batch_size"] is None else f"{row['batch_size']:,}",
        "" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.4g}",
        "" if row["zcdp"] is None else f"{row['zcdp']:.4g}",
        "" if row["batch_size"] else "not even with everybody in each step",
    ]
