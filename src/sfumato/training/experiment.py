"""What a user asks for, from the command line, a recipe or Python alike; whatever was left out follows by rule."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sfumato._checks import SfumatoError, positive

if TYPE_CHECKING:
    from sfumato.averaging import EMA
    from sfumato.data import Source
    from sfumato.privacy import PrivacyPlan
    from sfumato.training.settings import Settings


OF_THE_PLAN = ("epsilon", "delta", "noise_multiplier", "batch_size", "steps", "max_norm")
"""Fields of an experiment that its plan is made of; the others are those of `Settings`."""

Kind = TypeVar("Kind")


class Decided(NamedTuple):
    """A plan, settings, and in lines for the reader why whatever was left out is what it is."""

    plan: PrivacyPlan
    settings: Settings
    reasons: list[str]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A private training as it is asked for. What is None follows a written rule, from public facts alone.

    Args:
        epsilon, delta, noise_multiplier, batch_size, steps, max_norm: as for `PrivacyPlan.calibrate`; with all four of
            epsilon, noise, steps and batch size the plan may spend at most epsilon.
        model, pretrained, head, head_deviation, head_bias, loss, pretrained_rate, trainable, optimizer, learning_rate,
            momentum, weight_decay, schedule, warmup, views, shift, flip, zoom, ema, seed: see `Settings`.
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    batch_size: int | None = None
    steps: int | None = None
    max_norm: float | None = None
    model: str | None = None
    pretrained: str | None = None
    head: str | None = None
    head_deviation: float | None = None
    head_bias: float | None = None
    loss: str | None = None
    pretrained_rate: float | None = None
    trainable: tuple[str, ...] | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    schedule: str | None = None
    warmup: int | None = None
    views: int | None = None
    shift: int | None = None
    flip: bool | None = None
    zoom: float | None = None
    ema: float | None = None
    seed: int | None = None

    def decide(self, source: Source) -> Decided:
        """Plan and settings for this source.

        Errors: `SfumatoError` for what cannot be, before anything is spent.
        """
        from sfumato.training import defaults
        from sfumato.training.settings import Settings

        given = asdict(self)
        plan, reasons = self._plan(source)
        rules = defaults.training_rules(
            plan, given=given, size=source.size, channels=source.channels, cached=source.cached_views
        )
        values = {name: rule.value for name, rule in rules.items()}
        values |= {one.name: given[one.name] for one in fields(Settings) if given[one.name] is not None}
        reasons += self._remarks(plan, source)
        return Decided(plan, Settings(**values), [*reasons, *defaults.reasons(rules, given)])

    def _plan(self, source: Source) -> tuple[PrivacyPlan, list[str]]:
        """The plan, with the reasons for its batch size and steps."""
        from sfumato.privacy import PrivacyPlan
        from sfumato.privacy.plan import default_delta
        from sfumato.privacy.statement import rounded_up
        from sfumato.training import defaults

        epsilon, noise, steps, batch_size = self.epsilon, self.noise_multiplier, self.steps, self.batch_size
        if epsilon is None and noise is None:
            epsilon = defaults.EPSILON
        bounded = None not in (epsilon, noise, steps, batch_size)  # as by the rows of papers, which state it roundly
        solved = {
            "steps": None not in (epsilon, noise) and steps is None,
            "batch_size": None not in (epsilon, noise, steps),
        }
        sizes = defaults.plan_rules(source.examples)
        plan = PrivacyPlan.calibrate(
            examples=source.examples,
            delta=default_delta(source.examples) if self.delta is None else self.delta,
            batch_size=sizes["batch_size"].value if batch_size is None and not solved["batch_size"] else batch_size,
            steps=sizes["steps"].value if steps is None and not solved["steps"] else steps,
            noise_multiplier=noise,
            epsilon=None if bounded else epsilon,
            max_norm=1.0 if self.max_norm is None else self.max_norm,
        )
        reasons = defaults.reasons(sizes, {name: solved[name] or getattr(self, name) or None for name in sizes})
        if bounded:
            if plan.epsilon() > positive("epsilon", epsilon):
                raise SfumatoError(
                    f"noise multiplier {noise:g}, {steps} steps and batch size {batch_size} come to epsilon "
                    f"{rounded_up(plan.epsilon())}, above epsilon {epsilon:g}",
                    "give more noise, fewer steps or a smaller batch",
                )
            reasons.append(
                f"note: noise multiplier {noise:g} comes to epsilon {rounded_up(plan.epsilon())}, within {epsilon:g}"
            )
        return plan, reasons

    def _remarks(self, plan: PrivacyPlan, source: Source) -> list[str]:
        """What should be known of the plan before it is paid for."""
        from sfumato.privacy import remarks

        notes, counted = [remarks.above_one_record(plan)], len(source.train)
        if not 0.8 * counted <= source.examples <= 1.25 * counted:
            notes.append(
                f"{source.examples} examples are declared, and the data hold {counted}; the promise holds as stated, "
                f"but steps have about {counted * plan.sampling_probability:.0f} examples, and are divided by "
                f"{plan.expected_batch_size}"
            )
        notes.append(remarks.weak_signal(plan, len(source.classes)))
        if self.trainable and "all" not in self.trainable and self.pretrained is None and source.cache is None:
            notes.append("only a part is trained, and no pre-trained weights are given: the rest stays random")
        lines = [f"note: {note}" for note in notes if note is not None]
        if self.delta is None:
            counted_as = plan.epsilon(min(0.5, 1 / plan.population))
            lines.append(
                f"by rule: delta {plan.delta:g} (at most 1e-5 and 1/(10 N)); at 1/N, where a record may be published "
                f"as it is, the same noise would count as epsilon {counted_as:.3g}"
            )
        return lines


def experiment_of(
    settings: Settings | None, model: str | None, averaging: EMA | None, choices: Mapping[str, Any]
) -> Experiment:
    """What a call without a plan asks for: the budget among the choices, and settings as such or as their fields."""
    budget = {name: value for name, value in choices.items() if name in OF_THE_PLAN}
    others = {name: value for name, value in choices.items() if name not in OF_THE_PLAN}
    if settings is not None:
        return of_fields(Experiment, {**asdict(settings_of(settings, model, averaging, others)), **budget})
    return of_fields(Experiment, {"ema": averaging.decay if averaging else 0.0, "model": model, **others, **budget})


def settings_of(
    settings: Settings | None, model: str | None, averaging: EMA | None, choices: Mapping[str, Any]
) -> Settings:
    """The settings that were given as such, or as their fields."""
    from sfumato.training.settings import Settings

    if settings is None:
        named = {} if model is None else {"model": model}
        return of_fields(Settings, {"ema": averaging.decay if averaging else 0.0, **named, **choices})
    if choices:
        raise SfumatoError(f"settings and {', '.join(choices)} are both given", "give settings, or their fields")
    if model not in (None, settings.model):
        raise SfumatoError(f"the model is {model}, and that of the settings {settings.model}", "name one model")
    return settings


def of_fields(kind: Callable[..., Kind], choices: Mapping[str, Any]) -> Kind:
    """Settings, or an experiment, with these fields; others are refused, and a near one is named."""
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    for name in choices:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}" if near else f"give {', '.join(known)}"
            raise SfumatoError(f"{name} is no field of {getattr(kind, '__name__', kind)}", remedy)
    missing = [name for name, one in known.items() if one.default is MISSING and name not in choices]
    if missing:
        raise SfumatoError(f"{', '.join(missing)} must be given beside a plan", "give it, or no plan but a budget")
    return kind(**choices)
