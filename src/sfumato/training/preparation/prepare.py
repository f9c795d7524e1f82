"""From choices to a job: builds the model, checks the gradients, sizes micro-batches. Spends nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import joblib
import torch
from torch import nn

from sfumato import _devices, models
from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato._devices import local_world_size
from sfumato.data import Images, Source
from sfumato.experiment import users
from sfumato.experiment.drift import facts_read, second_group
from sfumato.experiment.settings import Performance, Settings
from sfumato.gradients import ClippedGradient, UserGradient
from sfumato.models.losses import answer_weights, class_weights, refuse_for_users, weighted_loss
from sfumato.observers.progress import line_if_slow
from sfumato.privacy import Circumstances, PrivacyPlan, User
from sfumato.privacy.statements.circumstances import PREPARATION
from sfumato.randomness import RunKey
from sfumato.runs import pins
from sfumato.runs.owner.store import refuse_trained_on
from sfumato.training.conclusion.releases import steps_to_keep
from sfumato.training.inputs import features_alone, head_on_features, kept_bytes
from sfumato.training.job import PUBLIC, PrivateJob, Shape, synthetic_targets
from sfumato.training.planned import RunKind
from sfumato.training.preparation.building import (
    build,
    origins,
    precision_of,
    pretraining_digests,
    transform_for,
    with_noise,
    with_precision,
)
from sfumato.training.preparation.start import Machine, RunOptions, Start, known_micro_batch, split
from sfumato.training.public_examples import PublicNormalisation
from sfumato.training.steps import PRIVATE
from sfumato.training.weights import check_choices

CPU_MEMORY = 512 << 20
CPU_COMFORT = 64 << 20
DEVICE_SHARE = 0.5
MOST_AT_ONCE = 8192
MOST_IMAGES_ON_CPU = 128
FEATURE_MEMORY = 2 << 30
SYNTHETIC_TEXTS = 6
CHECKING = "comparing the clipped gradients of this model with a slow reference"


def prepare(
    own_model: nn.Module | None,
    source: Source,
    plan: PrivacyPlan,
    settings: Settings,
    start: Start | None = None,
    **choices: Any,
) -> PrivateJob:
    """Prepares a private run up to its first step.

    Args:
        own_model: the user's own module, of which a copy is trained; None for the model that the settings name.
        source, plan, settings: the run's choices.
        start: how the run starts or resumes.
        choices: fields of `Start` and of `RunOptions`.

    Errors: `SfumatoError` for anything that would stop the run later, before anything is spent.
    """
    options, others = split(choices)
    start = Start.given(start, others)
    users.check(source, plan)
    check_shares(settings, source, plan)
    groups, public = second_group(source, plan), PublicNormalisation.read(settings, source)
    figures = options.table(source, plan, settings.seed)
    options.check_room(source, plan, settings.seed)
    refuse_trained_on(source, pretraining_digests(source, settings))
    source = source if public is None else public.exclude_records(source)

    start, notes = with_precision(start, source, settings, own_model)
    precision = precision_of(start)

    def built(key: RunKey) -> nn.Module:
        return build(own_model, source, settings, key, examples=None if public is None else public.public)

    def keyed_by(weights: str) -> tuple[Any, ...]:
        of_data = (source.fingerprint, source.features)
        return (plan.fingerprint, *of_data, weights, settings.to_dict(), precision)

    known = common_setup(source, settings, start, built, kind=PRIVATE, steps=plan.steps, keyed_by=keyed_by)
    module, device = known["module"], known["performance"].device
    trunk = _trunk(module, source, settings)
    gradient, shape = _gradient(module, trunk, source, plan, settings, start, device)
    micro_batch = _checked(gradient, shape, source, known_micro_batch(start, settings.noise), device)
    facts = {"figures": figures, **({} if public is None else public.circumstances)}
    known |= private_setup(known, plan, gradient, options, start, alone=micro_batch == 1, **facts)
    known["performance"] = replace(known["performance"], micro_batch=micro_batch, methods=gradient.methods)
    job = PrivateJob(**known, input_shape=shape, trunk=trunk, notes=notes, public_examples=public, groups=groups)
    check(job)
    return job


def common_setup(
    source: Source,
    settings: Settings,
    start: Start,
    built: Callable[[RunKey], nn.Module],
    *,
    kind: RunKind,
    steps: int,
    micro_batch: int = 1,
    keyed_by: Callable[[str], Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """The fields of `Job`, for jobs of every kind.

    Args:
        built: builds the model with its initial weights from a key.
        kind, steps, micro_batch: the job's.
        keyed_by: for private runs, a function of the digest of the initial weights that returns everything that the key
            of a seeded run depends on: plan, data and settings; None for runs without a plan.

    **Guarantee.** A run without a seed has its own random key. With a seed, runs with different plans, data or settings
    have different keys, so that training again after a record was removed does not reveal that record through the same
    noise. But a seeded run has no guarantee: code that the key does not depend on may differ too.
    """
    device, threads = configure_torch(start)
    what = PUBLIC if keyed_by is None else "initial weights"
    key = start.facts.key or first_key(settings, what)
    module = built(key_of_weights(key, settings, what))
    if keyed_by is not None and start.facts.key is None and settings.seed is not None:
        decided = keyed_by(pins.weights_digest(module.state_dict()))
        key = RunKey.from_seed(settings.seed, json.dumps(decided, sort_keys=True))
    module.to(device)
    check_choices(module, settings, steps=max(1, steps))  # an untrained model has 0 steps
    return {
        "module": module,
        "source": source,
        "settings": settings,
        "steps": steps,
        "performance": Performance(
            device=device, threads=threads, micro_batch=micro_batch, precision=precision_of(start)
        ),
        "transform": transform_for(module, source, settings),
        "key": key,
        "kind": kind,
        "request": start.facts.request,
    }


def key_of_weights(key: RunKey | None, settings: Settings, what: str = "initial weights") -> RunKey:
    """The key of the initial weights, the same again when a run is resumed: the run's key, or with a seed its own."""
    return key if key is not None and settings.seed is None else first_key(settings, what)


def first_key(settings: Settings, what: str = "initial weights") -> RunKey:
    """The key of a new run; with a seed, a key for this purpose only."""
    return RunKey.fresh() if settings.seed is None else RunKey.from_seed(settings.seed, what)


def _gradient(
    module: nn.Module,
    trunk: models.Trunk | None,
    source: Source,
    plan: PrivacyPlan,
    settings: Settings,
    start: Start,
    device: str,
) -> tuple[ClippedGradient | UserGradient, Shape]:
    """The clipped gradient over the units that the plan draws, and the shape of its inputs."""
    shape: Shape = source.shape
    of_users = plan.unit.drawn == "users"
    options: dict[str, Any] = {} if of_users else {"capture": True}  # nothing else changes the model meanwhile
    if source.tokens is not None:
        shape = source.tokens.synthetic(1)[0]
        if not of_users:
            rows = source.tokens.synthetic(SYNTHETIC_TEXTS).to(device)
            options["template"] = rows, torch.from_numpy(source.synthetic_labels(SYNTHETIC_TEXTS)).to(device)
    if trunk is not None:
        features_alone(trunk, torch.zeros(2, *source.shape, device=device))  # raises its errors before the run begins
        shape = (trunk.width,)
    recorded, objective = start.facts.recorded, settings.objective
    gradient = (UserGradient if of_users else ClippedGradient)(
        module if trunk is None else head_on_features(module, trunk.head),
        weighted_loss(objective.loss, objective.class_prevalence, source.classes, device),
        max_norm=plan.max_norm,
        views=settings.augmentation.views,
        methods=recorded.methods if recorded else None,
        **options,
    )
    return gradient, shape


def _checked(
    gradient: ClippedGradient | UserGradient, shape: Shape, source: Source, micro_batch: int | None, device: str
) -> int:
    """Checks the gradient on synthetic examples. Returns the micro-batch size."""
    targets = synthetic_targets(source, device)
    with line_if_slow(CHECKING), _devices.fork_rng(device), _devices.deterministic(device):
        torch.manual_seed(0)
        if source.tokens is not None and isinstance(gradient, ClippedGradient):
            gradient.self_check()  # on the template
        else:
            gradient.self_check(shape, targets=targets)
        return micro_batch or size_micro_batch(gradient, shape, device, targets)


def check_shares(settings: Settings, source: Source, plan: PrivacyPlan) -> None:
    """Refuse class shares that are not those of the source's classes or labels, and weights in a plan of users."""
    shares = settings.objective.class_prevalence
    if shares is None:
        return
    if source.next_words:
        source.require_classes("`class_prevalence`")
    (answer_weights if source.multilabel else class_weights)(shares, source.classes)
    if plan.users is not None:
        refuse_for_users()


def check_machine(machine: Machine) -> None:
    """Refuse devices, precisions and sizes that are invalid on this machine."""
    if machine.device is not None:
        _devices.select(machine.device)
    one_of(_devices.PRECISIONS, optional=True, precision=machine.precision)
    positive_integer(optional=True, threads=machine.threads, micro_batch=machine.micro_batch)


def check(job: PrivateJob) -> None:
    """Refuse, before there is a run, what the first step would refuse."""
    views = job.views
    job.source.images_for(views)
    if views.count > 1 and job.source.cache is None and not (views.moves or views.flip or job.gradient.uses_keys):
        raise SfumatoError(
            f"views is {views.count}, but all views of an image would be identical",
            "give shift, flip, zoom or crop_area, or one view",
        )


def check_epsilon(plan: PrivacyPlan) -> None:
    """Refuse a plan whose epsilon is infinite at its delta."""
    if not math.isfinite(plan.epsilon()):
        raise SfumatoError(
            f"the plan's epsilon is infinite at delta {plan.delta!r}, which is below the accountant's resolution",
            f"give {'a larger delta, such as 1e-8, or ' if plan.delta < 1e-8 else ''}more noise",
        )


def private_setup(
    known: Mapping[str, Any],
    plan: PrivacyPlan,
    gradient: Any,
    options: RunOptions,
    start: Start,
    *,
    alone: bool,
    **facts: Any,
) -> dict[str, Any]:
    """The additional fields of a private job: plan, gradient, budget and circumstances.

    Args:
        known: the fields of `Job` (`common_setup`).
        gradient: computes the clipped sum that noise is added to.
        alone: whether each vector of a sum is rounded to the grid separately.
        facts: further circumstances, which override those of the source.
    """
    source, settings = known["source"], known["settings"]
    shares = settings.objective.class_prevalence
    found: dict[str, Any] = {
        "read": (*(source.facts_read if isinstance(plan.unit, User) else source.read), *facts_read(source, plan)),
        "data_public": source.public,
        "test_public": source.public,
        "seeded": settings.seed is not None,
        "key_bits": known["key"].bits,
        "origins": origins(source, settings),
        "filtered": source.filtered,
        "search": start.facts.search,
        "published": source.published and source.public,
        "tokens": None if source.tokens is None else source.tokens.described,
        "kept": steps_to_keep(options.keep, plan.steps, known["module"]),
        "class_prevalence": () if shares is None else tuple(shares.items()),
    }
    if source.kind in ("arrays", "dataset") and not source.public:  # handed over by code of the owner's
        facts["own_code"] = (PREPARATION,)
    stated = with_noise(Circumstances(**found | facts), settings.noise, plan, gradient.zeros(), alone=alone)
    check_epsilon(plan)
    return {"plan": plan, "gradient": gradient, "budget": options.budget, "circumstances": stated}


def configure_torch(start: Start) -> tuple[str, int]:
    """Sets torch's threads. Returns device and threads: as requested, else as recorded, else the defaults."""
    machine, recorded = start.machine, start.facts.recorded
    check_machine(machine)
    device, threads = _devices.select(machine.device or (recorded.device if recorded else None)), machine.threads
    if threads is None:
        threads = recorded.threads if recorded else default_threads()
    _devices.require_one_each(local_world_size(), device)
    torch.set_num_threads(threads)
    return device, threads


@contextmanager
def own_threads() -> Iterator[None]:
    """Restores torch's number of threads at the end."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def default_threads() -> int:
    """The cores that this process may use, by its affinity and its container's quota, divided among the machine's
    workers."""
    cores, workers = joblib.cpu_count(), local_world_size()  # torchrun itself would give each worker a single thread
    return max(1, min(torch.get_num_threads(), cores) if workers == 1 else cores // workers)


def size_micro_batch(
    gradient: ClippedGradient | UserGradient, shape: Shape, device: str, targets: torch.Tensor | None = None
) -> int:
    """The number of examples that fit into the memory budget, measured on one synthetic example."""
    each = max(1, gradient.bytes_per_example(shape, targets=targets))
    if device != "cpu":
        most = int(DEVICE_SHARE * _devices.free_memory(device)) // each
    elif isinstance(shape, torch.Tensor):  # the number of steps through a text does not depend on the batch size
        most = CPU_MEMORY // each
    elif len(shape) == 3:  # fits the caches, but at least sixteen examples if memory allows
        most = max(CPU_COMFORT // each, min(16, CPU_MEMORY // each))
        most = min(most, max(1, MOST_IMAGES_ON_CPU // gradient.views))
    else:  # small inputs: adding a micro-batch's sum in float64 dominates
        most = CPU_MEMORY // 4 // each
    return max(1, min(most, MOST_AT_ONCE))


def _trunk(module: nn.Module, source: Source, settings: Settings) -> models.Trunk | None:
    """The model's frozen trunk, if its features of all records fit into memory and are the same in every step."""
    if settings.views.moves or not isinstance(source.form, Images):
        return None
    trunk = models.trunk_of(module, (source.channels, source.size, source.size))
    fits = trunk is not None and kept_bytes(settings.views, source.examples, trunk) <= FEATURE_MEMORY
    return trunk if fits else None
