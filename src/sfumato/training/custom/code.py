"""The user's own code in `sfumato.train`: a model, loss or optimizer given as an object rather than by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.models import losses
from sfumato.models.choices import LossSettings
from sfumato.optim import OWN
from sfumato.training.custom import optimizers
from sfumato.training.custom.optimizers import Makes

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class CustomCode:
    """The user's own code in a run; None for what the settings name.

    Args:
        model: the module, of which a copy is trained.
        loss: a function of outputs (K, classes) and targets (K,) or (K, classes), the K views of one example, to their
            mean loss.
        optimizer: a class like those of `torch.optim`, or a callable that makes one from a list of parameters.

    **Guarantee.** Gradients are clipped after the loss, so one example moves a step's sum by at most the plan's norm
    whatever the loss is, and the optimizer receives the sum after the noise. For both the guarantee is the plan's, as
    long as neither was made from private records or reads any besides its arguments; the statement says that this is
    the owner's word. If a run is resumed with code that computes something else, its repeated steps give the same
    releases or none (`releases.commit`).
    """

    model: nn.Module | None = None
    loss: Loss | None = None
    optimizer: Makes | None = None

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, torch.optim.Optimizer):
            kind = type(self.optimizer).__name__
            raise SfumatoError(
                f"optimizer is a {kind} over parameters, but a run trains a copy of the model",
                f"give a function: optimizer=lambda parameters: {kind}(parameters, ...)",
            )

    @classmethod
    def from_arguments(cls, model: Any, choices: Mapping[str, Any]) -> tuple[CustomCode, str | None, dict[str, Any]]:
        """Separates own code from names. Returns it with the model's name and the choices for the settings."""
        rest = dict(choices)
        own = cls(
            model=model if isinstance(model, nn.Module) else None,
            loss=rest.pop("loss") if callable(rest.get("loss")) else None,
            optimizer=rest["optimizer"] if _is_factory(rest.get("optimizer")) else None,
        )
        if own.optimizer is not None:
            rest |= {"optimizer": OWN, "learning_rate": optimizers.rate_of(own.optimizer, rest)}
        name: Any = model if own.model is None else "module"
        return own, name, rest

    @property
    def given(self) -> set[str]:
        """The fields that are given."""
        return {one.name for one in fields(self) if getattr(self, one.name) is not None}

    @property
    def names(self) -> dict[str, str]:
        """The names of the own loss and optimizer."""
        loss = getattr(self.loss, "__name__", type(self.loss).__name__).replace("<lambda>", "a function")
        return {
            **({} if self.loss is None else {"loss": loss}),
            **({} if self.optimizer is None else {"optimizer": optimizers.name_of(self.optimizer)}),
        }

    def loss_for(self, objective: LossSettings, labels: Sequence[str], device: str) -> Loss:
        """The own loss, with its tensors on the device, or that of the objective."""
        if isinstance(self.loss, nn.Module):
            return copy.deepcopy(self.loss).to(device)
        return self.loss or losses.weighted_loss(objective.loss, objective.class_prevalence, labels, device)


def _is_factory(optimizer: Any) -> bool:
    return callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer)
