"""Pairs of participation and mechanism at the same budget, batch size and steps: which leaves the least noise.

For instance: python studies/pairs.py --examples 50000 --batch-size 4096 --steps 2000 --epsilon 3
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `studies`

from sfumato._checks import SfumatoError, positive_integer
from sfumato._choices import all_optional
from sfumato._files import write
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.output import console
from sfumato.cli.parser import UsageError, option
from sfumato.experiment.settings import rates_of
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.plan import default_delta
from sfumato.privacy.planning import by_name
from sfumato.privacy.planning.by_name import GROUPS, MECHANISM_OPTIONS, PARTICIPATION_OPTIONS
from sfumato.privacy.statements.display import rounded_up
from sfumato.report.plots.drawing import MUTED, SERIES, annotate, plot, style_axes, svg
from studies import command

PAIRS = (
    ("poisson", "gaussian"),
    ("truncated", "gaussian"),
    ("full-batch", "gaussian"),
    ("cyclic", "gaussian"),
    ("cyclic", "banded"),
    ("fixed-order", "gaussian"),
    ("fixed-order", "tree"),
    ("fixed-order", "banded"),
)
MOST_STEPS = 1_000_000
WITHOUT_SAMPLING = ("fixed-order", "full-batch")


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """The result for one pair.

    Args:
        participation, mechanism: the names of the pair.
        plan: the plan of the pair; None if there is none.
        why: the reason if there is no plan.
        final: the standard deviation of the noise in a final weight, over learning rate and clipping norm: sigma / B
            times the factor that the mechanism leaves of the steps' noise.
        all_steps: the root mean square of this standard deviation over the weights after every step.
        buffers: the number of copies of the model that the noise keeps in memory.
        options: the further options of the pair.
    """

    participation: str
    mechanism: str
    plan: PrivacyPlan | None = None
    why: str = ""
    final: float = 0.0
    all_steps: float = 0.0
    buffers: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def sampled(self) -> bool:
        """Whether its promise needs participants that are drawn at random for each step."""
        return self.participation not in WITHOUT_SAMPLING


def compare(
    *,
    examples: int,
    batch_size: int,
    steps: int,
    epsilon: float,
    delta: float,
    momentum: float = 0.0,
    rates: Callable[[int], tuple[float, ...]] | None = None,
    options: dict[str, Any] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[PairResult]:
    """All pairs that have a theorem, each with the least noise that meets the budget, the least noise first.

    The figures are predictions: linear in the noise of the gradients, and exact for heavy-ball SGD. Pairs of different
    adjacencies make different promises at the same epsilon.

    Args:
        momentum, rates: settings of the optimizer, as for `request_by_names`.
        options: further options of `request_by_names` (bands, groups, ...), each for the pairs that have it.
            With an order by position, records cannot be drawn, so only pairs of a fixed order have a plan.
        on_progress: called with the number of finished pairs and the number of all pairs.
    """
    if steps > MOST_STEPS:
        raise SfumatoError(
            f"pairs are compared over at most {MOST_STEPS} steps, got {steps}", "give fewer steps, or plan one pair"
        )
    found, given = [], options or {}
    for done, (participation, mechanism) in enumerate(PAIRS, start=1):
        names = (*MECHANISM_OPTIONS.get(mechanism, ()), *PARTICIPATION_OPTIONS.get(participation, ()), "adjacency")
        own = {name: given[name] for name in names if given.get(name) is not None}
        if participation == "cyclic":  # groups * batch size must not exceed the number of examples
            own["groups"] = min(own.get("groups") or GROUPS, max(1, examples // batch_size))
        try:
            if given.get("order") == "position" and participation != "fixed-order":
                raise SfumatoError("who takes part is decided by position", "give order random, or none")
            pair = {"participation": participation, "mechanism": mechanism, **own}
            request = by_name.request_by_names(examples=examples, momentum=momentum, rates=rates, **pair)
            plan = PrivacyPlan.calibrate(
                examples=examples, batch_size=batch_size, steps=steps, epsilon=epsilon, delta=delta, **request._asdict()
            )
        except SfumatoError as error:
            found.append(PairResult(participation=participation, mechanism=mechanism, why=error.problem))
        else:
            left = plan.noise_in_weights(momentum, None if rates is None else rates(steps))
            scale = plan.noise_multiplier / plan.expected_batch_size
            found.append(
                PairResult(
                    participation=participation,
                    mechanism=mechanism,
                    plan=plan,
                    final=scale * left.final,
                    all_steps=scale * left.all_steps,
                    buffers=plan.mechanism.buffers(steps),
                    options=own,
                )
            )
        if on_progress is not None:
            on_progress(done, len(PAIRS))
    return sorted(found, key=lambda pair: (pair.plan is None, pair.final))


def recommended(pairs: Sequence[PairResult], *, sampled: bool | None = None) -> PairResult:
    """The recommended pair: among those within 3% of the least noise in the final weights, the one with fewest buffers.

    Args:
        sampled: True for only pairs with random participants, False for only pairs without; None for all.
    """
    rivals = [pair for pair in pairs if pair.plan is not None and sampled in (None, pair.sampled)]
    least = min(pair.final for pair in rivals)
    return min((pair for pair in rivals if pair.final <= 1.03 * least), key=lambda pair: pair.buffers)


@dataclass(frozen=True, kw_only=True)
class Pairs(
    PrintsJson, all_optional(by_name.Pair, without=("mechanism", "participation", *PARTICIPATION_OPTIONS["drifting"]))
):
    """What the pairs have in common."""

    examples: int
    """N, the number of training examples."""
    batch_size: int
    """Expected number of examples in a step."""
    steps: int
    """Number of training steps."""
    epsilon: float
    """Privacy budget; determines the noise multiplier of each pair."""
    delta: float | None = option("DELTA", "a power of ten, at most 1e-5 and 1/(10 N)")
    """Probability with which the epsilon bound may fail."""
    momentum: float | None = option("NUMBER", "0.9")
    """Momentum of the optimizer, for which banded noise is optimised."""
    schedule: str | None = option("NAME", "constant")
    """Learning rate schedule, for which banded noise is optimised."""
    plot: str | None = option("PATH")
    """Draw the pairs into this .svg file."""

    def run(self) -> None:
        """Compare all pairs, and print the results."""
        positive_integer(examples=self.examples)
        if self.plot is not None and Path(self.plot).suffix.lower() != ".svg":
            raise UsageError(f"--plot must end with .svg, got {self.plot!r}", "give a file such as pairs.svg")
        delta = default_delta(self.examples) if self.delta is None else self.delta
        momentum = 0.9 if self.momentum is None else self.momentum
        with console.bar("comparing") as progress:
            pairs = compare(
                examples=self.examples,
                batch_size=self.batch_size,
                steps=self.steps,
                epsilon=self.epsilon,
                delta=delta,
                momentum=momentum,
                rates=rates_of(self.schedule, None),
                options={one.name: getattr(self, one.name, None) for one in fields(by_name.Pair)},
                on_progress=progress,
            )
        known = [pair for pair in pairs if pair.plan is not None]
        if not known:
            raise SfumatoError(f"no pair meets these figures: {pairs[0].why}", "give other figures")
        if self.plot is not None:
            write(Path(self.plot), draw_bars([_data_of(pair) for pair in known]).encode())
        best = recommended(known)
        in_order = None if all(pair.sampled for pair in known) else recommended(known, sampled=False)
        if self.json:
            console.print_json(
                {
                    "examples": self.examples,
                    "delta": delta,
                    "momentum": momentum,
                    "pairs": [_data_of(pair) for pair in pairs],
                    "take": _name(best),
                    "take_without_sampling": None if in_order is None else _name(in_order),
                }
            )
            return
        _print(pairs, best, in_order)
        own = "".join(f" --{name.replace('_', '-')} {value}" for name, value in best.options.items())
        pair = f"--participation {best.participation} --mechanism {best.mechanism}{own}"
        console.note(f"next: sfumato train SOURCE {pair} {self._numbers(delta)}")

    def _numbers(self, delta: float) -> str:
        """The options of the training command: those of the budget, and the given ones of the optimizer."""
        names = [name for name in ("momentum", "schedule") if getattr(self, name) is not None]
        return (
            f"--batch-size {self.batch_size} --steps {self.steps} --epsilon {self.epsilon:g} --delta {delta!r}"
            f"{''.join(f' --{name} {getattr(self, name)}' for name in names)}"
        )


def _print(pairs: Sequence[PairResult], best: PairResult, in_order: PairResult | None) -> None:
    """Print the pairs, the least noise first, with the recommended ones marked."""
    head = ("participation", "mechanism", "adjacency", "epsilon", "noise", "in weights", "final", "copies", "")
    rows = []
    for pair in pairs:
        if pair.plan is None:
            continue
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
    console.note("noise: noise multiplier; in weights, final: its effect on a weight over all steps and after the")
    console.note("last one, over learning rate and clipping norm; copies: of the model, which the noise keeps")
    for pair in pairs:
        if pair.plan is None:
            console.note(f"left out: {pair.participation} with {pair.mechanism}: {pair.why}")
    if len({pair.plan.adjacency for pair in pairs if pair.plan is not None}) > 1:
        console.note("note: epsilon for zero-out and for add-or-remove adjacency are different guarantees: zero-out")
        console.note("      takes N, and the place of each record, as public")


def _name(pair: PairResult) -> dict[str, str]:
    return {"participation": pair.participation, "mechanism": pair.mechanism}


def _data_of(pair: PairResult) -> dict[str, Any]:
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


def draw_bars(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bars of the noise in the final weights and over all steps, in the order of the rows.

    Args:
        rows: `participation`, `mechanism`, `adjacency`, `epsilon`, `noise_in_weights`, `noise_in_final_weights` and
            `buffers` of each pair.

    Returns:
        An SVG file.
    """
    with plot("compared", 6.4, 0.9 + 0.42 * len(rows)) as figure:
        axes = figure.add_subplot()
        for place, row in enumerate(rows):
            axes.barh(place - 0.18, row["noise_in_final_weights"], 0.34, color=SERIES[0])
            axes.barh(place + 0.18, row["noise_in_weights"], 0.34, color=SERIES[1])
            longest = max(row["noise_in_final_weights"], row["noise_in_weights"])
            copies = f"{row['buffers']} copies of the model" if row["buffers"] else "no memory"
            words = f"epsilon {row['epsilon']:.3g} ({row['adjacency']}), {copies}"
            annotate(axes, words, (longest, place), (4, 0), va="center", fontsize=7, color=MUTED)
        axes.set_yticks(range(len(rows)), [f"{row['mechanism']}, {row['participation']}" for row in rows], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.45)
        axes.set_xlabel("noise in a weight, over learning rate and clipping norm: final (above), over all steps")
        style_axes(axes, "x")
        return svg(figure)


if __name__ == "__main__":
    sys.exit(command.main("pairs"))
