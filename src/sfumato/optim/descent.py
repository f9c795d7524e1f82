"""Settings of the optimizer: trained weights, optimizer, learning rate and schedule."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError, positive
from sfumato._choices import choice

LARGEST_RATE = 3e38
"""Largest learning rate, just below the maximum of float32."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """The trained weights, the optimizer, its learning rate and its schedule.

    In private training gradients are divided by the clipping norm (De et al. 2022, equation 3).
    """

    pretrained_rate: float = choice(1.0, by_default="1")
    """Factor on the learning rate of all layers except the classifier."""
    trainable: tuple[str, ...] = choice((), "NAME [NAME ...]", "all")
    """What is trained: all, classifier, norm (normalisation layers), first (convolution), or patterns of parameter
    names such as blocks.3.*."""
    optimizer: str = choice("momentum", "NAME")
    """sgd, momentum, adam, adamw or lamb."""
    learning_rate: float = choice()
    """Step size for gradients divided by the clipping norm; for lamb, relative to each tensor's norm."""
    momentum: float = choice(0.9, by_default="0.9")
    """Heavy-ball coefficient, or beta1 of the Adam family."""
    weight_decay: float = choice(0.0, by_default="0")
    """L2 coefficient, decoupled for adamw."""
    schedule: str = choice("constant", "NAME", "constant")
    """Learning rate schedule: constant, cosine, linear, or step (a tenth from 1/2, a hundredth from 3/4 of the steps).
    """
    warmup: int = choice(0, by_default="0")
    """Number of steps of linear warm-up."""

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate, remedy="give a number such as 0.5")
        positive("pretrained_rate", self.pretrained_rate, remedy="give a number such as 0.1")
        if self.learning_rate * max(1.0, self.pretrained_rate) > LARGEST_RATE:
            raise SfumatoError(
                f"learning_rate {self.learning_rate!r} exceeds the range of float32", "give a number such as 0.5"
            )
        if isinstance(self.trainable, str):
            raise SfumatoError(f"trainable must be a list of names, got {self.trainable!r}", "give it in brackets")
        object.__setattr__(self, "trainable", tuple(self.trainable))
