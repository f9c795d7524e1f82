"""Everything up to the first step of training without privacy."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.randomness import RunKey
from sfumato.training.job import PublicJob, PublicTraining
from sfumato.training.preparation.building import build
from sfumato.training.preparation.origins import origins
from sfumato.training.preparation.prepare import begun
from sfumato.training.preparation.start import Start
from sfumato.training.steps import PUBLIC

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

    known = begun(
        source,
        settings,
        Start.given(start, others),
        built,
        kind=PUBLIC,
        steps=training.steps,
        micro_batch=MICRO_BATCH,
    )
    return PublicJob(
        **known,
        batch_size=training.batch_size,
        origins=origins(source, settings),
        max_norm=training.max_norm,
    )
