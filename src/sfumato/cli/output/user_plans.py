"""What sfumato plan answers where the unit is a user: one plan, both ways of drawing, or more users."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sfumato._checks import one_of, positive_integer
from sfumato.cli.options.spellings import UnclearError
from sfumato.cli.output import console

if TYPE_CHECKING:
    from sfumato.privacy import PrivacyPlan, User
    from sfumato.privacy.planning.extrapolation import Extrapolated
    from sfumato.privacy.planning.requested import Request


class Asked(Protocol):
    """The options of sfumato plan that are read here."""

    @property
    def users(self) -> int | None: ...
    @property
    def examples(self) -> int | None: ...
    @property
    def per_user(self) -> int | None: ...
    @property
    def drawn(self) -> str | None: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def noise_multiplier(self) -> float | None: ...
    @property
    def epsilon(self) -> float | tuple[float, ...] | None: ...
    @property
    def budget(self) -> float | None: ...
    @property
    def delta(self) -> float | None: ...
    @property
    def max_norm(self) -> float: ...
    @property
    def mechanism(self) -> str | None: ...
    @property
    def participation(self) -> str | None: ...
    @property
    def momentum(self) -> float | None: ...
    @property
    def schedule(self) -> str | None: ...
    @property
    def compare(self) -> bool: ...
    @property
    def extrapolate(self) -> tuple[int, ...] | None: ...
    @property
    def round_sizes(self) -> tuple[int, ...] | None: ...
    @property
    def plot(self) -> str | None: ...
    @property
    def json(self) -> bool: ...
    def request(self, examples: int, *, momentum: float = 0.0, schedule: str | None = None) -> Request: ...
    def show(self, plan: PrivacyPlan) -> None: ...


def run(asked: Asked) -> int:
    """Solve and print."""
    from sfumato.privacy.unit import DRAWN

    if asked.users is None:
        raise UnclearError("--users is missing", "give the number of users, such as --users 3400")
    positive_integer("users", asked.users)
    if asked.drawn is not None:
        one_of("drawn", asked.drawn, DRAWN)
    if asked.compare:
        raise UnclearError("--compare and --unit user are both given", "leave one out: it compares for single examples")
    if asked.extrapolate is not None:
        return _extrapolate(asked, asked.users, asked.extrapolate)
    if asked.plot is not None:
        raise UnclearError("--plot is given without --extrapolate", "give --extrapolate, which it draws")
    if asked.round_sizes is not None:
        raise UnclearError(
            "--round-sizes is given without --extrapolate", "give the numbers of users too, such as --extrapolate 1e6"
        )
    if isinstance(asked.epsilon, tuple):
        raise UnclearError(
            f"--epsilon {','.join(map(str, asked.epsilon))} names several budgets", "give one, or --extrapolate"
        )
    if asked.drawn is None:
        return _both(asked, asked.users)
    with console.bar("calibrating"):
        plan = _plan(asked, asked.users, epsilon=asked.budget)
    asked.show(plan)
    return 0


def _both(asked: Asked, users: int) -> int:
    """Both ways at one promise, and the one to take."""
    from sfumato.privacy import user_rule
    from sfumato.privacy.plan import default_delta
    from sfumato.privacy.statements.statement import rounded_up

    needed = {name: getattr(asked, name) for name in ("per_user", "batch_size", "steps", "epsilon")}
    missing = [f"--{name.replace('_', '-')}" for name, value in needed.items() if value is None]
    if missing:
        raise UnclearError(
            f"{', '.join(missing)} must be given to compare both ways of drawing", "give it, or say --drawn"
        )
    if asked.noise_multiplier is not None or asked.mechanism or asked.participation:
        raise UnclearError(
            "a noise multiplier, mechanism or participation is given, and both ways of drawing are compared by the "
            "noise that they need",
            "leave it out, or say --drawn",
        )
    per_user = asked.per_user or 0
    kept = users * per_user if asked.examples is None else asked.examples
    with console.bar("calibrating both ways"):
        rule = user_rule(
            users=users,
            records=per_user,
            gradients=asked.batch_size or 0,
            steps=asked.steps or 0,
            epsilon=asked.budget or 0.0,
            delta=default_delta(users) if asked.delta is None else asked.delta,
            each=max(1, round(kept / users)),
            population=kept,
        )
    if asked.json:
        console.as_json({"users": users, "per_user": per_user, "ways": rule.rows(), "take": rule.take})
        return 0
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
        f"--batch-size {plan.expected_batch_size} --steps {plan.steps} --epsilon {asked.budget:g} "
        f"--delta {plan.delta!r}"
    )
    return 0


def _unit(asked: Asked, users: int) -> tuple[User, int]:
    """The unit, and the population that coins are tossed for."""
    from sfumato.privacy import User

    if asked.drawn != "examples":
        return User(drawn=asked.drawn or "users", at_most=asked.per_user), users  # type: ignore[arg-type]
    unit = User(drawn="examples", at_most=asked.per_user, users=users)
    return unit, users * unit.vectors if asked.examples is None else asked.examples


def _plan(asked: Asked, users: int, *, epsilon: float | None) -> PrivacyPlan:
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.plan import default_delta

    unit, population = _unit(asked, users)
    momentum = 0.9 if asked.momentum is None else asked.momentum
    return PrivacyPlan.calibrate(
        examples=population,
        unit=unit,
        delta=default_delta(users) if asked.delta is None else asked.delta,
        batch_size=asked.batch_size,
        steps=asked.steps,
        noise_multiplier=asked.noise_multiplier,
        epsilon=epsilon,
        max_norm=asked.max_norm,
        **asked.request(population, momentum=momentum, schedule=asked.schedule)._asdict(),
    )


def _extrapolate(asked: Asked, users: int, populations: tuple[int, ...]) -> int:
    """More users: the simulated run's noise over its batch kept, and the fewest participants that meet the budget."""
    from sfumato.privacy.plan import default_delta
    from sfumato.privacy.planning.extrapolation import extrapolate, spent_by
    from sfumato.report import extrapolated

    by_size = asked.round_sizes is not None
    if by_size and asked.epsilon is not None:
        raise UnclearError(
            "--round-sizes and --epsilon are both given",
            "leave one out: the size of a round decides what it comes to, or the budget how large a round must be",
        )
    wanted = ("batch_size", "steps", "noise_multiplier", *(() if by_size else ("epsilon",)))
    missing = [f"--{name.replace('_', '-')}" for name in wanted if getattr(asked, name) is None]
    if missing:
        raise UnclearError(
            f"{', '.join(missing)} must be given with --extrapolate",
            "give batch size, steps and noise of the simulated run, and the budget of the larger ones",
        )
    epsilons = asked.epsilon if isinstance(asked.epsilon, tuple) else (asked.epsilon or 0.0,)
    plan = _plan(asked, users, epsilon=None)
    each = max(1, plan.population // users)  # as many records of each
    delta = default_delta(max(populations)) if asked.delta is None else asked.delta
    with console.bar("extrapolating"):
        numbers = [each * count for count in populations]
        among = {"delta": delta, "populations": numbers, "accountants": plan.loss.accountants}
        if asked.round_sizes is not None:
            rows = spent_by(plan, batch_sizes=asked.round_sizes, **among)
        else:
            rows = extrapolate(plan, epsilons=epsilons, **among)
    figures = [_figures(row, each) for row in rows]
    if asked.plot is not None:
        from sfumato._files import write

        write(Path(asked.plot), extrapolated(figures, by_size=by_size).encode())
    if asked.json:
        console.as_json({"users": users, "delta": delta, "epsilon_of_the_run": plan.epsilon(), "rows": figures})
        return 0
    head = ("users", "epsilon", "accountant", "in a step", "noise", "zCDP", "")
    lines = [
        [
            f"{row['users']:,}",
            _shown(row["epsilon"], given=not by_size),
            row["accountant"],
            "none" if row["batch_size"] is None else f"{row['batch_size']:,}",
            "" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.4g}",
            "" if row["zcdp"] is None else f"{row['zcdp']:.4g}",
            "" if row["batch_size"] else "not even with everybody in each step",
        ]
        for row in figures
    ]
    console.table(head, lines)
    what = "examples" if plan.unit.drawn == "examples" else "users"
    console.note(
        f"in a step: {'so many' if by_size else 'the fewest'} {what}, the noise in the mean that of the simulated run"
    )
    console.note(
        f"(noise {plan.noise_multiplier:g} over {plan.expected_batch_size}, {plan.steps} steps), delta {delta:g}"
    )
    console.note(
        f"the simulated run itself promises {users:,} users epsilon {plan.epsilon():.3g} at delta {plan.delta:g}"
    )
    return 0


def _shown(epsilon: float | None, *, given: bool) -> str:
    """A budget as it was given; what was computed, rounded up."""
    from sfumato.privacy.statements.statement import rounded_up

    return f"{epsilon:g}" if given else rounded_up(math.inf if epsilon is None else epsilon)


def _figures(row: Extrapolated, each: int) -> dict[str, Any]:
    return {
        "users": row.population // each,
        "epsilon": row.epsilon if math.isfinite(row.epsilon) else None,
        "accountant": row.accountant,
        "batch_size": row.batch_size,
        "noise_multiplier": row.noise_multiplier,
        "zcdp": row.zcdp,
    }
