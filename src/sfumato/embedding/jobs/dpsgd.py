"""DP-SGD in place of virtual clients: a backbone with one head over all classes, by each user's mean gradient."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of
from sfumato.averaging.averages import Averages
from sfumato.data import Source
from sfumato.embedding.choices import Clients
from sfumato.embedding.experiment import EmbeddingExperiment
from sfumato.embedding.jobs.private import OfEmbeddings, build, check_scored
from sfumato.experiment.budget import Budget, Pair
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Settings
from sfumato.optim.descent import Descent
from sfumato.privacy import PrivacyPlan
from sfumato.runs.owner.public_records import refuse_trained_on
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.building import transform_for
from sfumato.training.preparation.origins import origins, trained_on
from sfumato.training.preparation.prepare import first_key
from sfumato.training.preparation.prepare import prepare as prepare_classifier
from sfumato.training.preparation.start import Start


@dataclass(frozen=True, kw_only=True)
class DpsgdJob(OfEmbeddings, PrivateJob):
    """A private training of a classifier, of which the backbone is released as an embedding."""


def decide(experiment: EmbeddingExperiment, source: Source) -> tuple[PrivacyPlan, Settings, Clients, list[str]]:
    """Plan and settings as `sfumato train --unit user` would have them, of what is asked for here."""
    experiment.refuse_no_noise()
    if experiment.grouping is not None or experiment.clients is not None:
        raise SfumatoError("method dpsgd has no virtual clients", "leave clients and grouping out")
    if experiment.quantile is not None:
        raise SfumatoError("method dpsgd clips to a fixed norm", "leave quantile out")
    shared = {one.name for kind in (Budget, Pair) for one in fields(kind)}
    given = {name: getattr(experiment, name) for name in shared}
    names = {*choices_of(Descent), *choices_of(Averages), "seed"} - {"pretrained_rate"}
    given |= {name: getattr(experiment, name) for name in names}
    asked = Experiment(**given, unit="user", per_user=experiment.per_user, drawn="users", views=1, model="cnn")
    plan, settings, reasons = asked.decide(source)
    model = experiment.settings(source)
    settings = replace(
        settings,
        model=model.model,
        pretrained=model.network.pretrained,
        pretrained_weights=model.network.pretrained_weights,
    )
    clients = experiment.clients_of(count=1, method="dpsgd", local=replace(experiment.local(), head="global"))
    return plan, settings, clients, reasons


def prepare(
    source: Source,
    plan: PrivacyPlan,
    settings: Settings,
    clients: Clients,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    **others: Any,
) -> DpsgdJob:
    """Everything up to the first step; see `sfumato.training.preparation.prepare`."""
    check_scored(source)
    refuse_trained_on(source, trained_on(source, settings))
    start = Start.given(start, others)
    module = build(source, settings, clients, start.unfinished.key or first_key(settings), model)
    own = replace(settings, model="module", pretrained=None, pretrained_weights=None)
    job = prepare_classifier(module, source, plan, own, start, keep=0)
    known: dict[str, Any] = {one.name: getattr(job, one.name) for one in fields(PrivateJob)}
    known["settings"] = settings
    known["transform"] = transform_for(job.module, source, settings)
    known["circumstances"] = replace(job.circumstances, origins=origins(source, settings))
    return DpsgdJob(**known, clients=clients)
