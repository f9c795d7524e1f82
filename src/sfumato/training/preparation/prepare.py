"""From choices to a job: build the model, check the engine on made-up inputs, size micro-batches. Spends nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import joblib
import torch
from torch import nn

from sfumato import models
from sfumato._checks import SfumatoError, positive_integer
from sfumato.averaging import kept_steps, number_by_rule
from sfumato.data import Clock, Images, Source
from sfumato.evaluation.temperature import public_calibration
from sfumato.experiment import users
from sfumato.experiment.drift import facts_read, second_group
from sfumato.experiment.settings import Performance, Settings
from sfumato.experiment.times import steps_by_time
from sfumato.gradients import ClippedGradient, UserGradient
from sfumato.models.class_weights import refuse_of_users, weights_of
from sfumato.models.losses import LOSSES
from sfumato.privacy import Circumstances, PrivacyPlan, Search, User
from sfumato.randomness import RunKey
from sfumato.runs import pins
from sfumato.runs.owner.public_records import refuse_trained_on
from sfumato.training.descent import check_choices, trained_bytes
from sfumato.training.inputs import OnFeatures, features_alone, kept_bytes
from sfumato.training.job import PrivateJob, Shape, synthetic_targets
from sfumato.training.parts.public_examples import PublicExamples, public_examples
from sfumato.training.parts.published import planned
from sfumato.training.preparation.building import build, transform_for
from sfumato.training.preparation.origins import origins, trained_on

CPU_MEMORY = 512 << 20
CPU_COMFORT = 64 << 20
CUDA_SHARE = 0.5
MOST_AT_ONCE = 8192
MOST_IMAGES_ON_CPU = 128
FEATURE_MEMORY = 2 << 30
SYNTHETIC_TEXTS = 6
KEEP = "give a number of weights such as 20, or 0 for none"


def prepare(
    model: nn.Module | None,
    source: Source,
    plan: PrivacyPlan,
    settings: Settings,
    *,
    device: str | None = None,
    threads: int | None = None,
    micro_batch: int | None = None,
    recorded: Performance | None = None,
    key: RunKey | None = None,
    request: Mapping[str, Any] | None = None,
    search: Search | None = None,
    candidate: int | None = None,
    behind: Collection[str] = (),
    clock: Clock | None = None,
    keep: int | None = None,
    report_epsilon: float | None = None,
    calibrate_on: str | Source | None = None,
) -> PrivateJob:
    """Everything up to the first step.

    Args:
        model: an object of the caller's own, copied; None builds `settings.model`.
        source, plan, settings: the run's choices.
        device, threads, micro_batch: None takes the recorded one, else a rule's.
        recorded: what an unfinished run has pinned.
        key: the run key of an unfinished run; None draws one, or derives it from the seed and all that the run is.
        request: what the user asked for, for the record.
        search: the search that the run is part of, where no promise covers it.
        candidate: the run's number among the candidates of a private selection; None for all other runs.
        behind: what stands behind the initial weights of any candidate: the choice among them depends on all.
        clock: which step each record's own time stamp belongs to, where the plan goes by time.
        keep: how many weights are kept beside the model; None for a rule's number, and a candidate keeps none.
        report_epsilon: what figures that may be published cost each record of the test part; None for no such figures.
        calibrate_on: public records that the model's temperature is fitted on; None for none.

    Errors: `SfumatoError` for anything that would stop the run later, before anything is spent.
    """
    users.check(source, plan)
    refuse_printed(settings.norms.normalisation)
    if settings.objective.class_prevalence is not None:
        source.require_classes("`class_prevalence`")
        weights_of(settings.objective.class_prevalence, source.classes)
        if plan.unit.drawn == "users":
            refuse_of_users()
    times, groups = steps_by_time(source, plan, clock), second_group(source, plan)
    refuse_trained_on(source, trained_on(source, settings))
    device, threads = settled_on(device, threads, recorded)
    if micro_batch is not None:
        positive_integer("micro_batch", micro_batch)
    seeded = key is None and settings.seed is not None
    if key is None:
        key = RunKey.fresh() if settings.seed is None else RunKey.from_seed(settings.seed, "initial weights")
    beside = public_examples(settings, source)
    source, left_out = (source, None) if beside is None else beside.kept_from(source)
    module = build(model, source, settings, key, examples=beside)
    functions = functions_of(module, source.form.synthetic(2))
    if seeded:
        key = _seeded(module, functions, source, plan, settings, candidate, clock)
    module.to(device)
    shape: Shape = source.shape
    texts: dict[str, Any] = {}
    if source.tokens is not None:
        shape = source.tokens.synthetic(1)[0]
        if plan.unit.drawn != "users":
            rows = source.tokens.synthetic(SYNTHETIC_TEXTS).to(device)
            texts = {"template": (rows, torch.arange(SYNTHETIC_TEXTS, device=device) % len(source.classes))}
    trunk = _trunk(module, source, settings)
    if trunk is not None:
        features_alone(
            trunk, torch.zeros(2, *source.shape, device=device)
        )  # refuses what would be refused after the beginning
        shape = (trunk.width,)
    trained = module if trunk is None else OnFeatures(module, trunk.head)
    targets = synthetic_targets(source, device)
    clipped = UserGradient if plan.unit.drawn == "users" else ClippedGradient
    gradient = clipped(
        trained,
        LOSSES[settings.objective.loss],
        max_norm=plan.max_norm,
        views=settings.augmentation.views,
        ways=recorded.ways if recorded else None,
        **texts,
    )
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(0)
        if texts and isinstance(gradient, ClippedGradient):
            gradient.self_check()  # on the template
        else:
            gradient.self_check(shape, targets=targets)
        if micro_batch is None:
            micro_batch = recorded.micro_batch if recorded else size_micro_batch(gradient, shape, device, targets)
    transform = transform_for(module, source, settings)
    calibration = public_calibration(calibrate_on, source, transform)
    figures = planned(report_epsilon, source, plan, candidate=candidate is not None, calibrated=calibration is not None)
    job = PrivateJob(
        module=module,
        gradient=gradient,
        source=source,
        plan=plan,
        steps=plan.steps,
        settings=settings,
        performance=Performance(device=device, threads=threads, micro_batch=micro_batch, ways=gradient.ways),
        transform=transform,
        calibration=calibration,
        circumstances=replace(
            circumstances(source, plan, settings, key, search=search, behind=behind, beside=beside),
            kept=kept_steps(plan.steps, _kept(keep, module) if candidate is None else 0),
            figures=figures,
            calibrated_on_public=calibration is not None,
        ),
        key=key,
        input_shape=shape,
        trunk=trunk,
        functions=functions,
        request=request or {},
        candidate=candidate is not None,
        clock=clock,
        times=times,
        groups=groups,
        beside=beside,
        left_out=left_out,
    )
    check(job)
    return job


def refuse_printed(normalisation: str | None) -> None:
    """Refuse an algorithm whose claim does not hold, where something is to be promised."""
    if normalisation == models.PRINTED:
        raise SfumatoError(
            f"normalisation {models.PRINTED} promises nothing, and this training is to promise something",
            "give public-batch; or reproduce it by one run of `sfumato train` on public data, with one epsilon",
        )


def check_performance(
    *, device: str | None = None, threads: int | None = None, micro_batch: int | None = None, keep: int | None = None
) -> None:
    """Refuse what no run on this machine could have of these; None is for what follows a rule."""
    if device is not None:
        choose_device(device)
    for name, value in (("threads", threads), ("micro_batch", micro_batch)):
        if value is not None:
            positive_integer(name, value)
    if keep:
        positive_integer("keep", keep, remedy=KEEP)


def _kept(asked: int | None, module: nn.Module) -> int:
    """How many weights are kept: as asked for, else by rule, from the size of what is trained."""
    if asked is not None:
        return asked and positive_integer("keep", asked, remedy=KEEP)
    return number_by_rule(trained_bytes(module))


def check(job: PrivateJob) -> None:
    """Refuse here what the first step would refuse, before there is a run."""
    views = job.views
    job.source.images_for(views)
    if views.count > 1 and job.source.cache is None and not (views.moves or views.flip or job.gradient.draws):
        raise SfumatoError(
            f"views is {views.count}, but all views of an image would be alike",
            "give shift, flip, zoom or crop_area, or one view",
        )
    check_choices(job.module, job.settings, steps=job.plan.steps)
    check_epsilon(job.plan)


def check_epsilon(plan: PrivacyPlan) -> None:
    """Refuse a plan that promises nothing at its own delta."""
    if not math.isfinite(plan.epsilon()):
        raise SfumatoError(
            f"the plan's epsilon is infinite at delta {plan.delta!r}, below what the accountant resolves",
            "give a larger delta, such as 1e-8, or more noise",
        )


def _seeded(
    module: nn.Module,
    functions: Mapping[str, str],
    source: Source,
    plan: PrivacyPlan,
    settings: Settings,
    candidate: int | None,
    clock: Clock | None,
) -> RunKey:
    """The run key of a run with a seed.

    **Guarantee.** Runs that differ in anything that their sums depend on have keys of their own, under one seed too:
    noise that two releases share is gone from their difference, and their epsilons would not add up. What the model
    computes is known by trying it, in evaluation and in training.
    """
    weights = pins.weights_digest(module.state_dict())
    parts = (
        *(plan.fingerprint, source.fingerprint, source.features, functions["function"], weights),
        *(settings.to_dict(), candidate, functions["in training"]),
        *([] if clock is None else [clock.to_dict()]),
    )
    return RunKey.from_seed(settings.seed, json.dumps(parts, sort_keys=True))  # type: ignore[arg-type]


def circumstances(
    source: Source,
    plan: PrivacyPlan,
    settings: Settings,
    key: RunKey,
    *,
    search: Search | None,
    behind: Collection[str],
    beside: PublicExamples | None = None,
) -> Circumstances:
    """What the statement of such a run must say; see `prepare`."""
    return Circumstances(
        read=(source.read_by_user if isinstance(plan.unit, User) else source.read) + facts_read(source, plan),
        data_public=source.public,
        test_public=source.public,
        seeded=settings.seed is not None,
        key_bits=key.bits,
        origins=tuple(sorted({*origins(source, settings), *behind})),
        public_examples=0 if beside is None else len(beside.images),
        public_filtered=beside is not None and beside.filtered,
        filtered=source.filtered,
        search=search,
        published=source.published and source.public,
        tokens=None if source.tokens is None else source.tokens.described,
        class_prevalence=tuple((settings.objective.class_prevalence or {}).items()),
    )


def functions_of(module: nn.Module, synthetic: torch.Tensor) -> dict[str, str]:
    """Digests of what a module computes, in evaluation and in training: a run's sums depend on the second."""
    return {
        "function": pins.model_digest(module, synthetic),
        "in training": pins.model_digest(module, synthetic, training=True),
    }


def settled_on(device: str | None, threads: int | None, recorded: Performance | None) -> tuple[str, int]:
    """The device and torch's threads, which are set: as asked for, else as recorded, else by rule."""
    device = choose_device(device or (recorded.device if recorded else None))
    if threads is None:
        threads = recorded.threads if recorded else default_threads()
    torch.set_num_threads(positive_integer("threads", threads))
    return device, threads


def choose_device(name: str | None) -> str:
    """The device asked for, or CUDA where there is one, else the CPU."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()) or (kind == "cpu" and number):
        raise SfumatoError(f"device must be cpu, cuda or cuda:N, got {name!r}", "give one of these")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise SfumatoError(
            f"device {name} is not there: torch sees {torch.cuda.device_count()} CUDA devices", "give `device=cpu`"
        )
    return name


@contextmanager
def own_threads() -> Iterator[None]:
    """Around a call that sets torch's threads: afterwards they are as many as they were."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def default_threads() -> int:
    """As many as this process may use: of the machine, by its affinity and by the quota of its container."""
    return max(1, min(torch.get_num_threads(), joblib.cpu_count()))


def size_micro_batch(
    gradient: ClippedGradient | UserGradient, shape: Shape, device: str, targets: torch.Tensor | None = None
) -> int:
    """How many examples fit into the memory budget at once, by a measurement on one synthetic example."""
    each = max(1, gradient.bytes_per_example(shape, targets=targets))
    if device.startswith("cuda"):
        most = int(CUDA_SHARE * torch.cuda.mem_get_info(device)[0]) // each
    elif isinstance(shape, torch.Tensor):  # steps through a text are as many however few texts are at it
        most = CPU_MEMORY // each
    elif len(shape) == 3:  # pieces that stay near the caches, but sixteen examples at once where memory allows
        most = max(CPU_COMFORT // each, min(16, CPU_MEMORY // each))
        most = min(most, max(1, MOST_IMAGES_ON_CPU // gradient.views))
    else:  # features are little beside the sum of a piece's gradients, which is added up in float64 each time
        most = CPU_MEMORY // 4 // each
    return max(1, min(most, MOST_AT_ONCE))


def _trunk(module: nn.Module, source: Source, settings: Settings) -> models.Trunk | None:
    """The model's fixed beginning, where its features of all records fit into memory and every step sees the same."""
    if settings.views.moves or not isinstance(source.form, Images):
        return None
    trunk = models.trunk_of(module, (source.channels, source.size, source.size))
    fits = trunk is not None and kept_bytes(settings.views, source.examples, trunk) <= FEATURE_MEMORY
    return trunk if fits else None
