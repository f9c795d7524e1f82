"""What the body of a loop over `private_steps` must leave alone: the weights, their gradients, the model's buffers.

The optimizer has taken its private step before the body runs. Whatever else moves the weights has neither clipping nor
noise, so the model is compared with what the step left, wherever the move came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError


@contextmanager
def only_private(optimizer: torch.optim.Optimizer, trained: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it no gradient reaches a trained parameter by `backward()`, and the optimizer takes no step along one.

    Errors: `SfumatoError`, within the body, naming the closure or `backward()`.
    """

    def refuse_step(_: torch.optim.Optimizer, given: tuple[Any, ...], more: dict[str, Any]) -> None:
        if any(one is not None for one in (*given[1:], *more.values())):
            _refuse("optimizer.step(closure) was called", "take the closure and optimizer.step() out of the body")
        if any(one.grad is not None for group in optimizer.param_groups for one in group["params"]):
            _refuse("optimizer.step() was called", "take backward() and optimizer.step() out of the body")

    def refuse_gradient(parameter: Tensor) -> NoReturn:
        parameter.grad = None
        _refuse(
            "backward() was called", "take it out of the body; to measure a loss there, use `with torch.no_grad():`"
        )

    hooks: list[Any] = [optimizer.register_step_pre_hook(refuse_step)]
    hooks += [one.register_post_accumulate_grad_hook(refuse_gradient) for one in trained.values()]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _refuse(what: str, remedy: str) -> NoReturn:
    raise SfumatoError(
        f"{what} in the body of the loop over private_steps, where gradients have neither clipping nor noise; the "
        "optimizer has taken its private step before the body runs",
        remedy,
    )


def seen(model: nn.Module) -> dict[str, bytes]:
    """SHA-256 of each parameter and buffer, by name."""
    found = {}
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        found[name] = hashlib.sha256(content).digest()
    return found


def refuse_changed(model: nn.Module, trained: Mapping[str, Tensor], left: Mapping[str, bytes]) -> None:
    """Refuse a model that the body has changed since the step.

    Args:
        trained: the parameters that the run trains, by name.
        left: of the model as the step left it (`seen`).
    """
    now = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if changed := sorted(now.keys() ^ trained.keys()):
        raise SfumatoError(
            f"the body of the loop over private_steps has changed requires_grad of {len(changed)} parameters, "
            f"such as {changed[0]}",
            "freeze before private_steps is called, and give another call, with a budget of its own, what comes later",
        )
    if replaced := [name for name, value in trained.items() if now[name] is not value]:
        raise SfumatoError(
            f"the body of the loop over private_steps has put other parameters in the place of {len(replaced)}, such "
            f"as {replaced[0]}, which the optimizer does not move",
            "change the model before private_steps is called",
        )
    after = seen(model)
    if moved := sorted(name for name in after.keys() | left.keys() if after.get(name) != left.get(name)):
        raise SfumatoError(
            f"the body of the loop over private_steps has moved {len(moved)} parameters or buffers of the model, such "
            f"as {moved[0]}, by something that has neither clipping nor noise",
            "leave the model to the optimizer; run it in evaluation mode, where batch norm keeps its statistics "
            "(model.eval()), or work on a copy",
        )
