"""Optimizers by name, from torch; LAMB from timm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, below_one, not_negative, one_of, positive

NAMES = ("sgd", "momentum", "adam", "adamw", "lamb")
FACTOR = "factor"
"""Key in a parameter group for its multiplier of the learning rate."""


def _lamb(parameters: list[Any], **options: Any) -> torch.optim.Optimizer:
    from timm.optim.lamb import Lamb

    # timm's defaults differ from algorithm 2: without `always_adapt` the trust ratio is skipped for parameters without
    # weight decay (which is Adam), and `max_grad_norm` clips the whole gradient to norm 1, after the noise was added.
    # The other options follow algorithm 2 and are set explicitly because timm's defaults may change.
    return Lamb(
        parameters,
        **options,
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
    """Refuses the settings that `create` refuses."""
    one_of(NAMES, optimizer=name, remedy="give only the name: momentum and weight decay are options")
    positive(learning_rate=learning_rate)
    not_negative(weight_decay=weight_decay)
    below_one(momentum=momentum, remedy="give a number in [0, 1), such as 0.9")


def check_parameters(listed: Sequence[Any]) -> None:
    """Refuses an empty list of parameters."""
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
    """Creates the named optimizer for the given parameters.

    An optimizer sees noisy gradients only. It is post-processing, and its choice does not affect the guarantee.

    Args:
        name: `sgd` (no momentum), `momentum` (heavy ball), `adam`, `adamw` (decoupled weight decay) or `lamb`
            (You et al. 2020, arXiv 1904.00962, algorithm 2, with phi the identity: each tensor moves by the learning
            rate times its norm; a tensor of zeros moves as with Adam).
        parameters: tensors, or parameter groups as in torch.
        learning_rate: step size for gradients divided by the clipping norm (De et al. 2022, equation 3).
        momentum: heavy-ball coefficient of `momentum`, or the first beta of the Adam family, in [0, 1); ignored by
            `sgd`.
        weight_decay: L2 coefficient (decoupled for `adamw`; for `lamb` included in the update before its norm is
            taken).

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
