"""Central training without privacy, on public data: the ceiling that private methods are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Source
from sfumato.embedding.experiment import EmbeddingExperiment
from sfumato.embedding.jobs.private import KIND, OfEmbeddings, build, check_scored
from sfumato.randomness import RunKey
from sfumato.training.job import PublicJob
from sfumato.training.preparation.start import Start
from sfumato.training.public.preparing import in_common

BATCH_SIZE, EPOCHS = 64, 20


@dataclass(frozen=True, kw_only=True)
class CentralJob(OfEmbeddings, PublicJob):
    """A training of embeddings without privacy: a backbone with one head over all classes, by SGD on mean gradients."""

    @property
    def further(self) -> dict[str, Any]:
        """The dimension and the like."""
        return {KIND: {"method": "central", "dimension": self.clients.dimension, "far": self.clients.far}}


def prepare(
    source: Source,
    experiment: EmbeddingExperiment,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    **others: Any,
) -> CentralJob:
    """Everything up to the first step. Refuses data that are not declared public.

    Of the experiment `batch_size` is the number of images in a step here, and `learning_rate` the rate of that step.
    """
    if not source.public:
        raise SfumatoError(
            f"method central trains without privacy, and this {source.kind} source is private",
            "declare it public (`public=True`) if it is; or take method fedemb",
        )
    if experiment.epsilon is not None or experiment.noise_multiplier is not None:
        raise SfumatoError("method central promises nothing, and a budget is given", "leave the budget out")
    check_scored(source)
    images = len(source.train)
    batch_size = min(images, BATCH_SIZE if experiment.batch_size is None else experiment.batch_size)
    steps = EPOCHS * max(1, images // positive_integer("batch_size", batch_size))
    steps = steps if experiment.steps is None else positive_integer("steps", experiment.steps)
    settings = experiment.settings(source)
    clients = experiment.clients_of(count=1, method="central")

    def built(key: RunKey) -> nn.Module:
        return build(source, settings, clients, key, model)

    known = in_common(source, settings, built, steps=steps, start=Start.given(start, others))
    return CentralJob(**known, batch_size=batch_size, clients=clients)
