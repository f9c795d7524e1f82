"""What the verbs that train privately share: the budget, and how whatever was not given follows by rule."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sfumato.cli.choices import Choices
from sfumato.cli.options import BatchSize, Delta, Epsilon, Examples, NoiseMultiplier, One, Steps, WholeByRule

if TYPE_CHECKING:
    from sfumato.data import Source
    from sfumato.privacy import PrivacyPlan
    from sfumato.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class PrivateChoices(Choices):
    """Options of a verb that trains privately."""

    epsilon: Epsilon = None
    """The privacy budget, or in sfumato train several of them, with commas: a run for each."""
    delta: Delta = None
    """The chance at which the bound may fail."""
    noise_multiplier: NoiseMultiplier = None
    """Standard deviation of the noise over the clipping norm."""
    batch_size: BatchSize = None
    """Expected number of examples in a step; as many as N means full-batch steps."""
    steps: Steps = None
    """Number of training steps."""
    max_norm: One = None
    """C, the norm to which each example's gradient is clipped."""

    examples: Examples = None
    """N, declared: then the statement need not name it as read from the data."""
    private: bool = False
    """The data are private, although the source is a published one."""
    micro_batch: WholeByRule = None
    """The most examples in memory at once."""


def one_budget(asked: PrivateChoices) -> float | None:
    """The privacy budget, where one is given; several are refused."""
    from sfumato._checks import SfumatoError

    if isinstance(asked.epsilon, tuple):
        raise SfumatoError(
            f"--epsilon {','.join(map(str, asked.epsilon))} names several budgets", "give one, or use sfumato train"
        )
    return asked.epsilon


def decide(asked: PrivateChoices, source: Source) -> tuple[PrivacyPlan, Settings, list[str]]:
    """Plan and settings: what was asked for, the rest by rule."""
    from sfumato._checks import SfumatoError, positive
    from sfumato.privacy import PrivacyPlan, remarks
    from sfumato.privacy.plan import default_delta
    from sfumato.privacy.statement import rounded_up
    from sfumato.training import defaults
    from sfumato.training.settings import Settings

    epsilon, noise, steps, batch_size = one_budget(asked), asked.noise_multiplier, asked.steps, asked.batch_size
    if epsilon is None and noise is None:
        epsilon = defaults.EPSILON
    bounded = None not in (epsilon, noise, steps, batch_size)  # as by the rows of papers, which state epsilon roundly
    sizes = defaults.plan_rules(source.examples)
    solve_steps = epsilon is not None and noise is not None and steps is None
    solve_batch = epsilon is not None and noise is not None and steps is not None
    if batch_size is None and not solve_batch:
        batch_size = sizes["batch_size"].value
    if steps is None and not solve_steps:
        steps = sizes["steps"].value
    plan = PrivacyPlan.calibrate(
        examples=source.examples,
        delta=default_delta(source.examples) if asked.delta is None else asked.delta,
        batch_size=batch_size,
        steps=steps,
        noise_multiplier=noise,
        epsilon=None if bounded else epsilon,
        max_norm=1.0 if asked.max_norm is None else asked.max_norm,
    )
    if bounded and plan.epsilon() > positive("epsilon", epsilon):
        raise SfumatoError(
            f"noise multiplier {noise:g}, {steps} steps and batch size {batch_size} come to epsilon "
            f"{rounded_up(plan.epsilon())}, above epsilon {epsilon:g}",
            "give more noise, fewer steps or a smaller batch",
        )
    given = {field.name: getattr(asked, field.name) for field in fields(asked)}
    chosen = defaults.training_rules(
        plan, given=given, size=source.size, channels=source.channels, cached=source.cached_views
    )
    names = {field.name for field in fields(Settings)}
    values = {name: rule.value for name, rule in chosen.items()}
    values |= {name: given[name] for name in names if given[name] is not None}
    solved = {"batch_size": solve_batch or given["batch_size"], "steps": solve_steps or given["steps"]}
    reasons = defaults.reasons(sizes, {**given, **{name: value or None for name, value in solved.items()}})
    if bounded:
        reasons.append(
            f"note: noise multiplier {noise:g} comes to epsilon {rounded_up(plan.epsilon())}, within {epsilon:g}"
        )
    large = remarks.above_one_record(plan)
    if large is not None:
        reasons.append(f"note: {large}")
    counted = len(source.train)
    if not 0.8 * counted <= source.examples <= 1.25 * counted:
        reasons.append(
            f"note: {source.examples} examples are declared, and the data hold {counted}; the promise holds as stated, "
            f"but steps have about {counted * plan.sampling_probability:.0f} examples, and are divided by "
            f"{plan.expected_batch_size}"
        )
    weak = remarks.weak_signal(plan, len(source.classes))
    if weak is not None:
        reasons.append(f"note: {weak}")
    if asked.trainable and "all" not in asked.trainable and asked.pretrained is None and source.cache is None:
        reasons.append("note: only a part is trained, and no pre-trained weights are given: the rest stays random")
    if asked.delta is None:
        counted_as = plan.epsilon(min(0.5, 1 / plan.population))
        reasons.append(
            f"by rule: delta {plan.delta:g} (at most 1e-5 and 1/(10 N)); at 1/N, where a record may be published as it "
            f"is, the same noise would count as epsilon {counted_as:.3g}"
        )
    return plan, Settings(**values), [*reasons, *defaults.reasons(chosen, given)]
