"""Defaults by written rules, from public facts alone: declared N, image size, colour, classes, epsilon, device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public facts that the rules may look at.

    Args:
        examples: N, declared (or read from the data, which the statement then says).
        size: pixels on each side.
        channels: 1 for grey, 3 for colour.
        classes: how many.
        epsilon: the privacy budget.
        device: "cpu" or "cuda".
    """

    examples: int
    size: int
    channels: int
    classes: int
    epsilon: float
    device: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the rules choose, and why, line by line."""

    model: str
    optimizer: str
    learning_rate: float
    batch_size: int
    steps: int
    views: int
    shift: int
    flip: bool
    ema: float
    reasons: tuple[tuple[str, str], ...] = ()


def choose(facts: Facts) -> Choice:
    """The default for every option that was not given."""
    batch_size = min(facts.examples, max(facts.examples // 16, 1024))
    return Choice(
        model="cnn",
        optimizer="momentum",
        learning_rate=0.5,
        batch_size=batch_size,
        steps=200,
        views=1,
        shift=0,
        flip=False,
        ema=0.9999,
    )
