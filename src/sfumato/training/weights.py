"""How a run's weights move: its optimizer, learning rate and average, as its settings name them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sfumato import models, optim
from sfumato._checks import SfumatoError
from sfumato.averaging import EMA, Average, LastMean, TrainingOverAggregates
from sfumato.averaging.choices import Averages
from sfumato.experiment.settings import Settings
from sfumato.optim.descent import Descent


def optimizer_for(module: nn.Module, choice: Descent) -> torch.optim.Optimizer:
    """The chosen optimizer over the trained parameters.

    All layers but the classifier take `pretrained_rate` times the learning rate (alpha of Mehta et al. 2022, table 7).
    """
    return optim.create(
        choice.optimizer,
        _groups(module, choice),
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        weight_decay=choice.weight_decay,
    )


def _groups(module: nn.Module, choice: Descent) -> list[Any]:
    """The trained parameters, in two parameter groups if the classifier has its own learning rate."""
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if choice.pretrained_rate == 1:
        return list(trained.values())
    below = tuple(f"{name}." for name in models.classifier_names(module))
    last = [value for name, value in trained.items() if below and name.startswith(below)]
    rest = [value for name, value in trained.items() if not (below and name.startswith(below))]
    if not (last and rest):
        raise SfumatoError(
            f"pretrained_rate {choice.pretrained_rate} is for the layers before the classifier, but the model trains "
            f"{'only the classifier' if last else 'no known classifier'}",
            "leave it out, or train both",
        )
    return [{"params": last, optim.FACTOR: 1.0}, {"params": rest, optim.FACTOR: choice.pretrained_rate}]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group, times the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(optim.FACTOR, 1.0)


def check_choices(module: nn.Module, settings: Settings, *, steps: int) -> None:
    """Refuse an optimizer, schedule or average that is impossible for this number of steps."""
    settings.check_steps(steps)
    # Don't make an optimizer: the first one imports torch's compiler, which takes seconds.
    optim.check_parameters(_groups(module, settings.descent))


def trained_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name, detached."""
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def trained_bytes(module: nn.Module) -> int:
    """Bytes of all trained parameters."""
    return sum(value.nbytes for value in trained_parameters(module).values())


def average_for(choice: Averages) -> Average | None:
    """The average of the weights that is released; None without averaging."""
    if choice.aggregate_last is not None:
        return LastMean(choice.aggregate_last)
    average = EMA(choice.ema, choice.ema_form)
    return average if choice.ema else None


def training_over(choice: Averages) -> TrainingOverAggregates | None:
    """The aggregate at which gradients are computed; None for the last weights."""
    average = None if choice.aggregate is None else average_for(choice)
    if average is None:
        return None
    return TrainingOverAggregates(average=average, start=choice.aggregate_from, restart=bool(choice.aggregate_restart))
