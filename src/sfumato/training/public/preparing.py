"""Everything up to the first step of training without privacy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.experiment.settings import Performance, Settings
from sfumato.randomness import RunKey
from sfumato.runs import pins
from sfumato.training.descent import check_choices
from sfumato.training.job import PUBLIC, PublicJob, PublicTraining
from sfumato.training.preparation.building import build, transform_for
from sfumato.training.preparation.origins import origins
from sfumato.training.preparation.prepare import first_key, settled_on
from sfumato.training.preparation.start import Start

MICRO_BATCH = 256


def refuse_private(kind: str) -> NoReturn:
    """Refuse data of this kind of source that are not declared public."""
    raise SfumatoError(
        f"training without privacy needs public data, and this {kind} source is private",
        "declare it public (`public=True`) if it is; train private data with sfumato train",
    )


def prepare(
    source: Source,
    training: PublicTraining,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    **others: Any,
) -> PublicJob:
    """Everything up to the first step. Refuses data that are not declared public."""
    if not source.public:
        refuse_private(source.kind)
    if training.batch_size > len(source.train):
        raise SfumatoError(
            f"batch_size must not exceed the number of examples, got {training.batch_size} of {len(source.train)}",
            "give a smaller one",
        )
    settings = training.settings
    source.images_for(settings.views)

    def built(key: RunKey) -> nn.Module:
        return build(model, source, settings, key)

    known = in_common(source, settings, built, steps=training.steps, start=Start.given(start, others))
    return PublicJob(**known, batch_size=training.batch_size, max_norm=training.max_norm)


def in_common(
    source: Source,
    settings: Settings,
    built: Callable[[RunKey], nn.Module],
    *,
    steps: int,
    start: Start,
    micro_batch: int | None = None,
) -> dict[str, Any]:
    """What all jobs without a plan have. Refuses what the first step would refuse.

    Args:
        built: the model with its initial weights, by the key.
    """
    device, threads = settled_on(start)
    key = start.unfinished.key or first_key(settings, PUBLIC)
    module = built(key).to(device)
    check_choices(module, settings, steps=steps)
    return {
        "module": module,
        "source": source,
        "settings": settings,
        "steps": steps,
        "performance": Performance(device=device, threads=threads, micro_batch=micro_batch or MICRO_BATCH),
        "transform": transform_for(module, source, settings),
        "key": key,
        "functions": {"function": pins.model_digest(module, source.form.synthetic(2))},
        "origins": origins(source, settings),
        "request": start.context.request,
    }
