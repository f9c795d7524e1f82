"""Building blocks of a run from its settings: model, initial weights and their origins, transform, noise, precision."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _devices, models
from sfumato._checks import SfumatoError
from sfumato.data import Contents, FeatureTransform, NextWords, Preparation, Source, Tokens, Transform
from sfumato.experiment.defaults import fixed_features
from sfumato.experiment.settings import SECURE, Settings
from sfumato.gradients.checks.external_models import storable, unwrap
from sfumato.models.losses import MULTILABEL, NEXT_WORD
from sfumato.models.registry import is_custom, parse
from sfumato.privacy import Circumstances, PrivacyPlan
from sfumato.privacy.clipping import refuse_without_grid
from sfumato.randomness import Noise, RunKey
from sfumato.runs import checkpoint
from sfumato.runs.checkpoint import stored_materials
from sfumato.training.preparation.start import Start
from sfumato.training.public_examples import PublicExamples


def noise_named(noise: str, plan: PrivacyPlan, key: RunKey, *, max_norm: float | None = None) -> Noise:
    """The noise of the plan's mechanism.

    Args:
        noise: the noise setting.
        max_norm: replaces the plan's clipping norm, for sums in other units.
    """
    how: dict[str, Any] = {"max_norm": plan.max_norm if max_norm is None else max_norm, "key": key}
    if noise != SECURE:
        return Noise(plan.mechanism, **how)
    from sfumato.randomness.noise.secure import SecureNoise

    refuse_without_grid(plan.mechanism, plan.clipping)
    return SecureNoise(plan.mechanism, **how)


def with_noise(
    facts: Circumstances, noise: str, plan: PrivacyPlan, zeros: Mapping[str, Tensor], *, alone: bool
) -> Circumstances:
    """Adds the facts about secure noise to the circumstances.

    Args:
        noise: the noise setting.
        zeros: the sum over no units.
        alone: whether each vector of a sum is rounded to the grid separately (`NoiseGrid`).
    """
    if noise != SECURE:
        return facts
    from sfumato.randomness.noise.secure import grid_of

    refuse_without_grid(plan.mechanism, plan.clipping)
    elements = sum(value.numel() for value in zeros.values())
    grid = grid_of(plan.noise_multiplier, elements, alone=alone)
    return replace(facts, noise_sampler=grid.description, noise_grid=grid)


LIBRARIES = ("timm", "torchvision")


def origins(source: Source, settings: Settings) -> tuple[str, ...]:
    """The origins of the initial weights, and of the features if the source is a cache, for the statement."""
    model = settings.network.model
    own = model == "module" or models.is_custom(model)
    features = () if source.cache is None else source.cache.contents.origins
    weights = origins_of(settings.network.initial_weights)
    named = [*(["own model"] if own else []), *(["synthetic images"] if models.is_prior(model) else [])]
    return tuple(sorted({*features, *weights, *named}))


def origins_of(weights: str | None) -> tuple[str, ...]:
    """All origins, direct and indirect, of weights given as None, a library or a path."""
    if weights is None:
        return ()
    return (weights,) if weights == "timm" else _origins_of_file(weights)


def origins_of_backbone(name: str, weights: str | None) -> tuple[str, ...]:
    """The origins of a backbone's weights: from a file, its library or a run."""
    library, colon, _ = name.partition(":")
    if weights is None and colon and library in LIBRARIES:
        return (library,)
    return _origins_of_file(weights or name)


def pretraining_digests(source: Source, settings: Settings) -> tuple[str, ...]:
    """`Source.stored_digest` of the data that the initial weights or the backbone were trained on without privacy."""
    return (
        stored_materials(settings.network.initial_weights)
        if source.cache is None
        else tuple(source.cache.contents.trained_on)
    )


def _origins_of_file(weights: str) -> tuple[str, ...]:
    path = models.resolve_weights(weights)
    statement = checkpoint.stored_statement(path)
    if statement is None:
        return ("file",)
    facts = statement.get("circumstances", statement)
    run = "public run" if "plan" not in statement else "private run" if statement["promises"] else "seeded run"
    return tuple(sorted({run, *facts["origins"], *(["filtered data"] if facts["filtered"] else [])}))


def transform_for(module: nn.Module, source: Source, settings: Settings) -> Preparation:
    """The transform from stored images to inputs: normalised as pre-trained weights expect, else to [-1, 1].

    Features need no transform; texts keep the source's tokens.
    """
    if source.tokens is not None:
        return source.tokens
    if source.cache is not None:
        return FeatureTransform(width=source.cache.contents.width)
    constants = None
    weights = settings.network.initial_weights
    if weights not in (None, "timm"):
        constants = checkpoint.stored_constants(models.resolve_weights(weights))
    if weights is not None and constants is None:
        constants = models.public_constants(module, channels=source.channels)
    mean, std = constants or ((0.5,), (0.5,))
    return Transform(
        size=source.size, channels=source.channels, mean=mean, std=std, bit_depth=source.bit_depth, window=source.window
    )


def build(
    model: nn.Module | None, source: Source, settings: Settings, key: RunKey, *, examples: PublicExamples | None = None
) -> nn.Module:
    """The model with its initial weights, which are public: drawn from a generator separate from the run's.

    Args:
        examples: public examples for its normalisation, if the settings use some.
    """
    if model is not None and settings.network.pretrained is not None:
        raise SfumatoError(
            f"pretrained {settings.network.pretrained} is given with a module, which already has weights",
            "load them into the module, and leave it out",
        )
    special = MULTILABEL if source.multilabel else NEXT_WORD if source.next_words else None
    loss = settings.objective.loss
    if loss != special if special else loss in (MULTILABEL, NEXT_WORD):
        has = {None: "one label", MULTILABEL: "several labels", NEXT_WORD: "words to predict"}[special]
        right = special or "softmax"
        raise SfumatoError(
            f"loss is {loss}, but each record of the source has {has}", f"give loss {right}, or leave it out"
        )
    if source.tokens is not None:
        settings.views.refuse_for_texts()
        if settings.norms.normalisation is not None:
            source.require_images(f"normalisation {settings.norms.normalisation}")
    if model is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key.seed("initial weights", 0))
            module = _created(settings, source)
    else:
        module = copy.deepcopy(storable(unwrap(model))).cpu()
        shape = source.shape if source.tokens is None else source.tokens.synthetic(1)
        facts: dict[str, Any] = {"classes": len(source.classes), "each_word": source.next_words}
        module = models.check_shapes("module", module, shape=shape, **facts)
    if source.cache is not None:
        _check_cache(source.cache.contents, settings)
        if source.cache.contents.backbone is not None:
            checkpoint.backbone_of(source.cache)
    if settings.norms.normalisation is not None:
        inputs = None if examples is None else examples.inputs(transform_for(module, source, settings))
        models.replace_norms(module, settings.norms.normalisation, inputs)
    if settings.network.head_deviation is not None or settings.network.head_bias is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key.seed("initial head", 0))
            models.begin_classifier(module, deviation=settings.network.head_deviation, bias=settings.network.head_bias)
    module.train()
    if settings.descent.trainable:
        models.select_trainable(module, settings.descent.trainable)
    if settings.network.pretrained and settings.network.head == "new" and not _trains_classifier(module):
        raise SfumatoError(
            f"trainable {', '.join(settings.descent.trainable)} leaves out the classifier, whose weights start at zero",
            "add classifier to it, or give head pretrained",
        )
    return module


def _check_cache(contents: Contents, settings: Settings) -> None:
    """Refuse choices that were fixed when the features were computed."""
    given = settings.flat()
    odd = [name for name in ("pretrained", "shift", "flip") if given[name]]
    odd += [name for name in ("zoom", "crop_area") if given[name] != 1]
    if odd:
        raise SfumatoError(
            f"{', '.join(odd)} cannot be chosen for features, which are already computed", "leave them out"
        )
    if settings.augmentation.views != contents.views:
        raise SfumatoError(
            f"views must be {contents.views}, the number of views of each example in the cache, got "
            f"{settings.augmentation.views}",
            "give that number, or compute the features again with other `views`",
        )


def _created(settings: Settings, source: Source) -> nn.Module:
    """The named model. If pre-trained weights of a run don't fit, the error names their model."""
    if source.tokens is not None:
        return _created_for_texts(settings, len(source.classes), source.tokens)
    if source.cache is not None:
        return models.create_head(settings.model, classes=len(source.classes), width=source.cache.contents.width)
    try:
        return models.create(
            settings.model,
            classes=len(source.classes),
            channels=source.channels,
            size=source.size,
            pretrained=settings.network.initial_weights,
            head=settings.network.head,
        )
    except SfumatoError as error:
        weights = settings.network.initial_weights
        known = weights is not None and weights != "timm" and "does not fit" in error.problem
        about = models.read_description(models.resolve_weights(weights)) if known else None  # type: ignore[arg-type]
        if about is None:
            raise
        what = f"{about['model']} for images of {about['channels']} x {about['size']} x {about['size']}"
        raise SfumatoError(error.problem, f"{weights} holds a {what}: give model {about['model']}") from None


def _created_for_texts(settings: Settings, classes: int, tokens: Tokens) -> nn.Module:
    """The named model. Refuses pre-trained weights of a run with other tokens."""
    weights = settings.network.initial_weights
    about = None if weights in (None, "timm") else models.read_description(models.resolve_weights(weights))
    if about is not None and about["transform"] != tokens.to_dict():
        raise SfumatoError(
            f"{weights} was trained on texts with other tokens, or on images",
            "declare the same `length`, and the same `vocabulary` or `words`",
        )
    return models.create_for_texts(
        settings.model,
        classes=classes,
        vocabulary=tokens.vocabulary,
        length=tokens.length,
        next_words=isinstance(tokens, NextWords),
        pretrained=weights,
        head=settings.network.head,
    )


def _trains_classifier(module: nn.Module) -> bool:
    below = tuple(f"{name}." for name in models.classifier_names(module))
    named = [value.requires_grad for name, value in module.named_parameters() if below and name.startswith(below)]
    return not below or any(named)


FLOAT32, BFLOAT16 = _devices.PRECISIONS
_ONE_LAYER = "linear"


def precision_of(start: Start) -> str:
    """The precision: as requested, else as recorded, else float32."""
    recorded = start.facts.recorded
    return start.machine.precision or (recorded.precision if recorded else FLOAT32)


def with_precision(
    start: Start, source: Source, settings: Settings, own_model: nn.Module | None
) -> tuple[Start, tuple[str, ...]]:
    """Sets the default precision if none was requested. Returns the start and messages for the owner.

    The default is bfloat16 if the device supports it in hardware and a whole network is trained, which costs no
    accuracy (`benchmarks/accuracy/bfloat16.py`); else float32. A resumed run keeps its precision on any device.
    """
    if start.machine.precision is not None or start.facts.recorded is not None:
        return start, ()
    device = _devices.select(start.machine.device)
    if not (_devices.has_bfloat16(device) and trains_whole_network(source, settings, own_model)):
        return start, ()
    how = f'in hardware on {device}; for float32 give --precision float32, or precision="float32" in Python'
    return replace(start, machine=replace(start.machine, precision=BFLOAT16)), (f"precision is bfloat16 ({how})",)


def trains_whole_network(source: Source, settings: Settings, own_model: nn.Module | None) -> bool:
    """Whether a whole image network is trained, with a named model and a named normalisation.

    The accuracy of the user's own models in bfloat16 is unknown.
    """
    name, _ = parse(settings.network.model)
    return (
        own_model is None
        and source.cache is None
        and source.tokens is None
        and settings.norms.normalisation is None
        and (not settings.descent.trainable or "all" in settings.descent.trainable)
        and fixed_features(name, source.channels) is None
        and name != _ONE_LAYER
        and not is_custom(name)
    )
