"""What a call from Python asks for by keywords: an experiment, or settings beside a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of, nearest, refuse_unknown
from sfumato.experiment.elsewhere import answer, is_called
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Budget, PairOfRecords, Units

if TYPE_CHECKING:
    from sfumato.averaging import EMA
    from sfumato.data import Source
    from sfumato.experiment.settings import Settings

Kind = TypeVar("Kind")

OF_PLANS = [one.name for kind in (Budget, PairOfRecords, Units) for one in fields(kind)]
OF_SOURCES = frozenset(
    {"classes", "size", "channels", "bit_depth", "window", "test_fraction", "examples", "public", "label_columns"}
    | {"user_from", "skip_unreadable", "text_column", "root", "download"}
)
"""What is declared of a source where it is opened, and is no field of an experiment."""
OF_OPTIMIZERS = frozenset(
    {"beta1", "beta2", "betas", "adam_beta1", "adam_beta2", "adam_epsilon", "adam_eps", "epsilon_root"}
    | {"nesterov", "dampening", "amsgrad", "always_adapt", "trust_clip", "grad_averaging", "decoupled_decay"}
)
"""What optimizers take elsewhere, and is fixed here."""
THEIR_OWN = "{} (the first beta of adam, adamw and lamb) and {} are an optimizer's only options besides {}"
"""In place of them, with the names of the momentum, the weight decay and the learning rate."""


def experiment_of(
    settings: Settings | None, model: str | None, averaging: EMA | None, choices: Mapping[str, Any]
) -> Experiment:
    """What a call without a plan asks for: the budget among the choices, and settings as such or as their fields."""
    budget = {name: value for name, value in choices.items() if name in OF_PLANS}
    others = {name: value for name, value in choices.items() if name not in OF_PLANS}
    if settings is not None:
        return of_fields(Experiment, {**settings_of(settings, model, averaging, others).flat(), **budget})
    return of_fields(Experiment, {**_averages(averaging, others), "model": model, **others, **budget})


def refuse_budget(choices: Mapping[str, Any]) -> None:
    """Refuse parts of a budget beside a plan, which has them already."""
    if both := [name for name in OF_PLANS if name in choices]:
        raise SfumatoError(f"a plan and {', '.join(both)} are both given", "give the plan, or a budget without it")


def settings_of(
    settings: Settings | None,
    model: str | None,
    averaging: EMA | None,
    choices: Mapping[str, Any],
    source: Source | None = None,
) -> Settings:
    """The settings that were given as such, or as their fields; the loss by rule is the source's."""
    from sfumato.experiment.settings import Settings
    from sfumato.models.losses import MULTILABEL

    if settings is None:
        named = {} if model is None else {"model": model}
        by_rule = {"loss": MULTILABEL} if source is not None and source.multilabel else {}
        return of_fields(Settings, {**_averages(averaging, choices), **named, **by_rule, **choices})
    if choices:
        raise SfumatoError(f"settings and {', '.join(choices)} are both given", "give settings, or their fields")
    if model not in (None, settings.model):
        raise SfumatoError(f"the model is {model}, and that of the settings {settings.model}", "name one model")
    return settings


def _averages(averaging: EMA | None, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The average as fields of `Settings`; the one that stands where none was given makes way for uta."""
    from sfumato.averaging import EMA

    if averaging is None or (choices.get("aggregate") == "uta" and averaging == EMA()):
        return {"ema": 0.0}
    constant = {} if averaging == EMA(averaging.decay) else {"ema_form": averaging.form}
    return {"ema": averaging.decay, **constant}


def refuse_others(
    kind: type, given: Mapping[str, Any], others: Collection[str] = (), *, examples: int | None = None
) -> None:
    """Refuse a name that is neither a choice nor one of the others, with what it is called here.

    Args:
        given: names with their values.
        examples: N, where it is known, by which epochs are steps.
    """
    known = {*choices_of(kind), *others}
    for name in given:
        if name not in known:
            refuse_unknown(name, kind, _remedy(name, known, given, examples), others=others)


def _remedy(name: str, known: Collection[str], given: Mapping[str, Any], examples: int | None) -> str | None:
    if name in OF_OPTIMIZERS:
        return f"leave it out: {THEIR_OWN.format('momentum', 'weight_decay', 'learning_rate')}"
    declared = name if name in OF_SOURCES else nearest(name, OF_SOURCES)
    found = answer(name, known, given=given[name], examples=examples, batch_size=given.get("batch_size"))
    if declared is not None and (name in OF_SOURCES or is_called(name, OF_SOURCES) or found is None):
        return f"give it to sfumato.open_source, and the source in place of its name: open_source(..., {declared}=...)"
    return found


def of_fields(kind: Callable[..., Kind], choices: Mapping[str, Any]) -> Kind:
    """Settings, or an experiment, with these choices; others are refused, and a near one is named."""
    refuse_others(kind, choices)  # type: ignore[arg-type]
    missing = [
        name
        for name, one in choices_of(kind).items()  # type: ignore[arg-type]
        if one.default is MISSING and one.default_factory is MISSING and name not in choices
    ]
    if missing:
        raise SfumatoError(f"{', '.join(missing)} must be given beside a plan", "give it, or no plan but a budget")
    return kind(**choices)
