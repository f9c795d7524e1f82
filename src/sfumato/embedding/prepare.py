"""The preparation of an embedding training up to its first step, with or without a promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from torch import nn

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of
from sfumato.averaging.choices import Averages
from sfumato.data import Source, by_user, shared_users
from sfumato.embedding import method
from sfumato.embedding import steps as kinds
from sfumato.embedding.choices import EVEN, NOISELESS, UNTRAINED, WITH_NOISE, WITHOUT_PLAN, Clients
from sfumato.embedding.experiment import EmbeddingDecision, EmbeddingExperiment
from sfumato.embedding.job import (
    AnyJob,
    CentralJob,
    DpsgdJob,
    EmbeddingJob,
    NoiselessJob,
    UntrainedJob,
    build,
    copy_weights,
)
from sfumato.embedding.local import LocalTraining
from sfumato.embedding.method import NoiselessRounds, PublicDecision, decide_central, decide_noiseless, refuse_private
from sfumato.embedding.rounds import ClippedUpdates
from sfumato.experiment import users
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import Budget, Pair
from sfumato.optim.descent import Descent
from sfumato.privacy import FixedOrder, PrivacyPlan, User
from sfumato.privacy.unit import ALL
from sfumato.randomness import RunKey, owner_key
from sfumato.runs.owner.codes import refuse_trained_on
from sfumato.training.job import PrivateJob
from sfumato.training.parts.options import RunOptions, check_kept, split
from sfumato.training.preparation.building import origins, pretraining_digests, transform_for
from sfumato.training.preparation.prepare import common_setup, key_of_weights, private_setup
from sfumato.training.preparation.prepare import prepare as prepare_classifier
from sfumato.training.preparation.start import Start
from sfumato.training.pretraining import MICRO_BATCH

BY_ROUNDS = (*WITH_NOISE, "dpsgd")
"""Methods whose rounds follow a plan, with noise in sums of updates or gradients."""


def check(options: Mapping[str, Any], method: str) -> None:
    """Refuse invalid numbers, and options that the method does not support."""
    budget, keep = options.get("budget"), options.get("keep")
    if budget is not None and method in WITHOUT_PLAN:
        raise SfumatoError(f"`budget` is {budget}, but method {method} spends nothing of it", "leave it out")
    check_kept(keep)
    if keep and method not in BY_ROUNDS:
        raise SfumatoError(
            f"keep is {keep}, but method {method} has no rounds by a plan whose weights could be kept",
            f"leave it out, or use method {' or '.join(BY_ROUNDS)}",
        )


def prepare(
    source: Source,
    decided: EmbeddingDecision | PublicDecision,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    **choices: Any,
) -> AnyJob:
    """Prepare a job up to its first round.

    Args:
        source: the source of the run.
        decided: the decided settings, with or without a plan.
        model: a module of the caller's in place of `settings.model`: images (N, C, H, W) to (N, D). It is copied.
        start, choices: as for `sfumato.training.preparation.prepare`, with the parts' options budget and keep.

    **Guarantee.** Data that are not declared public are refused if there is no plan and the method trains.

    Errors: `SfumatoError` for anything that would stop the run later, before anything is spent.
    """
    options, others = split(choices)
    start, clients, settings = Start.given(start, others), decided.clients, decided.settings
    check(vars(options), clients.method)
    if isinstance(decided, EmbeddingDecision) or clients.method == UNTRAINED:
        refuse_trained_on(source, pretraining_digests(source, settings))
    if isinstance(decided, EmbeddingDecision):
        options = options if clients.method in BY_ROUNDS else replace(options, keep=0)
        if clients.method == "dpsgd":
            return _dpsgd_job(source, decided, model, start, options)
        _refuse(source, decided.plan, clients)
    elif clients.method == UNTRAINED:
        _refuse_cache(source)
        check_scored(source)
        check_users(source, User())
    else:
        refuse_private(source, clients.method)
        if isinstance(decided, NoiselessRounds):
            _refuse_cache(source)
            check_users(source, User(clients=True, at_most=decided.per_user))
        check_scored(source)

    def built(key: RunKey) -> nn.Module:
        return build(source, settings, clients, key, model)

    if isinstance(decided, EmbeddingDecision):
        return _private(source, decided, start, built, options)
    if isinstance(decided, NoiselessRounds):
        kind, micro_batch = kinds.NOISELESS, clients.local.batch_size
    else:
        kind, micro_batch = (kinds.NOTHING, 1) if clients.method == UNTRAINED else (kinds.CENTRAL, MICRO_BATCH)
    known = common_setup(source, settings, start, built, kind=kind, steps=decided.steps, micro_batch=micro_batch)
    known |= {"origins": origins(source, settings), "clients": clients, "batch_size": decided.batch_size}
    known["initial_weights"] = copy_weights(known["module"])
    if not isinstance(decided, NoiselessRounds):
        return (UntrainedJob if clients.method == UNTRAINED else CentralJob)(**known)
    return NoiselessJob(**known, gradient=_updates(known, decided.clipping.max_norm, clients), rounds=decided)


def _private(
    source: Source,
    decided: EmbeddingDecision,
    start: Start,
    built: Callable[[RunKey], nn.Module],
    options: RunOptions,
) -> EmbeddingJob:
    """The job with a plan, of virtual clients."""
    plan, settings, clients = decided.plan, decided.settings, decided.clients
    options.check_room(source, plan, settings.seed)

    def keyed_by(weights: str) -> tuple[Any, ...]:
        return plan.fingerprint, source.fingerprint, weights, settings.to_dict(), clients.to_dict()

    size = clients.local.batch_size
    known = common_setup(
        source, settings, start, built, kind=kinds.EMBEDDING, steps=plan.steps, micro_batch=size, keyed_by=keyed_by
    )
    unused = {"examples"} if clients.method == "fedavg" else {"examples", "classes"}
    read = [fact for fact in source.facts_read if fact not in unused]
    facts = {"read": (*read, *(["groups"] if clients.grouping == "fixed" else []))}
    query = _updates(known, plan.max_norm, clients)
    known |= private_setup(known, plan, query, options, start, alone=True, **facts)  # one client after the other
    known |= {"initial_weights": copy_weights(known["module"]), "clients": clients, "input_shape": source.shape}
    return EmbeddingJob(**known)


def _updates(known: Mapping[str, Any], max_norm: float, clients: Clients) -> ClippedUpdates:
    """The clipped updates of the model."""
    return ClippedUpdates(local=LocalTraining(known["module"], clients.local), max_norm=max_norm)


def _dpsgd_job(
    source: Source, decided: EmbeddingDecision, model: nn.Module | None, start: Start, options: RunOptions
) -> DpsgdJob:
    """The job of a classifier that contains the backbone, trained with each user's mean gradient."""
    check_scored(source)
    settings, clients = decided.settings, decided.clients
    module = build(source, settings, clients, key_of_weights(start.unfinished.key, settings), model)
    own = replace(settings, model="module", pretrained=None, pretrained_weights=None)
    job = prepare_classifier(module, source, decided.plan, own, start, **vars(options))
    known: dict[str, Any] = {one.name: getattr(job, one.name) for one in fields(PrivateJob)}
    known |= {"kind": kinds.DPSGD, "settings": settings, "transform": transform_for(job.module, source, settings)}
    known["circumstances"] = replace(job.circumstances, origins=origins(source, settings))
    return DpsgdJob(**known, clients=clients, initial_weights=copy_weights(job.module))


def decide(experiment: EmbeddingExperiment, source: Source) -> EmbeddingDecision | PublicDecision:
    """The settings for this source, with the reasons for what the rules chose."""
    experiment, why = method.resolve_method(experiment, source)
    experiment.refuse_others()
    by_method = {
        "central": decide_central,
        UNTRAINED: method.decide_untrained,
        "dpsgd": _decide_dpsgd,
        **dict.fromkeys(NOISELESS, decide_noiseless),
    }
    decided = by_method.get(experiment.chosen, EmbeddingExperiment.decide)(experiment, source)
    reasons = [*why, *decided.reasons]
    return (
        decided._replace(reasons=reasons)
        if isinstance(decided, EmbeddingDecision)
        else replace(decided, reasons=reasons)
    )


def _decide_dpsgd(experiment: EmbeddingExperiment, source: Source) -> EmbeddingDecision:
    """Plan and settings that `sfumato train --unit user` would have with these options."""
    experiment.refuse_no_noise()
    if experiment.grouping is not None or experiment.clients is not None:
        raise SfumatoError("method dpsgd has no virtual clients", "leave clients and grouping out")
    if experiment.quantile is not None:
        raise SfumatoError("method dpsgd clips to a fixed norm", "leave quantile out")
    names = {one.name for kind in (Budget, Pair) for one in fields(kind)}
    names |= {*choices_of(Descent), *choices_of(Averages), "seed", "noise"}
    given = {name: getattr(experiment, name) for name in names - {"pretrained_rate"}}
    asked = Experiment(**given, unit="user", per_user=experiment.per_user, per_step=ALL, views=1, model="cnn")
    plan, settings, reasons = asked.decide(source)
    model = experiment.settings(source)
    settings = replace(
        settings,
        model=model.model,
        pretrained=model.network.pretrained,
        pretrained_weights=model.network.pretrained_weights,
    )
    clients = experiment.clients_of(count=1, method="dpsgd", local=replace(experiment.local(), head="global"))
    return EmbeddingDecision(plan, settings, clients, reasons)


def _refuse_cache(source: Source) -> None:
    """Refuse a cache of features: a backbone needs images."""
    if source.cache is not None:
        raise SfumatoError("embeddings are trained on images, but the source is a cache of features", "give the images")


def _refuse(source: Source, plan: PrivacyPlan, clients: Clients) -> None:
    """Refuse a plan or a source that does not fit the method, the users or the virtual clients."""
    if clients.method not in WITH_NOISE:
        raise SfumatoError(
            f"method {clients.method} has no rounds with noise, but a plan is given", f"give {' or '.join(WITH_NOISE)}"
        )
    _refuse_cache(source)
    unit = plan.unit
    if not (isinstance(unit, User) and unit.clients):
        raise SfumatoError(f"the plan's unit is {unit}", "give a plan whose unit is User(clients=True)")
    if source.users is None or plan.users != source.users:
        raise SfumatoError(
            f"the plan is for {plan.users} users, the source has {source.users} declared or counted",
            "calibrate the plan with the source's number of users, or declare the same number",
        )
    check_users(source, unit)
    if clients.method == "fedavg":
        users.check_classes(source)
    check_scored(source)
    if unit.grouped != (clients.grouping == "fixed"):
        raise SfumatoError(
            f"the plan's groups are {'' if unit.grouped else 'not '}fixed, but the clients' grouping is "
            f"{clients.grouping}",
            "give a plan with a grouped unit for fixed groups, and only for these",
        )
    if clients.grouping == EVEN and plan.adjacency != "zero-out":
        raise SfumatoError(
            f"grouping is {EVEN}, but under {plan.adjacency} adjacency one user more or less moves others to other "
            "clients",
            "use random grouping, or `adjacency=zero-out`",
        )
    if isinstance(plan.participation, FixedOrder) and plan.participation.assignment != "random":
        raise SfumatoError(
            f"order {plan.participation.assignment} is for records, but here users take part",
            "use a fixed order by random draws",
        )


def check_scored(source: Source) -> None:
    """Refuse a test part without two images of one class, or with a single class: recall could not be measured."""
    counts = np.bincount(source.test.labels) if len(source.test) else np.zeros(1, np.int64)
    if counts.max(initial=0) < 2 or (counts > 0).sum() < 2:
        raise SfumatoError(
            f"the test part has {len(source.test)} images of {(counts > 0).sum()} classes, but recall needs two images "
            "of one class and two classes",
            "put more people into the test part",
        )


def check_users(source: Source, unit: User) -> None:
    """Refuse records beyond the plan's cap, and a test part that shares users with the training part."""
    numbers, names = by_user(source.train)
    users.check_cap(numbers, unit)
    if shared := shared_users(replace(source, held_out=None), owner_key()):
        raise SfumatoError(
            f"{shared} of the {len(names)} training users also have records in the test part, so recall would be "
            "measured on training users",
            "split by user, or let the keyed split do it: give one part only",
        )
