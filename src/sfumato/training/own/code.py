"""Code of one's own in `sfumato.train`: a model, a loss, an optimizer that are objects and no names."""

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
from sfumato.models.choices import Objective
from sfumato.optim import OWN
from sfumato.training.own import optimizers
from sfumato.training.own.optimizers import Makes

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """What of a run is code of the caller's own; None for what its settings name.

    Args:
        model: the module; it stays as it is, and a copy is trained.
        loss: of outputs (K, classes) and targets (K,) or (K, classes), the K views of one example, to a mean over them.
        optimizer: a class of `torch.optim`'s kind, or what makes one of a list of parameters.

    **Guarantee.** Clipping follows the loss, so whatever it is, one example moves a step's sum by no more than the
    plan's norm, and the optimizer sees the sum after the noise: for both the promise is the plan's, as long as neither
    was made from private records, or looks at any but what it is given. The statement says that this is their owner's
    word. A run that goes on with code that computes something else on made-up numbers (`digests`) says so; its steps
    that are taken again give the same releases or none.
    """

    model: nn.Module | None = None
    loss: Loss | None = None
    optimizer: Makes | None = None

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, torch.optim.Optimizer):
            kind = type(self.optimizer).__name__
            raise SfumatoError(
                f"optimizer is a {kind} over parameters, and a run trains a copy of the model",
                f"give what makes it: optimizer=lambda parameters: {kind}(parameters, ...)",
            )

    @classmethod
    def taken(cls, model: Any, choices: Mapping[str, Any]) -> tuple[OwnCode, str | None, dict[str, Any]]:
        """The code among a model and choices; the model's name, and the choices, as settings have them."""
        rest = dict(choices)
        own = cls(
            model=model if isinstance(model, nn.Module) else None,
            loss=rest.pop("loss") if callable(rest.get("loss")) else None,
            optimizer=rest["optimizer"] if _makes(rest.get("optimizer")) else None,
        )
        if own.optimizer is not None:
            rest |= {"optimizer": OWN, "learning_rate": optimizers.rate_of(own.optimizer, rest)}
        name: Any = model if own.model is None else "module"
        return own, name, rest

    @property
    def given(self) -> set[str]:
        """Which of the three are objects."""
        return {one.name for one in fields(self) if getattr(self, one.name) is not None}

    @property
    def names(self) -> dict[str, str]:
        """What loss and optimizer are called, where they are objects."""
        loss = getattr(self.loss, "__name__", type(self.loss).__name__).replace("<lambda>", "a function")
        return {
            **({} if self.loss is None else {"loss": loss}),
            **({} if self.optimizer is None else {"optimizer": optimizers.name_of(self.optimizer)}),
        }

    def loss_for(self, objective: Objective, labels: Sequence[str], device: str) -> Loss:
        """The loss: one's own, with its tensors on the device, or that of the objective."""
        if isinstance(self.loss, nn.Module):
            return copy.deepcopy(self.loss).to(device)
        return self.loss or losses.weighted(objective.loss, objective.class_prevalence, labels, device)

    def digests(self, module: nn.Module, source: Source, settings: Settings) -> dict[str, str]:
        """SHA-256 of what loss and optimizer compute on made-up numbers, where they are code of one's own.

        Args:
            module: whose parameters are trained.

        Errors: `SfumatoError` for a loss that fails on these or gives no number, and for an optimizer that a run could
        not have (`optimizers.tried`).
        """
        found, classes = {}, len(source.classes)
        if self.loss is not None:
            targets = torch.from_numpy(source.synthetic_labels(classes))
            loss = self.loss_for(settings.objective, source.classes, "cpu")
            found["loss"], again = (_loss_digest(loss, targets, classes, settings.augmentation.views) for _ in range(2))
            if again != found["loss"]:
                raise SfumatoError(
                    "loss gives other numbers when it is called again: it keeps something from call to call",
                    "let it be a function of outputs and targets alone",
                )
        if self.optimizer is not None:
            trained = {name: value.shape for name, value in module.named_parameters() if value.requires_grad}
            found["optimizer"] = optimizers.tried(self.optimizer, trained, settings.descent.learning_rate)
        return found


def _makes(optimizer: Any) -> bool:
    return callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer)


def _loss_digest(loss: Loss, targets: Tensor, classes: int, views: int) -> str:
    """Of its values and gradients for made-up outputs, one example's views at a time."""
    digest, generator = hashlib.sha256(), torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for target in targets:
            outputs = torch.randn(views, classes, generator=generator, requires_grad=True)
            value = _value(loss, outputs, target.expand(views, *target.shape))
            digest.update(value.detach().double().numpy().tobytes())
            if value.requires_grad:  # a constant one is refused by the clipped gradient
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
        raise SfumatoError(
            f"loss must give one number for {taken}, got {got}", "let it be the mean over its first axis"
        )
    return value
