"""Pairs of participation and mechanism at the same budget, batch size and steps: which leaves the least noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.planning.requested import GROUPS, OF_MECHANISMS, OF_PARTICIPATIONS, requested

PAIRS = (
    ("poisson", "gaussian"),
    ("truncated", "gaussian"),
    ("full-batch", "gaussian"),
    ("cyclic", "gaussian"),
    ("cyclic", "banded"),
    ("fixed-order", "gaussian"),
    ("fixed-order", "tree"),
    ("fixed-order", "banded"),
    ("fixed-order", "blt"),
)
MOST_STEPS = 1_000_000
WITHOUT_SAMPLING = ("fixed-order", "full-batch")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One pair.

    Args:
        participation, mechanism: by their names.
        plan: None where there is none; then `why` says it.
        final: standard deviation of the noise in one of the last weights, over learning rate and clipping norm:
            sigma / B times what the mechanism leaves of the steps' noise.
        all_steps: its root mean square over the weights after every step.
        buffers: copies of the model that the noise keeps.
        options: the options of the pair that `requested` was given, its names beside them.
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
        """Whether its promise rests on drawing participants afresh for a step."""
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
) -> list[Compared]:
    """All pairs that have a theorem, each with the least noise that the budget allows, the least noise first.

    The figures are predictions: linear in the gradients' noise, and exact for heavy-ball SGD. Pairs of different
    adjacencies make different promises at the same epsilon.

    Args:
        momentum, rates: of the optimizer, as for `requested`.
        options: more of `requested`'s (bands, buffers, groups, ...), each for the pairs that have it. Where an order by
            position or time is among them, records cannot be drawn, and pairs of other participations have no plan.
        on_progress: called with how many pairs are done, and of how many.
    """
    if steps > MOST_STEPS:
        raise SfumatoError(
            f"pairs are compared over at most {MOST_STEPS} steps, got {steps}", "give fewer steps, or plan one pair"
        )
    found, given = [], options or {}
    for done, (participation, mechanism) in enumerate(PAIRS, start=1):
        names = (*OF_MECHANISMS.get(mechanism, ()), *OF_PARTICIPATIONS.get(participation, ()), "adjacency")
        own = {name: given[name] for name in names if given.get(name) is not None}
        if participation == "cyclic":  # no more groups than the batch leaves room for
            own["groups"] = min(own.get("groups") or GROUPS, max(1, examples // batch_size))
        try:
            if given.get("order") in ("position", "time") and participation != "fixed-order":
                raise SfumatoError(f"who takes part is decided by {given['order']}", "give order random, or none")
            pair = {"participation": participation, "mechanism": mechanism, **own}
            request = requested(examples=examples, momentum=momentum, rates=rates, **pair)
            plan = PrivacyPlan.calibrate(
                examples=examples, batch_size=batch_size, steps=steps, epsilon=epsilon, delta=delta, **request._asdict()
            )
        except SfumatoError as error:
            found.append(Compared(participation=participation, mechanism=mechanism, why=error.problem))
        else:
            left = plan.noise_in_weights(momentum, None if rates is None else rates(steps))
            scale = plan.noise_multiplier / plan.expected_batch_size
            found.append(
                Compared(
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


def to_take(pairs: Sequence[Compared], *, sampled: bool | None = None) -> Compared:
    """The pair of the least noise in the last weights; of those within three percent the one that keeps the least.

    Args:
        sampled: True or False where participants can, or cannot, be drawn afresh for every step.
    """
    rivals = [pair for pair in pairs if pair.plan is not None and sampled in (None, pair.sampled)]
    least = min(pair.final for pair in rivals)
    return min((pair for pair in rivals if pair.final <= 1.03 * least), key=lambda pair: pair.buffers)
