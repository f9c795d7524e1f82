"""One plan, or pairs of participation and mechanism compared, as sfumato plan prints them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.cli.output import console
from sfumato.privacy.statements.presented import rounded_up

if TYPE_CHECKING:
    from sfumato.cli.options.planning import PlanChoices
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.planning.comparison import Compared


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


def show_compared(pairs: list[Compared], figures: dict[str, Any], *, plot: str | None, json: bool, after: str) -> None:
    """The pairs with the least noise first, and which to take.

    Args:
        figures: what they have in common.
        after: the options of all of them, for the command that trains.
    """
    from sfumato.privacy.planning.comparison import to_take

    known = [pair for pair in pairs if pair.plan is not None]
    if not known:
        raise SfumatoError(f"no pair meets these figures: {pairs[0].why}", "give other figures")
    best, unsampled = to_take(known), [pair for pair in known if not pair.sampled]
    in_order = to_take(known, sampled=False) if unsampled else None
    if plot is not None:
        from sfumato.report import compared

        write(Path(plot), compared([_data_of(pair) for pair in known]).encode())
    if json:
        console.as_json(
            {
                **figures,
                "pairs": [_data_of(pair) for pair in pairs],
                "take": _name(best),
                "take_without_sampling": _name(in_order) if in_order else None,
            }
        )
        return
    head = ("participation", "mechanism", "adjacency", "epsilon", "noise", "in weights", "final", "copies", "")
    rows = []
    for pair in known:
        assert pair.plan is not None
        mark = "<- take" if pair is best else "<- without sampling" if pair is in_order else ""
        rows.append(
            [
                pair.participation,
                pair.mechanism,
                pair.plan.adjacency,
                rounded_up(pair.plan.epsilon()),
                f"{pair.plan.noise_multiplier:g}",
                f"{pair.all_steps:.4g}",
                f"{pair.final:.4g}",
                f"{pair.buffers}",
                mark,
            ]
        )
    console.table(head, rows, texts=3)
    console.note("noise: its multiplier; in weights, final: what it leaves in a weight over all steps and after the")
    console.note("last one, over learning rate and clipping norm; copies: of the model, which the noise keeps")
    for pair in pairs:
        if pair.plan is None:
            console.note(f"left out: {pair.participation} with {pair.mechanism}: {pair.why}")
    if len({pair.plan.adjacency for pair in known if pair.plan is not None}) > 1:
        console.note("note: epsilon for zero-out and for add-or-remove adjacency are different promises: zero-out")
        console.note("      takes N, and the place of each record, as public")
    own = "".join(f" --{name.replace('_', '-')} {value}" for name, value in best.options.items())
    console.note(
        f"next: sfumato train SOURCE --participation {best.participation} --mechanism {best.mechanism}{own} {after}"
    )


def _name(pair: Compared) -> dict[str, str]:
    return {"participation": pair.participation, "mechanism": pair.mechanism}


def _data_of(pair: Compared) -> dict[str, Any]:
    plan = pair.plan
    if plan is None:
        return {**_name(pair), "why_not": pair.why}
    return {
        **_name(pair),
        "adjacency": plan.adjacency,
        "epsilon": plan.epsilon(),
        "noise_multiplier": plan.noise_multiplier,
        "noise_in_weights": pair.all_steps,
        "noise_in_final_weights": pair.final,
        "buffers": pair.buffers,
        "theorem": plan.theorem.name,
    }
