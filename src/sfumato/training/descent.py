"""How steps move the weights: optimizer, learning rate and average by the settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sfumato import models, optim
from sfumato._checks import SfumatoError
from sfumato.averaging import EMA, Average, LastMean, TrainingOver
from sfumato.averaging.averages import Averages
from sfumato.experiment.settings import Settings
from sfumato.optim.descent import Descent
from sfumato.training.job import Job
from sfumato.training.own import optimizers
from sfumato.training.own.optimizers import Makes


def optimizer_of(job: Job) -> torch.optim.Optimizer:
    """The optimizer of a run over the parameters that it trains."""
    return optimizer_for(job.module, job.settings.descent, job.own.optimizer)


def optimizer_for(module: nn.Module, choice: Descent, own: Makes | None = None) -> torch.optim.Optimizer:
    """The chosen optimizer over the parameters that are trained, the classifier's in a group of their own.

    All other layers take `pretrained_rate` times the learning rate (alpha of Mehta et al. 2022, table 7).

    Args:
        own: makes one that is code of the caller's own.
    """
    if own is not None:
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        return optimizers.made(own, trained, choice.learning_rate)
    return optim.create(
        choice.optimizer,
        _groups(module, choice),
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        weight_decay=choice.weight_decay,
    )


def _groups(module: nn.Module, choice: Descent) -> list[Any]:
    """The parameters that are trained; or where they differ in their rates, in torch's groups."""
    below = tuple(f"{name}." for name in models.classifier_names(module))
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if choice.pretrained_rate == 1:
        return list(trained.values())
    last = [value for name, value in trained.items() if below and name.startswith(below)]
    rest = [value for name, value in trained.items() if not (below and name.startswith(below))]
    if not (last and rest):
        raise SfumatoError(
            f"pretrained_rate {choice.pretrained_rate} tells the classifier from the layers before it, and the "
            f"model trains {'nothing else' if last else 'no classifier that is known'}",
            "leave it out, or train both",
        )
    return [{"params": last, optim.FACTOR: 1.0}, {"params": rest, optim.FACTOR: choice.pretrained_rate}]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group of parameters this learning rate, times its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(optim.FACTOR, 1.0)


def check_choices(module: nn.Module, settings: Settings, *, steps: int, own: Makes | None = None) -> None:
    """Refuse an optimizer, a schedule or an average that a run of so many steps could not have."""
    check_descent(settings, steps=steps)
    if own is not None:
        optimizer_for(module, settings.descent, own)  # which is looked at as it is made
    else:
        # None is made: with its first optimizer torch imports its compiler, which takes seconds.
        optim.check_parameters(_groups(module, settings.descent))


def check_descent(settings: Settings, *, steps: int | None) -> None:
    """The same without a module; with `steps` None, what no number of steps could have."""
    choice, averages = settings.descent, settings.averages
    optim.check_schedule(choice.schedule, steps=steps, warmup=choice.warmup)
    if choice.optimizer != optim.OWN:  # which is looked at where it is made
        optim.check(
            choice.optimizer,
            learning_rate=choice.learning_rate,
            momentum=choice.momentum,
            weight_decay=choice.weight_decay,
        )
    average_for(averages)
    if averages.aggregate is not None and steps is not None and averages.aggregate_from >= steps:
        raise SfumatoError(
            f"`aggregate_from` is {averages.aggregate_from}, and the run has {steps} steps, of which none would be "
            "taken at the aggregate",
            "give an earlier step, or leave `aggregate` out",
        )


def trained_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that a run trains, by name, without their graph."""
    return {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}


def trained_bytes(module: nn.Module) -> int:
    """What one set of a run's trained parameters takes."""
    return sum(value.nbytes for value in trained_parameters(module).values())


def average_for(choice: Averages) -> Average | None:
    """What is averaged over the steps and released, if anything is."""
    if choice.aggregate_last is not None:
        return LastMean(choice.aggregate_last)
    average = EMA(choice.ema, choice.ema_form)
    return average if choice.ema else None


def training_over(choice: Averages) -> TrainingOver | None:
    """At which average gradients are taken, if at any."""
    average = average_for(choice)
    if choice.aggregate is None or average is None:
        return None
    return TrainingOver(average=average, start=choice.aggregate_from, restart=bool(choice.aggregate_restart))


def beginning_of_average(job: Job) -> dict[str, Tensor]:
    """The average's state before the first step; nothing where the run does not average."""
    average = average_for(job.settings.averages)
    return {} if average is None else average.begin(trained_parameters(job.module))
