"""Trains thousands of small networks at once by one plan, for audits. A step takes a few matrix products for all.

M models of the same shape have weights (M, ...). Each is a stack of linear layers with tanh between them; a single
layer is a linear classifier, or the head of a model on its trunk's features. Each step is that of `PrivateStep` (De et
al. 2022, equation 4): participants are drawn by coins, each gradient is clipped to C, the clipped gradients are summed,
N(0, (sigma C)^2) is added in every coordinate, and the result is divided by the expected batch size and C. The tests
compare the two. Nothing here is a release: the models serve attacks, and the noise comes from a fast generator that is
not secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sfumato import optim
from sfumato._checks import SfumatoError
from sfumato.averaging.choices import Averages
from sfumato.optim.descent import Descent
from sfumato.privacy import FixedClipping, FullBatch, Gaussian, Poisson, PrivacyPlan
from sfumato.training.weights import average_for, set_rate, training_over

NUMBERS_AT_ONCE = 1 << 21
"""The total number of weights trained at once. Together with gradients and noise they roughly fit into a CPU cache."""
LOSSES = ("softmax", "sigmoid")
ELEMENTWISE = ("sgd", "momentum", "adam", "adamw")
"""Optimizers that act on each weight separately, so that they can update M models at once."""


class Layer(NamedTuple):
    """One linear layer of M models: weight (M, out, in), bias (M, out)."""

    weight: Tensor
    bias: Tensor


Layers = Sequence[Layer]


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training of all models.

    Args:
        plan: a plan with independent Gaussian noise, Poisson sampling or full batches, and a fixed clipping norm.
        descent: optimizer, learning rate and schedule.
        averages: which weights are released at the end.
        loss: softmax or sigmoid.

    Errors: `SfumatoError` for anything that these steps do not support.
    """

    plan: PrivacyPlan
    descent: Descent
    averages: Averages
    loss: str = "softmax"

    def __post_init__(self) -> None:
        plan, wanted = self.plan, "many models at once need"
        kinds = (plan.mechanism, Gaussian), (plan.participation, (Poisson, FullBatch)), (plan.clipping, FixedClipping)
        others = [type(found).__name__ for found, kind in kinds if not isinstance(found, kind)]
        if others or plan.unit.drawn != "examples":
            raise SfumatoError(
                f"{wanted} Poisson sampling or full batches of examples, Gaussian noise and a fixed clipping norm, but "
                f"the plan has {', '.join(others) or plan.unit.name}",
                "train the models one by one",
            )
        if self.descent.optimizer not in ELEMENTWISE or self.descent.pretrained_rate != 1:
            raise SfumatoError(
                f"{wanted} an optimizer that acts on each weight separately, with one learning rate, got "
                f"{self.descent.optimizer}",
                "train the models one by one",
            )
        if self.loss not in LOSSES or training_over(self.averages) is not None:
            raise SfumatoError(
                f"{wanted} the loss softmax or sigmoid, and gradients at the last weights, got {self.loss}",
                "train the models one by one",
            )

    def __call__(
        self,
        start: Layers,
        inputs: Tensor,
        targets: Tensor,
        *,
        models: int,
        generator: torch.Generator,
        members: Tensor | None = None,
    ) -> list[Layer]:
        """The layers of M trained models with the same initial weights.

        Args:
            start: the initial layers of one model, M = 1.
            inputs: float32 (N, D), the inputs of the first layer.
            targets: int64 (N,).
            models: M.
            generator: the generator of coins and noise.
            members: bool (M, N), the training records of each model; None for all records.
        """
        each = max(1, NUMBERS_AT_ONCE // sum(value.numel() for layer in start for value in layer))
        blocks = [slice(at, min(at + each, models)) for at in range(0, models, each)]
        found = [
            self._block(start, inputs, targets, block, None if members is None else members[block], generator)
            for block in blocks
        ]
        return [
            Layer(*(torch.cat(values) for values in zip(*layers, strict=True))) for layers in zip(*found, strict=True)
        ]

    def _block(
        self,
        start: Layers,
        inputs: Tensor,
        targets: Tensor,
        block: slice,
        members: Tensor | None,
        generator: torch.Generator,
    ) -> list[Layer]:
        """The layers of one block of models that are trained at once."""
        plan, descent, count = self.plan, self.descent, block.stop - block.start
        trained = {
            f"{name}.{place}": value.expand(count, *value.shape[1:]).clone().requires_grad_()
            for place, layer in enumerate(start)
            for name, value in layer._asdict().items()
        }
        optimizer = optim.create(
            descent.optimizer,
            list(trained.values()),
            learning_rate=descent.learning_rate,
            momentum=descent.momentum,
            weight_decay=descent.weight_decay,
        )
        rate = optim.schedule(descent.schedule, steps=plan.steps, warmup=descent.warmup)
        averaging = average_for(self.averages)
        average = averaging.begin(trained) if averaging else {}
        with torch.no_grad():
            for step in range(plan.steps):
                set_rate(optimizer, descent.learning_rate * rate(step))
                taken = torch.rand(count, len(inputs), generator=generator) < plan.sampling_probability
                taken = taken if members is None else taken & members
                total = clipped_sum(stacked(trained), inputs, targets, taken, max_norm=plan.max_norm, loss=self.loss)
                gradient = [noisy_mean(value, plan, generator) for layer in total for value in layer]
                for parameter, value in zip(trained.values(), gradient, strict=True):
                    parameter.grad = value
                optimizer.step()
                if averaging is not None:
                    average = averaging.update(average, trained, step)
        last = averaging.averaged_weights(average) if averaging else trained
        return stacked({name: value.detach() for name, value in last.items()})


def stacked(values: dict[str, Tensor]) -> list[Layer]:
    """Layers from tensors in the order weight, bias, weight, bias, ..."""
    flat = list(values.values())
    return [Layer(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]


def forward(layers: Layers, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """The inputs of the layers, (N, D) for the first and (M, H, N) for the others, and the logits (M, K, N)."""
    first, *others = layers
    found: list[Tensor] = [inputs]
    outputs = (first.weight.flatten(0, 1) @ inputs.T).view(*first.bias.shape, -1) + first.bias[..., None]
    for layer in others:
        found.append(outputs.tanh())
        outputs = layer.weight @ found[-1] + layer.bias[..., None]
    return found, outputs


def logit_gradients(outputs: Tensor, targets: Tensor, loss: str) -> Tensor:
    """The gradient of each example's loss with respect to its logits, both (M, K, N): p - y."""
    probabilities = outputs.softmax(1) if loss == "softmax" else outputs.sigmoid()
    return probabilities - functional.one_hot(targets, outputs.shape[1]).T.to(outputs.dtype)


def clipped_sum(
    layers: Layers, inputs: Tensor, targets: Tensor, taken: Tensor, *, max_norm: float, loss: str = "softmax"
) -> list[Layer]:
    """The sum over the participants of min(1, C / ||g_i||) g_i, for each model.

    A layer's gradient for one example is the outer product of its error e and (a, 1), with a the layer's input, so
    ||g||^2 = sum over layers of ||e||^2 (||a||^2 + 1).

    Args:
        taken: bool (M, N), the participants in the step of each model.

    Returns:
        The sums, as layers with the shapes of the weights.
    """
    given, outputs = forward(layers, inputs)
    errors = [logit_gradients(outputs, targets, loss)]
    for layer, hidden in zip(reversed(layers[1:]), reversed(given[1:]), strict=True):
        errors.insert(0, layer.weight.mT @ errors[0] * (1 - hidden.square()))
    squares = torch.zeros_like(taken, dtype=inputs.dtype)
    for error, below in zip(errors, given, strict=True):
        squares += error.square().sum(1) * (below.square().sum(1) + 1)  # (N,) of the inputs, else (M, N)
    factors = (taken * (max_norm / squares.sqrt()).clamp(max=1)).unsqueeze(1)
    sums = []
    for error, below in zip(errors, given, strict=True):
        clipped = error * factors
        weight = (clipped.flatten(0, 1) @ below).view(*clipped.shape[:2], -1) if below is inputs else clipped @ below.mT
        sums.append(Layer(weight, clipped.sum(-1)))
    return sums


def noisy_mean(total: Tensor, plan: PrivacyPlan, generator: torch.Generator) -> Tensor:
    """(sum + sigma C xi) / (B C), with xi ~ N(0, I). Overwrites the sum."""
    noise = torch.empty_like(total).normal_(generator=generator)
    deviation = plan.noise_multiplier * plan.max_norm
    return total.add_(noise, alpha=deviation).div_(plan.expected_batch_size * plan.max_norm)
