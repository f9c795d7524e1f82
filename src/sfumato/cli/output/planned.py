"""One plan, as sfumato plan prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console

if TYPE_CHECKING:
    from sfumato.cli.options.planning import PlanChoices
    from sfumato.privacy import PrivacyPlan


def show(plan: PrivacyPlan, options: PlanChoices) -> None:
    """A plan as a table, with the command that trains by it, or as JSON."""
    from sfumato.privacy.planning.remarks import above_one_record, uneven, weak_signal

    weak = weak_signal(plan, 2)
    for note in filter(None, (above_one_record(plan), uneven(plan), weak and f"even {weak}")):
        console.note(f"note: {note}")
    notes = () if plan.unit.drawn == "clients" else (_next(plan, options),)
    console.figures(_data(plan, options.order), _rows(plan), *notes, json=options.json)


def _what(plan: PrivacyPlan) -> str:
    return "examples" if plan.unit.drawn == "examples" else "users"


def _data(plan: PrivacyPlan, order: str | None) -> dict[str, Any]:
    ordered = plan.participation.name == "fixed-order"
    gap = plan.participation.gap(plan.population)
    return {
        "epsilon": plan.epsilon(),
        "epsilon_rdp": plan.epsilon_rdp,
        "delta": plan.delta,
        "adjacency": plan.adjacency,
        "noise_multiplier": plan.noise_multiplier,
        "mechanism": type(plan.mechanism).__name__,
        "buffers": plan.mechanism.buffers(plan.steps),
        "steps": plan.steps,
        "batch_size": plan.expected_batch_size,
        _what(plan): plan.population,
        **_of_users(plan),
        "sampling": type(plan.participation).__name__,
        **({"order": order or "random", "bins": gap} if ordered else {}),
        "sampling_probability": plan.sampling_probability,
        "expected_epochs": plan.expected_epochs,
        "max_norm": plan.max_norm,
        "accountant": plan.theorem.tight,
        "theorem": plan.theorem.name,
        "fingerprint": plan.fingerprint,
    }


def _rows(plan: PrivacyPlan) -> list[tuple[str, str]]:
    by_rdp, buffers = plan.epsilon_rdp, plan.mechanism.buffers(plan.steps)
    return [
        ("epsilon", f"{plan.epsilon():.4f}  by {plan.theorem.tight}"),
        *([("", f"{by_rdp:.4f}  by Renyi DP, for comparison with papers")] if by_rdp is not None else []),
        ("delta", f"{plan.delta:g}"),
        *((name.replace("_", " "), f"{value}") for name, value in _of_users(plan).items()),
        ("adjacency", plan.adjacency),
        ("mechanism", plan.mechanism.name),
        ("noise multiplier", f"{plan.noise_multiplier:g} {plan.mechanism.words}".rstrip()),
        *([("memory of the noise", f"{buffers} copies of the model")] if not plan.mechanism.independent else []),
        ("steps", f"{plan.steps}"),
        *([("examples", f"{plan.population}")] if _what(plan) == "examples" else []),
        ("participation", plan.participation.name),
        *(
            (name.removesuffix(" B").removesuffix(" q"), f"{value:.6g}" if isinstance(value, float) else f"{value}")
            for name, value in plan.participation.facts(plan.population).items()
        ),
        ("expected epochs", f"{plan.expected_epochs:.4g}"),
        ("theorem", plan.theorem.name),
        ("plan", plan.fingerprint[:16]),
    ]


def _next(plan: PrivacyPlan, options: PlanChoices) -> str:
    """The command that trains by it."""
    what = _what(plan)
    users = f" --users {plan.users}" if what == "examples" and plan.users is not None else ""
    norm = "" if plan.max_norm == 1 else f" --max-norm {plan.max_norm:g}"
    return (
        f"next: sfumato train SOURCE{users} --{what} {plan.population} --batch-size {plan.expected_batch_size} "
        f"--steps {plan.steps} --noise-multiplier {plan.noise_multiplier!r} --delta {plan.delta!r}{norm}"
        f"{options.pair_as_given()}{options.clock}"
    )


def _of_users(plan: PrivacyPlan) -> dict[str, Any]:
    """The rows of a plan for users."""
    from sfumato.privacy import User

    if not isinstance(plan.unit, User):
        return {}
    kept = "all" if plan.unit.at_most is None else plan.unit.at_most
    return {"unit": "user", "users": plan.users, "per_user": kept, "drawn": plan.unit.drawn}
