"""The options of a private training, from the command line, a recipe or Python. Absent options follow rules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from sfumato._cards import Detail
from sfumato._checks import SfumatoError, positive_integer
from sfumato._choices import all_optional, choices_of
from sfumato.averaging.choices import Averages
from sfumato.experiment.settings import (
    MOST_EXAMPLES,
    SECURE,
    Augmentation,
    Budget,
    NoiseMade,
    PairOfRecords,
    Settings,
    Units,
    check_plan,
    make_plan,
    refuse_noise,
)
from sfumato.models.choices import LossSettings, Network, NormSettings
from sfumato.optim.descent import Descent
from sfumato.privacy.planning.target import Epsilon

if TYPE_CHECKING:
    from sfumato.data import Source, SourceSpec
    from sfumato.experiment.defaults import FixedFeatures
    from sfumato.privacy import Example, PrivacyPlan, User


class Decision(NamedTuple):
    """A plan, settings, and lines for the user that explain the values of absent options."""

    plan: PrivacyPlan
    settings: Settings
    reasons: list[str]


AveragesAsked: Any = all_optional(Averages)
ClassShares: Any = all_optional(LossSettings, without=("loss",))
Normalisation: Any = all_optional(NormSettings)


@dataclass(frozen=True, kw_only=True)
class Choices(
    all_optional(Augmentation),
    all_optional(Descent),
    all_optional(LossSettings, without=("class_prevalence",)),
    all_optional(Network),
    AveragesAsked,
):
    """The choices of `Settings`. None follows a rule.

    These fields define the command line's options: name, type, help text and metadata.
    """


@dataclass(frozen=True, kw_only=True)
class Experiment(Choices, ClassShares, Normalisation, Units, PairOfRecords, NoiseMade, Budget):
    """The options of a private training. None follows a rule that uses public facts alone.

    If noise multiplier, steps, batch size and epsilon (or mu, or an attack risk) are all given, the plan may spend at
    most that. Otherwise see `PrivacyPlan.calibrate`. With a seed the run has no guarantee.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuses options that are impossible for any data."""
        from sfumato.experiment import users
        from sfumato.models.losses import refuse_for_users

        self.check_numbers()
        if self.optimizer == "sgd" and self.momentum:
            raise SfumatoError(
                f"momentum is {self.momentum!r}, but the optimizer sgd has no momentum",
                "leave it out, or give `optimizer=momentum`",
            )
        users.check_choices(self.unit, self.per_user, self.per_step)
        if self.class_prevalence is not None and self.unit == "user":
            refuse_for_users()
        self._provisional.check_steps(self.steps)
        self._check_plan(MOST_EXAMPLES)

    @cached_property
    def _provisional(self) -> Settings:
        """The settings, with placeholders for defaults that depend on the data."""
        return Settings.provisional(vars(self))

    def check_source(self, spec: SourceSpec) -> None:
        """Refuses options that are impossible for this source, as far as its spelling and declarations show."""
        self._provisional.check_source(spec, self.model)
        if self.unit == "user":
            spec.refuse_without_users()
        elif spec.declared.examples is not None:
            self._check_plan(positive_integer(examples=spec.declared.examples))

    def _check_plan(self, examples: int) -> None:
        """Refuses plans that are impossible for this many examples, and so for fewer."""
        from sfumato.privacy import Example, User
        from sfumato.privacy.unit import shown_by_plan

        shown = None if self.per_step is None else shown_by_plan(self.per_step, self.per_user)
        unit = User(at_most=self.per_user, per_step=shown) if self.unit == "user" else Example()
        drift_size = {} if self.drift is None or self.drift_size is not None else {"drift_size": 1}
        request = self.request(examples, momentum=0.0, **drift_size)
        check_plan(self, unit, request, examples=examples)
        refuse_noise(self.noise, request.mechanism)

    def select_records(self, source: Source) -> Source:
        """The source to train on. If the unit is a user, it has at most `per_user` records of each."""
        from sfumato.data import refuse_without_users
        from sfumato.experiment import users

        if self.unit != "user":
            return source
        if source.users is None:
            refuse_without_users()
        return users.cap_records(source, self.per_user)

    def decide(self, source: Source) -> Decision:
        """Plan and settings for this source.

        Errors: `SfumatoError` for invalid options, before any privacy is spent.
        """
        from sfumato.experiment import defaults

        options, source = asdict(self), self.select_records(source)
        plan, reasons = self._plan(source)
        rules = defaults.training_rules(plan, defaults.Records.of(source), options)
        values = {name: rule.value for name, rule in rules.items()}
        values |= {name: options[name] for name in choices_of(Settings) if options[name] is not None}
        reasons += self._remarks(plan, source)
        return Decision(plan, Settings(**values), [*reasons, *defaults.reasons(rules, options)])

    def _plan(self, source: Source) -> tuple[PrivacyPlan, list[str]]:
        """The plan, with the reasons for its unit, batch size and steps."""
        from sfumato.experiment import defaults, drift
        from sfumato.privacy import User

        target, noise, steps, batch_size = self.target, self.noise_multiplier, self.steps, self.batch_size
        if target is None and noise is None:
            target = Epsilon(defaults.EPSILON)
        bounded = None not in (target, noise, steps, batch_size)  # papers give all four, with a rounded epsilon
        solved = {
            "steps": None not in (target, noise) and steps is None,
            "batch_size": None not in (target, noise, steps),
        }
        drift_size = self.drift_size
        if self.drift is not None and drift_size is None:
            drift_size = drift.counted_size(source, self.drift_groups or ())
        request = self.request(source.examples, drift_size=drift_size)
        sizes = defaults.plan_rules(
            source.examples, request, batch_size=batch_size, steps=steps, features=self._features(source)
        )
        (unit, why), population = self._unit(source), source.examples
        if isinstance(unit, User):
            population = source.users or 0
            shown = min(source.examples, population * (unit.per_step or source.examples))
            sizes = defaults.user_rules(sizes, shown, population, request)
        plan = make_plan(
            self,
            population,
            unit,
            request,
            batch_size=sizes["batch_size"].value if batch_size is None and not solved["batch_size"] else batch_size,
            steps=sizes["steps"].value if steps is None and not solved["steps"] else steps,
            epsilon=None if bounded or target is None else target.limit,
        )
        options = {name: solved[name] or getattr(self, name) or None for name in sizes}
        reasons = [*why, *defaults.reasons(sizes, options)]
        return plan, [*reasons, *self._target_reasons(plan, target, bounded=bounded)]

    def _target_reasons(self, plan: PrivacyPlan, target: Epsilon | None, *, bounded: bool) -> list[str]:
        """Lines on how the plan meets its target. Refuses a plan that was given in full and exceeds it."""
        from sfumato.privacy.statements.display import rounded_up

        by = {None: "", "pld": "", "rdp": " by Renyi DP"}[self.accountant]
        if target is None:
            return []
        if bounded:
            noise = f"noise multiplier {plan.noise_multiplier:g}"
            cost = target.cost(plan, accountant=self.accountant or "pld")
            if cost > target.limit:
                raise SfumatoError(
                    f"{noise}, {plan.steps} steps and batch size {self.batch_size} give epsilon "
                    f"{rounded_up(cost)}{by}, above {target}",
                    "give more noise, fewer steps or a smaller batch",
                )
            return [f"note: {noise} gives epsilon {rounded_up(cost)}{by}, within {target.limit:g}"]
        return [f"note: the plan meets {target}{by}; the guarantee, by PLD, is smaller"] if by else []

    def _features(self, source: Source) -> FixedFeatures | None:
        """The constants of the model if it is a linear head on fixed features; else None."""
        from sfumato.experiment import defaults

        rule = defaults.model_rule(defaults.Records.of(source), {"flip": self.flip})
        return defaults.fixed_features(self.model or rule.value, source.channels)

    def _unit(self, source: Source) -> tuple[Example | User, list[str]]:
        """The unit, with the reason for the number of records that a user shows in a step."""
        from sfumato.experiment import users
        from sfumato.privacy import Example, User

        if self.unit != "user":
            return Example(), []
        still = (self.views or 1, self.shift or 0, self.zoom or 1, self.crop_area or 1) == (1, 0, 1, 1)
        frozen = still and (self.model == "linear" or set(self.trainable or ()) == {"classifier"})
        fixed = frozen or source.cache is not None or self._features(source) is not None
        per_step, why = users.records_of_a_step(self.per_step, source.at_most, fixed=fixed)
        return User(at_most=source.at_most, per_step=per_step), why

    def _remarks(self, plan: PrivacyPlan, source: Source) -> list[str]:
        """Notes on the plan for the user, before any privacy is spent."""
        from sfumato.data import by_user
        from sfumato.experiment import defaults, drift, users
        from sfumato.privacy.planning import remarks

        notes = [remarks.large_delta_note(plan), remarks.unused_examples_note(plan), drift.size_note(source, plan)]
        units, counted = "examples", len(source.train)
        if plan.users is not None:
            units, counted = "users", len(by_user(source.train)[1])
        if users.is_far(plan.population, counted):
            sizes = (
                f"steps have about {counted * plan.sampling_probability:.0f} {units}, and sums are divided by "
                f"{plan.expected_batch_size}"
            )
            if getattr(plan.participation, "assignment", None) == "position":
                sizes = f"only the first {plan.population} records have bins"
            notes.append(
                f"{plan.population} {units} are declared, but the data hold {counted}; the guarantee holds as stated, "
                f"but {sizes}"
            )
        if not (source.multilabel or source.next_words):  # the thresholds were measured with one class per record
            notes.append(remarks.weak_signal_note(plan, len(source.classes)))
        notes.append(defaults.small_model_note(self.model, self.pretrained, source.examples))
        notes.append(users.class_users_note(source, plan))
        if self.trainable and "all" not in self.trainable and self.pretrained is None and source.cache is None:
            notes.append(
                "only a part of the model is trained, and no pre-trained weights are given: the rest stays random"
            )
        notes.append(defaults.crop_note(source.cropped_share))
        lines = [f"note: {note}" for note in notes if note is not None]
        images = source.cache is None and source.tokens is None
        if images and source.size_rule != "declared":
            colours = "grey" if source.channels == 1 else "colour"
            lines.append(Detail(f"size {source.size}, {colours} (by rule: {source.size_rule})"))
        if self.noise == SECURE:
            lines.append(Detail("micro-batch 1, unless given (by rule: with secure noise the sum is then exact)"))
        if self.delta is None:
            counted_as, of = plan.epsilon(min(0.5, 1 / plan.units)), "" if plan.users is None else ", N users"
            lines.append(
                Detail(
                    f"delta {plan.delta:g} (by rule: at most 1e-5 and 1/(10 N){of}); at delta 1/N, which would allow "
                    f"publishing one record, the same noise gives epsilon {counted_as:.3g}"
                )
            )
        return lines


def forecast(plan: PrivacyPlan, settings: Settings, source: Source) -> str | None:
    """The accuracy to expect of a linear head on fixed features of images; None for other models and records."""
    from sfumato.experiment import defaults
    from sfumato.privacy.planning import remarks

    if source.cache is not None or source.tokens is not None or source.multilabel:
        return None
    if defaults.fixed_features(settings.model, source.channels) is None:
        return None
    shares = settings.objective.class_prevalence
    return remarks.forecast(plan, len(source.classes), None if shares is None else min(shares.values()))
