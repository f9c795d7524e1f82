"""Discovery: how a model is to be run, found out on made-up examples before any private one is touched."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients import sequential, vectorised
from sfumato.gradients.examples import Tree, synthetic


@dataclass(frozen=True, kw_only=True)
class Road:
    """How to run a model on inputs of one kind.

    Attributes:
        fast: all examples at once, or else one after the other.
        expanded: names of the parameters that get a copy per example.
        used: names of the trainable parameters that have a gradient.
        draws: whether the model throws dice that are keyed by example.
    """

    fast: bool
    expanded: frozenset[str]
    used: frozenset[str]
    draws: bool = False


@contextmanager
def undisturbed_random():
    """Puts back torch's and Python's global random states, so that a question costs a run no draws."""
    state = random.getstate()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(state)


def run_expanding(
    model: nn.Module,
    loss: Callable[[Any, Tree], Tensor],
    inputs: Tree,
    targets: Tree,
    *,
    views: int,
    expanded: frozenset[str],
    memory: vectorised.Memory,
    keys: Tensor | None = None,
    own_copies: bool = False,
) -> tuple[vectorised.Run, frozenset[str]]:
    """A run in which no gradient path was missed, and the parameters that had to be expanded for it."""
    for _ in range(sum(1 for _ in model.parameters()) + 1):
        found = vectorised.run(
            model,
            loss,
            inputs,
            targets,
            views=views,
            expanded=expanded,
            memory=memory,
            keys=keys,
            own_copies=own_copies,
        )
        if not found.missed:
            return found, expanded
        expanded |= found.missed
    raise SfumatoError(
        "the model uses its parameters in another way at every run, so no way to clip it was found",
        "make its forward pass use the same parameters each time",
    )


def discover(
    model: nn.Module,
    loss: Callable[[Any, Tree], Tensor],
    inputs: Tree,
    targets: Tree,
    *,
    views: int,
    memory: vectorised.Memory,
) -> Road:
    """The road for inputs of this shape: only shapes and types of the arguments are looked at.

    The fast road is tried first, on two made-up examples; if torch cannot vectorise the model, the slow one, with a
    warning; if that fails too, the model's own error is reported.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = synthetic(inputs, 2, generator)
    targets = synthetic(targets, 2, generator)
    with undisturbed_random():
        try:
            found, expanded = run_expanding(
                model, loss, inputs, targets, views=views, expanded=frozenset(), memory=memory, own_copies=True
            )
            road = Road(fast=True, expanded=expanded, used=found.used, draws=found.draws)
        except SfumatoError:
            raise
        except Exception as reason:
            road = _slow(model, loss, inputs, targets, views, reason)
    if not road.used:
        raise SfumatoError(
            "loss does not depend on any trainable parameter of the model",
            "check the loss function, and that the forward pass is not detached or under torch.no_grad()",
        )
    return road


def _slow(model, loss, inputs: Tree, targets: Tree, views: int, reason: Exception) -> Road:
    try:
        *_, used = sequential.clipped_sum(model, loss, inputs, targets, max_norm=1.0, views=views)
    except SfumatoError:
        raise
    except Exception as error:
        raise SfumatoError(
            f"the model or loss fails on one example: {first_line(error)}",
            "make it run on a batch of one made-up example of the same shape",
        ) from error
    warnings.warn(
        f"this model cannot be vectorised over examples, so they run one at a time, slowly: {first_line(reason)}",
        RuntimeWarning,
        stacklevel=4,
    )
    return Road(fast=False, expanded=frozenset(), used=used)


def first_line(error: Exception) -> str:
    """The error's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
