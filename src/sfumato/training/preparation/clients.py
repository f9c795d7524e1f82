"""The preparation of an embedding training up to its first step, with or without a guarantee."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato.data import Source, by_user
from sfumato.experiment import users
from sfumato.experiment.client_choices import EVEN, FEDEMB_FROM, UNTRAINED, WITH_NOISE, WITHOUT_PLAN, Clients
from sfumato.experiment.clients import EmbeddingDecision, PublicDecision, refuse_private
from sfumato.experiment.settings import Settings
from sfumato.privacy import FixedOrder, PrivacyPlan, User
from sfumato.privacy.planning import remarks
from sfumato.randomness import RunKey
from sfumato.runs.owner.store import refuse_trained_on
from sfumato.training.clients import updates_of
from sfumato.training.job import MICRO_BATCH, Embedding, PrivateJob, PublicJob
from sfumato.training.local import BackboneWithHead
from sfumato.training.preparation.building import origins, pretraining_digests, transform_for
from sfumato.training.preparation.prepare import common_setup, key_of_weights, private_setup
from sfumato.training.preparation.prepare import prepare as prepare_classifier
from sfumato.training.preparation.start import RunOptions, Start, check_kept, split
from sfumato.training.steps import PRIVATE, PUBLIC

Built = Callable[[RunKey], nn.Module]
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
) -> PrivateJob | PublicJob:
    """Prepare a job up to its first round.

    Args:
        source: the source of the run.
        decided: the decided settings, with or without a plan.
        model: a module of the caller's in place of `settings.model`: images (N, C, H, W) to (N, D). It is copied.
        start, choices: as for `prepare.prepare`; of the options of a run, budget and keep.

    **Guarantee.** Data that are not declared public are refused if there is no plan and the method trains.

    Errors: `SfumatoError` for anything that would stop the run later, before anything is spent.
    """
    options, others = split(choices)
    start, clients, settings = Start.given(start, others), decided.clients, decided.settings
    check(vars(options), clients.method)
    _check_source(source, decided)

    def built(key: RunKey) -> nn.Module:
        return build(source, settings, clients, key, model)

    if isinstance(decided, PublicDecision):
        return _public(source, decided, start, built)
    if clients.method == "dpsgd":
        return _of_gradients(source, decided, start, built, options)
    check_plan(source, decided.plan, clients)
    return _private(source, decided, start, built, options)


def _check_source(source: Source, decided: EmbeddingDecision | PublicDecision) -> None:
    """Refuse data that the method must not or cannot be trained on."""
    method = decided.clients.method
    if isinstance(decided, PublicDecision) and method != UNTRAINED:
        refuse_private(source, method)
    else:
        refuse_trained_on(source, pretraining_digests(source, decided.settings))
    if source.cache is not None:
        raise SfumatoError("embeddings are trained on images, but the source is a cache of features", "give the images")
    if method != "central":
        users.refuse_shared(source)
    if isinstance(decided, PublicDecision) and decided.rounds is not None:
        users.check_cap(by_user(source.train)[0], User(clients=True, at_most=decided.rounds.per_user))
    check_scored(source)


def check_scored(source: Source) -> None:
    """Refuse a test part without two images of one class, or with a single class: recall could not be measured."""
    counts = np.bincount(source.test.labels) if len(source.test) else np.zeros(1, np.int64)
    if counts.max(initial=0) < 2 or (counts > 0).sum() < 2:
        raise SfumatoError(
            f"the test part has {len(source.test)} images of {(counts > 0).sum()} classes, but recall needs two images "
            "of one class and two classes",
            "put more people into the test part",
        )


def check_plan(source: Source, plan: PrivacyPlan, clients: Clients) -> None:
    """Refuse a plan that does not fit the method, the users or the virtual clients."""
    unit, rule, fixed = plan.unit, plan.participation, clients.grouping == "fixed"
    if not (isinstance(unit, User) and unit.clients):
        raise SfumatoError(f"the plan's unit is {unit}", "give a plan whose unit is User(clients=True)")
    by_position = isinstance(rule, FixedOrder) and rule.assignment != "random"
    for wrong, problem, remedy in (
        (
            clients.method not in WITH_NOISE,
            f"method {clients.method} has no rounds with noise, but a plan is given",
            f"give {' or '.join(WITH_NOISE)}",
        ),
        (
            source.users is None or plan.users != source.users,
            f"the plan is for {plan.users} users, the source has {source.users} declared or counted",
            "calibrate the plan with the source's number of users, or declare the same number",
        ),
        (
            unit.grouped != fixed,
            f"the plan's groups are {'not ' * fixed}fixed, but the clients' grouping is {clients.grouping}",
            "give a plan with a grouped unit for fixed groups, and only for these",
        ),
        (
            clients.grouping == EVEN and plan.adjacency != "zero-out",
            f"grouping is {EVEN}, but under {plan.adjacency} adjacency one user more or less moves others to other "
            "clients",
            "use random grouping, or `adjacency=zero-out`",
        ),
        (by_position, "an order by position is for records, but here users take part", "use random draws"),
    ):
        if wrong:
            raise SfumatoError(problem, remedy)
    users.check_cap(by_user(source.train)[0], unit)
    if clients.method == "fedavg":
        users.check_classes(source)


def _private(source: Source, decided: EmbeddingDecision, start: Start, built: Built, options: RunOptions) -> PrivateJob:
    """The job of rounds by a plan, whose sums of clipped updates get noise."""
    plan, settings, clients = decided.plan, decided.settings, decided.clients
    options.check_room(source, plan, settings.seed)

    def keyed_by(weights: str) -> tuple[Any, ...]:
        return plan.fingerprint, source.fingerprint, weights, settings.to_dict(), clients.to_dict()

    known = common_setup(
        source,
        settings,
        start,
        built,
        kind=PRIVATE,
        steps=plan.steps,
        micro_batch=clients.local.batch_size,
        keyed_by=keyed_by,
    )
    unused = {"examples"} if clients.method == "fedavg" else {"examples", "classes"}
    read = (*(fact for fact in source.facts_read if fact not in unused), *["groups"] * (clients.grouping == "fixed"))
    query = updates_of(known["module"], clients, plan.max_norm)
    known |= private_setup(known, plan, query, options, start, alone=True, read=read)  # one client after the other
    return PrivateJob(**known, input_shape=source.shape, embedding=Embedding.at_start(clients, known["module"]))


def _of_gradients(
    source: Source, decided: EmbeddingDecision, start: Start, built: Built, options: RunOptions
) -> PrivateJob:
    """The job of a classifier that contains the backbone, trained with each user's mean gradient (DP-SGD)."""
    settings = decided.settings
    module = built(key_of_weights(start.facts.key, settings))
    of_module = replace(settings, model="module", pretrained=None, pretrained_weights=None)
    job = prepare_classifier(module, source, decided.plan, of_module, start, **vars(options))
    return replace(
        job,
        settings=settings,
        transform=transform_for(job.module, source, settings),
        circumstances=replace(job.circumstances, origins=origins(source, settings)),
        embedding=Embedding.at_start(decided.clients, job.module),
    )


def _public(source: Source, decided: PublicDecision, start: Start, built: Built) -> PublicJob:
    """The job of a training without a plan, or of an untrained embedding."""
    settings, clients, rounds = decided.settings, decided.clients, decided.rounds
    size = clients.local.batch_size if rounds else 1 if clients.method == UNTRAINED else MICRO_BATCH
    known = common_setup(source, settings, start, built, kind=PUBLIC, steps=decided.steps, micro_batch=size)
    if rounds is not None:
        updates_of(known["module"], clients, rounds.max_norm)  # refuses models that clients cannot train
    return PublicJob(
        **known,
        batch_size=decided.batch_size,
        origins=origins(source, settings),
        embedding=Embedding.at_start(clients, known["module"], rounds),
    )


def build(
    source: Source, settings: Settings, clients: Clients, key: RunKey, model: nn.Module | None = None
) -> nn.Module:
    """The model with its initial weights, which are public: a backbone, with a head over all classes for fedavg. For
    untrained: fixed features and their projection."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.seed("initial weights", 0))
        backbone = (
            models.create_embedding(
                settings.model,
                channels=source.channels,
                size=source.size,
                dimension=clients.dimension,
                pretrained=settings.network.initial_weights,
                head=settings.network.head,
            )
            if model is None
            else copy.deepcopy(model).cpu()
        )
    if clients.method == UNTRAINED:
        shape = (source.channels, source.size, source.size)
        return models.embedding_of_features(backbone, shape=shape, dimension=clients.dimension)
    backbone.train()
    if settings.descent.trainable:
        models.select_trainable(backbone, settings.descent.trainable)
    if not clients.head_in_model:
        return backbone
    head = key.generator("initial head", 0)
    return BackboneWithHead(backbone, classes=len(source.classes), width=clients.dimension, generator=head)


def notes_of(job: PrivateJob | PublicJob) -> list[str]:
    """Notes about the plan for these users and this model; none without a plan."""
    if isinstance(job, PublicJob):
        return []
    plan, notes = job.plan, []
    counted = len(by_user(job.source.train)[1])
    if users.is_far(plan.users or 0, counted):
        notes.append(
            f"note: {plan.users} users are declared, but the data hold {counted}; the guarantee holds as stated, but "
            "rounds have fewer or more users than planned, while sums are divided by the planned number"
        )
    vectors = job.client_count or plan.expected_batch_size
    parameters = sum(value.numel() for value in job.module.parameters() if value.requires_grad)
    if (weak := remarks.drowned_updates_note(plan, clients=vectors, parameters=parameters)) is not None:
        notes.append(f"note: {weak}")
        notes.append(
            f"note: a network is worth its budget from {FEDEMB_FROM:,} people on, which decides the method where no "
            "option for model, rounds or clients is given"
        )
    return notes
