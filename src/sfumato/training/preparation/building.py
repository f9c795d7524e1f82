"""The model with its initial weights, and how images become its inputs."""

from __future__ import annotations

import copy

import torch
from torch import nn

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato.data import AsStored, Contents, Preparation, Source, Tokens, Transform
from sfumato.experiment.settings import Settings
from sfumato.gradients.checks.wrapped import unwrapped
from sfumato.models.losses import MULTILABEL, exclusive
from sfumato.randomness import RunKey
from sfumato.runs import checkpoint
from sfumato.training.parts.public_examples import PublicExamples


def transform_for(module: nn.Module, source: Source, settings: Settings) -> Preparation:
    """From stored images to the model's inputs: by the constants that pre-trained weights expect, else to [-1, 1].

    Features are inputs already; texts are read as the source was.
    """
    if source.tokens is not None:
        return source.tokens
    if source.cache is not None:
        return AsStored(width=source.cache.contents.width)
    constants = None
    weights = settings.network.initial_weights
    if weights not in (None, "timm"):
        constants = checkpoint.stored_constants(models.file_of(weights))
    if weights is not None and constants is None:
        constants = models.public_constants(module, channels=source.channels)
    mean, std = constants or ((0.5,), (0.5,))
    return Transform(
        size=source.size,
        channels=source.channels,
        mean=mean,
        std=std,
        bit_depth=source.bit_depth,
        window=source.window,
    )


def build(
    model: nn.Module | None,
    source: Source,
    settings: Settings,
    key: RunKey,
    *,
    examples: PublicExamples | None = None,
) -> nn.Module:
    """The model with its initial weights, which are public: drawn from a generator apart from the run's.

    Args:
        examples: what it normalises by, where the settings ask for some.
    """
    if model is not None and settings.network.pretrained is not None:
        raise SfumatoError(
            f"pretrained {settings.network.pretrained} is given beside a module, which has its weights already",
            "load them into the module, and leave it out",
        )
    if source.multilabel == exclusive(settings.objective.loss):
        has, right = ("several labels", MULTILABEL) if source.multilabel else ("one label", "softmax")
        raise SfumatoError(
            f"loss is {settings.objective.loss}, and each record of the source has {has}",
            f"give loss {right}, or leave it out",
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
        module = copy.deepcopy(unwrapped(model)).cpu()
        shape = source.shape if source.tokens is None else source.tokens.synthetic(1)
        module = models.check_shapes("module", module, classes=len(source.classes), shape=shape)
    if source.cache is not None:
        _check_cache(source.cache.contents, settings)
        if source.cache.contents.backbone is not None:
            checkpoint.backbone_of(source.cache)
    if settings.norms.normalisation is not None:
        _normalise(module, source, settings, key, examples)
    if settings.network.head_deviation is not None or settings.network.head_bias is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key.seed("initial head", 0))
            models.begin_classifier(module, deviation=settings.network.head_deviation, bias=settings.network.head_bias)
    module.train()
    if settings.descent.trainable:
        models.select(module, settings.descent.trainable)
    if settings.network.pretrained and settings.network.head == "new" and not _trains_classifier(module):
        raise SfumatoError(
            f"trainable {', '.join(settings.descent.trainable)} leaves the classifier out, which starts at zero",
            "add classifier to it, or give head pretrained",
        )
    return module


def _normalise(
    module: nn.Module, source: Source, settings: Settings, key: RunKey, examples: PublicExamples | None
) -> None:
    """Put the asked normalisation in the place of the model's own."""
    inputs = None if examples is None else examples.inputs(transform_for(module, source, settings))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.seed("initial normalisation", 0))
        models.normalised(module, settings.norms.normalisation, inputs)  # type: ignore[arg-type]


def _check_cache(contents: Contents, settings: Settings) -> None:
    """Refuse choices that were made for good when the features were computed."""
    given = settings.flat()
    odd = [name for name in ("pretrained", "shift", "flip") if given[name]]
    odd += [name for name in ("zoom", "crop_area") if given[name] != 1]
    if odd:
        raise SfumatoError(
            f"{', '.join(odd)} cannot be chosen for features that are computed already", "leave them out"
        )
    if settings.augmentation.views != contents.views:
        raise SfumatoError(
            f"views must be {contents.views}, as many as the cache holds of each example, got "
            f"{settings.augmentation.views}",
            "give that number, or compute the features anew with `views`",
        )


def _created(settings: Settings, source: Source) -> nn.Module:
    """The named model; where pre-trained weights of ours don't fit it, the refusal says which model they are of."""
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
        about = models.stored_about(models.file_of(weights)) if known else None  # type: ignore[arg-type]
        if about is None:
            raise
        what = f"{about['model']} for images of {about['channels']} x {about['size']} x {about['size']}"
        raise SfumatoError(error.problem, f"{weights} holds a {what}: give model {about['model']}") from None


def _created_for_texts(settings: Settings, classes: int, tokens: Tokens) -> nn.Module:
    """The named model, refused where pre-trained weights of ours know words by other numbers."""
    weights = settings.network.initial_weights
    about = None if weights in (None, "timm") else models.stored_about(models.file_of(weights))
    if about is not None and about["transform"] != tokens.to_dict():
        raise SfumatoError(
            f"{weights} was trained on texts that were read otherwise, or on images",
            "declare the same `length`, and the same `vocabulary` or `words`",
        )
    return models.create_for_texts(
        settings.model,
        classes=classes,
        vocabulary=tokens.vocabulary,
        length=tokens.length,
        pretrained=weights,
        head=settings.network.head,
    )


def _trains_classifier(module: nn.Module) -> bool:
    below = tuple(f"{name}." for name in models.classifier_names(module))
    named = [value.requires_grad for name, value in module.named_parameters() if below and name.startswith(below)]
    return not below or any(named)
