"""What sfumato plan answers where the unit is a user: one plan, or both ways of drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfumato._checks import one_of, positive_integer
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
    if options.drawn is None:
        _both(options, options.users)
        return
    with console.bar("calibrating"):
        plan = _plan(options, options.users)
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
            epsilon=options.epsilon or 0.0,
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
        f"--batch-size {plan.expected_batch_size} --steps {plan.steps} --epsilon {options.epsilon:g} "
        f"--delta {plan.delta!r}"
    )


def _plan(options: PlanChoices, users: int) -> PrivacyPlan:
    from sfumato.privacy import User

    among = {"users": users} if options.drawn == "examples" else {}
    unit, population = User(drawn=options.drawn or "users", at_most=options.per_user, **among), users  # type: ignore
    if options.drawn == "examples":  # these are then what coins are tossed for
        population = users * unit.vectors if options.examples is None else options.examples
    return options.calibrated(population, options.delta_among(users), unit=unit)


def _missing(options: PlanChoices, needed: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in needed if getattr(options, name) is None)
