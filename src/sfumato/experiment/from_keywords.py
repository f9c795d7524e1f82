"""Experiments and settings from keywords."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of, refuse_unknown
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Budget, PairOfRecords, Units

if TYPE_CHECKING:
    from sfumato.averaging import EMA
    from sfumato.data import Source
    from sfumato.experiment.settings import Settings


Kind = TypeVar("Kind")

PLAN_OPTIONS = [field.name for kind in (Budget, PairOfRecords, Units) for field in fields(kind)]


def experiment_of(
    settings: Settings | None, model: str | None, averaging: EMA | None, choices: Mapping[str, Any]
) -> Experiment:
    """The experiment of a call without a plan, from `Settings` or their fields, and the budget among the choices."""
    budget = {name: value for name, value in choices.items() if name in PLAN_OPTIONS}
    others = {name: value for name, value in choices.items() if name not in PLAN_OPTIONS}
    if settings is not None:
        return from_choices(Experiment, {**settings_of(settings, model, averaging, others).flat(), **budget})
    return from_choices(Experiment, {**_averages(averaging, others), "model": model, **others, **budget})


def refuse_budget(choices: Mapping[str, Any]) -> None:
    """Refuses parts of a budget together with a plan, which already has one."""
    if both := [name for name in PLAN_OPTIONS if name in choices]:
        raise SfumatoError(f"a plan and {', '.join(both)} are both given", "give the plan, or a budget without it")


def settings_of(
    settings: Settings | None,
    model: str | None,
    averaging: EMA | None,
    choices: Mapping[str, Any],
    source: Source | None = None,
) -> Settings:
    """The given settings, or settings from their fields. The default loss depends on the source."""
    from sfumato.experiment.settings import Settings
    from sfumato.models.losses import MULTILABEL, NEXT_WORD

    if settings is None:
        named = {} if model is None else {"model": model}
        special = source is not None and (MULTILABEL if source.multilabel else NEXT_WORD if source.next_words else None)
        by_rule = {"loss": special} if special else {}
        return from_choices(Settings, {**_averages(averaging, choices), **named, **by_rule, **choices})
    if choices:
        raise SfumatoError(f"settings and {', '.join(choices)} are both given", "give settings, or their fields")
    if model not in (None, settings.model):
        raise SfumatoError(f"the model is {model}, but the settings have {settings.model}", "name one model")
    return settings


def _averages(averaging: EMA | None, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The average as fields of `Settings`. With uta, the default average is dropped."""
    from sfumato.averaging import EMA

    if averaging is None or (choices.get("aggregate") == "uta" and averaging == EMA()):
        return {"ema": 0.0}
    constant = {} if averaging == EMA(averaging.decay) else {"ema_form": averaging.form}
    return {"ema": averaging.decay, **constant}


def refuse_others(kind: type, names: Iterable[str], others: Collection[str] = ()) -> None:
    """Refuses a name that is neither a choice of `kind` nor one of `others`."""
    allowed = {*choices_of(kind), *others}
    for name in names:
        if name not in allowed:
            refuse_unknown(name, kind, others=others)


def from_choices(kind: Callable[..., Kind], choices: Mapping[str, Any]) -> Kind:
    """An instance of `kind` with these choices. Refuses unknown names and suggests the nearest one."""
    refuse_others(kind, choices)  # type: ignore[arg-type]
    missing = [
        name
        for name, choice in choices_of(kind).items()  # type: ignore[arg-type]
        if choice.default is MISSING and choice.default_factory is MISSING and name not in choices
    ]
    if missing:
        raise SfumatoError(f"{', '.join(missing)} must be given with a plan", "give it, or a budget instead of a plan")
    return kind(**choices)
