"""Optimizers by name: torch's own, and LAMB from timm."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, not_negative, one_of, positive

NAMES = ("sgd", "momentum", "adam", "adamw", "lamb")
OWN = "own"
"""What settings call an optimizer that is code of the caller's own."""
FACTOR = "factor"
"""What a group of an optimizer's parameters calls its share of the learning rate."""


def _lamb(parameters: list[Any], **given: Any) -> torch.optim.Optimizer:
    from timm.optim.lamb import Lamb

    # timm's defaults are another optimizer: without `always_adapt` the ratio of norms is left out where there is no
    # decay (which is Adam), and `max_grad_norm` clips the whole gradient to norm 1, a second clipping after the noise.
    # The others are what algorithm 2 says, given lest a version of timm has other ones.
    return Lamb(
        parameters,
        **given,
        eps=1e-6,
        always_adapt=True,
        max_grad_norm=None,
        bias_correction=True,
        grad_averaging=True,
        trust_clip=False,
        caution=False,
        decoupled_decay=False,
    )


def check(name: str, *, learning_rate: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
    """Refuse what `create` refuses, whatever the parameters are."""
    one_of("optimizer", name, NAMES, remedy=_remedy(name))
    positive("learning rate", learning_rate)
    not_negative("weight decay", weight_decay)
    if not_negative("momentum", momentum, remedy="give a number in [0, 1), such as 0.9") >= 1:
        raise SfumatoError(f"momentum must be below 1, got {momentum!r}", "give a number in [0, 1), such as 0.9")


def check_parameters(listed: Sequence[Any]) -> None:
    """Refuse to train nothing."""
    if not listed:
        raise SfumatoError("parameters must not be empty", "pass a model with at least one trainable parameter")


def create(
    name: str,
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    *,
    learning_rate: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """The optimizer of that name over the given parameters.

    An optimizer sees noisy gradients only, so its choice is no part of the guarantee: it is post-processing.

    Args:
        name: `sgd` (no momentum), `momentum` (heavy ball), `adam`, `adamw` (decoupled weight decay) or `lamb`
            (You et al. 2020, arXiv 1904.00962, algorithm 2, with phi the identity: each tensor moves by the learning
            rate times its own norm; a tensor of zeros by what Adam would move it).
        parameters: tensors, or torch's parameter groups.
        learning_rate: step size for gradients that are divided by the clipping norm (De et al. 2022, equation 3).
        momentum: heavy-ball coefficient of `momentum`, or the first beta of the Adam family, in [0, 1);
            `sgd` has none.
        weight_decay: L2 coefficient (decoupled for `adamw`; for `lamb` part of the update whose norm is taken).

    Raises:
        SfumatoError: an unknown name, a value out of range, or no parameters.
    """
    check(name, learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay)
    listed: list[Any] = list(parameters)
    check_parameters(listed)
    shared: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(listed, momentum=momentum if name == "momentum" else 0.0, **shared)
    adaptive = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "lamb": _lamb}[name]
    return adaptive(listed, betas=(momentum, 0.999), **shared)


def _remedy(name: object) -> str | None:
    """What to do about a name that is one of ours in other letters, or with options behind it as models have them."""
    bare = re.split(r"[^a-z]", name.strip().lower())[0] if isinstance(name, str) else ""
    if bare not in NAMES:
        return None
    return f"give {bare}, the name alone: momentum and weight decay are options of their own"
