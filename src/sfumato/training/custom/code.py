"""The user's own code in `sfumato.train`: a model, loss or optimizer given as an object rather than by name."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.experiment.settings import Settings
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
    the owner's word. A run resumed with code that computes something else on synthetic numbers (`digests`) reports it;
    its repeated steps give the same releases or none.
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

    def digests(self, module: nn.Module, source: Source, settings: Settings) -> dict[str, str]:
        """SHA-256 of the results of the own loss and optimizer on synthetic numbers.

        Args:
            module: the model, whose parameters are trained.

        Errors: `SfumatoError` for a loss that fails or returns no number, and for an unsuitable optimizer
        (`optimizers.optimizer_digest`).
        """
        found, classes = {}, len(source.classes)
        if self.loss is not None:
            if source.next_words:
                source.require_classes("a loss of your own")
            targets = torch.from_numpy(source.synthetic_labels(classes))
            loss = self.loss_for(settings.objective, source.classes, "cpu")
            found["loss"], again = (_loss_digest(loss, targets, classes, settings.augmentation.views) for _ in range(2))
            if again != found["loss"]:
                raise SfumatoError(
                    "loss gives different numbers when it is called again: it has a state",
                    "make it a function of outputs and targets alone",
                )
        if self.optimizer is not None:
            trained = {name: value.shape for name, value in module.named_parameters() if value.requires_grad}
            found["optimizer"] = optimizers.optimizer_digest(self.optimizer, trained, settings.descent.learning_rate)
        return found


def _is_factory(optimizer: Any) -> bool:
    return callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer)


def _loss_digest(loss: Loss, targets: Tensor, classes: int, views: int) -> str:
    """SHA-256 of the loss's values and gradients for synthetic outputs, one example's views at a time."""
    digest, generator = hashlib.sha256(), torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for target in targets:
            outputs = torch.randn(views, classes, generator=generator, requires_grad=True)
            value = _value(loss, outputs, target.expand(views, *target.shape))
            digest.update(value.detach().double().numpy().tobytes())
            if value.requires_grad:  # the clipped gradient refuses a constant loss
                (slope,) = torch.autograd.grad(value, outputs, allow_unused=True)
                digest.update(b"" if slope is None else slope.double().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _value(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    taken = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
    try:
        value = loss(outputs, targets)
    except SfumatoError:
        raise
    except Exception as error:
        raise SfumatoError(
            f"loss fails on {taken}: {type(error).__name__}: {' '.join(str(error).split())}",
            "give a function of (outputs, targets), the views of one example, such as torch.nn.CrossEntropyLoss()",
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise SfumatoError(f"loss must return one number for {taken}, got {got}", "return the mean over the first axis")
    return value
