"""What sfumato plan --compare prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.cli.output import console
from sfumato.privacy.statements.statement import rounded_up

if TYPE_CHECKING:
    from sfumato.privacy.planning.comparison import Compared


def show(pairs: list[Compared], figures: dict[str, Any], *, plot: str | None, json: bool, after: str) -> None:
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

        write(Path(plot), compared([_figures(pair) for pair in known]).encode())
    if json:
        console.as_json(
            {
                **figures,
                "pairs": [_figures(pair) for pair in pairs],
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


def _figures(pair: Compared) -> dict[str, Any]:
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
