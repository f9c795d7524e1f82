"""A private training of embeddings that is to be: everything decided and checked, nothing spent."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato.data import Source, by_user, shared_users
from sfumato.embedding.choices import WITH_NOISE, Clients
from sfumato.embedding.clients.local import LocalTraining
from sfumato.embedding.clients.query import ClippedUpdates
from sfumato.embedding.experiment import known_groups
from sfumato.embedding.head import WithHead
from sfumato.experiment import users
from sfumato.experiment.settings import Performance, Settings
from sfumato.privacy import FixedOrder, PrivacyPlan, User
from sfumato.randomness import RunKey, owner_key
from sfumato.runs import pins
from sfumato.runs.owner.public_records import refuse_trained_on
from sfumato.training.descent import check_choices
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.building import transform_for
from sfumato.training.preparation.origins import trained_on
from sfumato.training.preparation.prepare import check_epsilon, circumstances, first_key, functions_of, settled_on
from sfumato.training.preparation.start import Start

KIND = "embedding"


@dataclass(frozen=True, kw_only=True)
class OfEmbeddings:
    """What every job has of which a backbone is released.

    Args:
        clients: how the users of a round become a sum of updates; without clients, of which only the dimension, the
            method and the false accept rate count.
    """

    clients: Clients

    @property
    def further(self) -> dict[str, Any]:
        """How clients are made and train."""
        return {KIND: self.clients.to_dict()}

    @property
    def of_model(self) -> dict[str, Any]:
        """How long an embedding is. The classes are none of its business: they may be the names of people."""
        return {"embedding": self.clients.dimension, "classes": []}

    def released(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of the backbone: a head over classes is not released."""
        return inside_backbone(weights) if self.clients.head_in_model else weights


@dataclass(frozen=True, kw_only=True)
class EmbeddingJob(OfEmbeddings, PrivateJob):
    """A private training of embeddings that is to be."""

    gradient: ClippedUpdates  # type: ignore[assignment]


def prepare(
    source: Source,
    plan: PrivacyPlan,
    settings: Settings,
    clients: Clients,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    **others: Any,
) -> EmbeddingJob:
    """Everything up to the first round.

    Args:
        source, plan, settings, clients: the run's choices.
        model: a module of the caller's own in place of `settings.model`, copied: images (N, C, H, W) to (N, D).
        device, threads, recorded, key, request: as for `sfumato.training.preparation.prepare`.

    Errors: `SfumatoError` for anything that would stop the run later, before anything is spent.
    """
    _refuse(source, plan, clients)
    refuse_trained_on(source, trained_on(source, settings))
    start = Start.given(start, others)
    device, threads = settled_on(start)
    key = start.unfinished.key or first_key(settings)
    module = build(source, settings, clients, key, model)
    functions = functions_of(module, source.form.synthetic(2))
    if start.unfinished.key is None and settings.seed is not None:
        key = _seeded(module, functions, source, plan, settings, clients)
    module.to(device)
    check_choices(module, settings, steps=plan.steps)
    check_epsilon(plan)
    local = LocalTraining(module, clients.local)
    facts = circumstances(source, plan, settings, key)
    unused = {"examples"} if clients.method == "fedavg" else {"examples", "classes"}
    read = [fact for fact in facts.read if fact not in unused]
    facts = replace(facts, read=(*read, *(["groups"] if clients.grouping == "fixed" else [])))
    return EmbeddingJob(
        module=module,
        gradient=ClippedUpdates(local=local, max_norm=plan.max_norm),
        source=source,
        plan=plan,
        steps=plan.steps,
        settings=settings,
        performance=Performance(device=device, threads=threads, micro_batch=clients.local.batch_size),
        transform=transform_for(module, source, settings),
        circumstances=facts,
        key=key,
        input_shape=source.shape,
        functions=functions,
        request=start.context.request,
        clients=clients,
    )


def _refuse(source: Source, plan: PrivacyPlan, clients: Clients) -> None:
    """Refuse a plan or a source that virtual clients cannot be trained by."""
    if clients.method not in WITH_NOISE:
        raise SfumatoError(
            f"method {clients.method} has no rounds with noise, and a plan is given", f"give {' or '.join(WITH_NOISE)}"
        )
    if source.cache is not None:
        raise SfumatoError("embeddings are trained on images, and the source is a cache of features", "give the images")
    unit = plan.unit
    if not isinstance(unit, User) or unit.drawn != "clients":
        raise SfumatoError(f"the plan's unit is {unit}", 'give a plan whose unit is User(drawn="clients")')
    if source.users is None or plan.users != source.users:
        raise SfumatoError(
            f"the plan is for {plan.users} users, the source has {source.users} declared or counted",
            "calibrate the plan with the source's number of users, or declare the same number",
        )
    check_users(source, unit)
    check_scored(source)
    if unit.grouped != (clients.grouping == "fixed"):
        raise SfumatoError(
            f"the plan's groups are {'' if unit.grouped else 'not '}fixed, and the clients' grouping is "
            f"{clients.grouping}",
            "give a plan whose unit is grouped with fixed groups, and no other",
        )
    if isinstance(plan.participation, FixedOrder) and plan.participation.assignment != "random":
        raise SfumatoError(
            f"order {plan.participation.assignment} is of records, and here users take part",
            "give a fixed order by random draws",
        )


def build(
    source: Source, settings: Settings, clients: Clients, key: RunKey, model: nn.Module | None = None
) -> nn.Module:
    """The model with its initial weights, which are public: a backbone, with a head over all classes for fedavg."""
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
    backbone.train()
    if settings.descent.trainable:
        models.select(backbone, settings.descent.trainable)
    if not clients.head_in_model:
        return backbone
    head = key.generator("initial head", 0)
    return WithHead(backbone, classes=len(source.classes), width=clients.dimension, generator=head)


def inside_backbone(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a `WithHead` without its head, by their names in the backbone."""
    inside = "backbone."
    return {name.removeprefix(inside): value for name, value in weights.items() if name.startswith(inside)}


def _seeded(
    module: nn.Module,
    functions: Mapping[str, str],
    source: Source,
    plan: PrivacyPlan,
    settings: Settings,
    clients: Clients,
) -> RunKey:
    """The run key of a run with a seed: of its own wherever anything differs that sums depend on."""
    weights = pins.weights_digest(module.state_dict())
    parts = (plan.fingerprint, source.fingerprint, dict(functions), weights, settings.to_dict(), clients.to_dict())
    return RunKey.from_seed(settings.seed, json.dumps(parts, sort_keys=True))  # type: ignore[arg-type]


def check_scored(source: Source) -> None:
    """Refuse a test part in which no two images are of one class, or all are: nothing could be measured at the end."""
    counts = np.bincount(source.test.labels) if len(source.test) else np.zeros(1, np.int64)
    if counts.max(initial=0) < 2 or (counts > 0).sum() < 2:
        raise SfumatoError(
            f"the test part has {len(source.test)} images of {(counts > 0).sum()} classes, and recall needs two images "
            "of one class and two classes",
            "give more people to test on",
        )


def check_users(source: Source, unit: User) -> None:
    """Refuse records beyond the plan's cap, and a test part that shares users with the training part."""
    numbers, names = by_user(source.train)
    users.check_cap(numbers, unit)
    if shared := shared_users(replace(source, held_out=None), owner_key()):
        raise SfumatoError(
            f"{shared} of the {len(names)} users to train on have records in the test part too, so recall would be "
            "measured on those who were trained on",
            "split by user, or let the keyed split do it: give one part only",
        )


def groups_by_user(source: Source) -> np.ndarray:
    """The name of each user's own group, text (users,).

    Errors: `SfumatoError` where nobody knows, or where a user's records name two.
    """
    numbers, names = by_user(source.train)
    groups = known_groups(source)
    _, first = np.unique(numbers, return_index=True)
    own = groups[first]
    if not np.array_equal(own[numbers], groups):
        odd = names[numbers[np.flatnonzero(own[numbers] != groups)[0]]]
        raise SfumatoError("the records of one user name two groups", f"give each user one group (user {odd!r})")
    return own
