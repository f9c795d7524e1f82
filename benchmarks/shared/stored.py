"""A model file as a run leaves it, of a module with weights that nobody has trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sfumato.data import Transform
from sfumato.models import FORMAT, METADATA, classifier_names
from sfumato.models.projection import synthetic_images
from sfumato.models.registry import create
from sfumato.privacy import NoGuarantee
from sfumato.runs.checkpoint import to_bytes

NO_PROMISE = NoGuarantee(published=False).to_dict()


def drawn(spelling: str, *, classes: int, channels: int, size: int, seed: int = 0) -> nn.Module:
    """A model of the registry that tells images apart about as a trained one does, layer by layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = create(spelling, classes=classes, channels=channels, size=size)
        images = next(synthetic_images(16, channels=channels, size=(size, size)))
        wake(module, images)
        fill(module)
        spread(module.eval(), images)
    return module


@torch.no_grad()
def wake(module: nn.Module, inputs: torch.Tensor) -> None:
    """Convolutions that keep the size of what they are given (He et al. 2015), batch norms with the inputs' moments."""
    norms = [one for one in module.modules() if isinstance(one, nn.BatchNorm2d)]
    for one in module.modules():
        if isinstance(one, nn.Conv2d):
            nn.init.kaiming_normal_(one.weight, nonlinearity="relu")
    for one in norms:
        one.momentum = None  # the mean over batches, of which there is one
    if norms:
        module.train()(inputs)


def fill(module: nn.Module) -> None:
    """Draw what starts at zero."""
    for parameter in module.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05)


@torch.no_grad()
def spread(module: nn.Module, inputs: torch.Tensor) -> None:
    """Scale and shift the classifier so that logits of these inputs are about 0, and differ by about one."""
    (name,) = classifier_names(module)
    last, logits = module.get_submodule(name), module(inputs)
    deviation = logits.std(0).mean().clamp_min(1e-6)
    for parameter in last.parameters():
        parameter.div_(deviation)
    if isinstance(last.bias, torch.Tensor):
        last.bias.sub_(logits.mean(0) / deviation)


def stored(path: Path, spelling: str, module: nn.Module, transform: Any, classes: Sequence[str], **about: Any) -> Path:
    """Write the model file.

    Args:
        spelling: how the module was named.
        transform: `Transform` or `Tokens`.
        about: what else it says, or in place of what it would.
    """
    sides = {"channels": transform.channels, "size": transform.size} if isinstance(transform, Transform) else {}
    said = {
        "format": FORMAT,
        "model": spelling,
        "classes": list(classes),
        **sides,
        "transform": transform.to_dict(),
        "loss": "softmax",
        "statement": NO_PROMISE,
        "trained_on": [],
        "test_fraction": 0.2,
        **about,
    }
    path.write_bytes(to_bytes(dict(module.state_dict()), {METADATA: json.dumps(said)}))
    return path
