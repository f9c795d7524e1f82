"""Early checks: refuse choices that are impossible for any data, before data are read.

Nothing is decided here. Each check also runs later in its own module; here it is applied to what is already known: the
choices, the source's spelling and its declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sfumato import data, models
from sfumato._checks import positive_integer
from sfumato._choices import choices_of
from sfumato.data import SourceSpec
from sfumato.data.declared import Labels
from sfumato.experiment import users
from sfumato.experiment.defaults import aggregate_rules
from sfumato.experiment.settings import Settings
from sfumato.models import losses
from sfumato.models.choices import LossSettings
from sfumato.privacy import Example, PrivacyPlan, User
from sfumato.privacy.mechanism import Mechanism
from sfumato.privacy.participation import FullBatch, participation_for
from sfumato.training.parts.options import RunOptions
from sfumato.training.preparation.building import refuse_noise
from sfumato.training.weights import check_descent

if TYPE_CHECKING:
    from sfumato.experiment.experiment import Experiment
    from sfumato.experiment.settings import Budget
    from sfumato.privacy.clipping import Clipping
    from sfumato.privacy.planning.by_name import Request

ANY_NUMBER = 10**9
"""A number of examples that is large enough for any choice."""
IMAGES = ("digits", "folder", "torchvision")
"""Kinds of sources that only hold images. For tables and archives the records decide."""
TEXT_OPTIONS = ("text_column", "length", "vocabulary", "words", "task")
"""Declarations that only texts have."""


def check(experiment: Experiment, spec: SourceSpec, options: RunOptions) -> None:
    """Refuse an experiment that is impossible for any data, or for this source as declared.

    Args:
        options: the options of the run's parts, by name.
    """
    check_experiment(experiment, spec)
    options.check(public=spec.is_public)


def check_planned(settings: Settings, plan: PrivacyPlan, spec: SourceSpec, options: RunOptions) -> None:
    """`check` for given settings and a given plan."""
    check_settings(settings, steps=plan.steps, model=settings.model, spec=spec)
    refuse_noise(settings.noise, plan.mechanism, plan.clipping)
    options.check(public=spec.is_public)


def check_experiment(experiment: Experiment, spec: SourceSpec | None = None) -> None:
    """Refuse impossible plans and settings of an experiment, without the run's parts."""
    check_numbers(experiment)
    experiment.refuse_momentum()
    users.check_choices(experiment.unit, experiment.per_user, experiment.per_step)
    if experiment.class_prevalence is not None and experiment.unit == "user":
        losses.refuse_for_users()
    settings = provisional_settings(vars(experiment))
    check_settings(settings, steps=experiment.steps, model=experiment.model, spec=spec)
    check_plan(experiment, spec)
    if experiment.unit == "user":
        check_has_users(spec, "train --unit user")


def check_numbers(budget: Budget) -> None:
    """Refuse invalid values of epsilon, steps and batch size."""
    _ = budget.target
    if budget.steps is not None:
        positive_integer("steps", budget.steps, remedy="give the number of training steps")
    if budget.batch_size is not None:
        remedy = "give the expected number of examples in a step"
        positive_integer("batch_size", budget.batch_size, remedy=remedy)


def provisional_settings(given: Mapping[str, Any], **by_rule: Any) -> Settings:
    """Settings with the given choices, and valid placeholders for defaults that depend on the data."""
    rules = {name: rule.value for name, rule in aggregate_rules(given).items()}
    chosen = {name: given[name] for name in choices_of(Settings) if given.get(name) is not None}
    return Settings(**{"model": "module", "learning_rate": 1e-3, **rules, **by_rule, **chosen})


def check_settings(
    settings: Settings, *, steps: int | None, model: str | None = None, spec: SourceSpec | None = None
) -> None:
    """Refuse settings that are impossible for any run.

    Args:
        settings: the requested settings.
        steps: of the run; None if unknown.
        model: the given spelling, if any; "module" for the user's own module.
        spec: the source as declared.
    """
    check_descent(settings, steps=steps)
    check_shares(settings.objective, Labels() if spec is None else spec.declared.labels)
    weights = settings.network.initial_weights
    if weights is not None and weights != "timm":
        models.check_weights(weights)
    if settings.norms.public_data is not None:
        data.refuse_absent(settings.norms.public_data)
    if model not in (None, "module"):
        check_model(model, settings.network.pretrained, spec)


def check_shares(objective: LossSettings, labels: Labels) -> None:
    """Refuse class shares that do not match the declared classes or labels, or that do not sum to one."""
    from sfumato.models.losses import is_exclusive

    prevalence = objective.class_prevalence
    if prevalence is None:
        return
    if labels.label_columns is not None:
        losses.answer_weights(prevalence, labels.label_columns)
    elif is_exclusive(objective.loss):
        losses.refuse_other_sum(prevalence)
        if labels.classes is not None:
            losses.class_weights(prevalence, labels.classes)


def check_model(model: str, pretrained: str | None, spec: SourceSpec | None) -> None:
    """Refuse a model that cannot be built for the known kind of records."""
    kind, argument = ("", "") if spec is None else data.parse(spec.spec)
    if spec is not None and kind == "features":
        models.create_head(model, classes=2, width=data.Cache(argument).contents.width)
        return
    declared = {} if spec is None else spec.declared.given
    records = "images" if kind in IMAGES else "texts" if any(name in declared for name in TEXT_OPTIONS) else None
    if "task" in declared:
        records = "next words"
    models.check(
        model, records=records, channels=declared.get("channels"), size=declared.get("size"), pretrained=pretrained
    )


def check_has_users(spec: SourceSpec | None, *verb: str) -> None:
    """Refuse a source without users, as far as its spelling shows."""
    if spec is None or spec.declared.people.user_from is not None:
        return
    if data.parse(spec.spec)[0] in ("digits", "folder"):
        data.refuse_without_users("" if spec.declared.loading.class_from else spec.spec, *verb)


def check_plan(experiment: Experiment, spec: SourceSpec | None) -> None:
    """Refuse combinations of participation, noise, adjacency and unit without a theorem, and numbers out of range."""
    examples = ANY_NUMBER
    if experiment.unit != "user" and spec is not None and spec.declared.examples is not None:
        examples = positive_integer("examples", spec.declared.examples)
    unit = User(at_most=experiment.per_user, per_step=experiment.per_step) if experiment.unit == "user" else Example()
    known = (
        experiment
        if experiment.drift is None or experiment.drift_size is not None
        else replace(experiment, drift_size=1)
    )
    request = known.request(examples, momentum=0.0)
    try_plan(experiment, request, unit, examples=examples)
    refuse_noise(experiment.noise, request.mechanism)


def try_plan(
    budget: Budget,
    request: Request,
    unit: Example | User,
    *,
    examples: int = ANY_NUMBER,
    clipping: Clipping | None = None,
) -> None:
    """Make the requested plan for this many examples, which raises its errors: they hold for fewer examples too.

    For noise whose coefficients are computed from the plan, two steps stand in for any number, to save time.
    """
    from sfumato.privacy.clipping import FixedClipping

    rule, noise = request.participation, request.mechanism
    size = examples if isinstance(rule, FullBatch) else 1
    if budget.batch_size is not None and examples != ANY_NUMBER:
        size = budget.batch_size
    who = participation_for(population=examples, batch_size=size, rule=rule)
    steps = (budget.steps or 1) if isinstance(noise, Mechanism) else 2
    sigma = 1.0 if budget.noise_multiplier is None else budget.noise_multiplier
    PrivacyPlan(
        population=examples,
        participation=who,
        mechanism=replace(noise.adapted(who, examples, steps), noise_multiplier=sigma),
        steps=steps,
        delta=1e-5 if budget.delta is None else budget.delta,
        clipping=clipping or FixedClipping(1.0 if budget.max_norm is None else budget.max_norm),
        unit=unit,
        adjacency=request.adjacency,
    )
