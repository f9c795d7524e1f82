"""Private training for numbers and for masks: python examples/other_tasks.py

Any loss of (outputs, targets) will do. Here a network tells how far to the right a digit's ink lies, by the mean
squared error, and another one which pixels of a noisy image have ink, by the cross-entropy of each pixel.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import sfumato


def train(model: nn.Module, data: tuple[Tensor, Tensor], loss, directory: Path, *, rate: float, steps: int) -> None:
    """Train within epsilon 3, going on where an earlier call was interrupted."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    run = sfumato.private_steps(
        model,
        optimizer,
        data,
        loss,
        epsilon=3.0,
        batch_size=400,
        steps=steps,
        with_state=[scheduler],
        public=True,
        directory=directory,
    )
    for _ in run:
        scheduler.step()
    print(f"{directory}: {run.statement.short}")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of numbers (1, 1) and (1,)."""
    return functional.mse_loss(outputs.squeeze(1), targets)


def main(directory: str | Path = "other-tasks", steps: int = 60) -> tuple[float, float]:
    """Both tasks on the digits. Returns the share of the variance explained, and of the pixels told right."""
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    transform = sfumato.Transform(size=source.size, channels=source.channels)
    images, tests = transform(source.train.images), transform(source.test.images)

    place = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
    to_the_right = torch.linspace(-1, 1, source.size)
    known, wanted = ((10 * some * to_the_right).mean((1, 2, 3)) for some in (images, tests))
    train(place, (images, known), squared_error, Path(directory) / "place", rate=0.1, steps=steps)

    mask = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 2, 3, padding=1))
    noisy, noisy_tests = (some + 0.5 * torch.randn_like(some) for some in (images, tests))
    train(
        mask,
        (noisy, (images[:, 0] > 0).long()),
        functional.cross_entropy,
        Path(directory) / "mask",
        rate=0.5,
        steps=steps,
    )

    with torch.inference_mode():
        explained = 1 - (squared_error(place(tests), wanted) / wanted.var()).item()
        right = (mask(noisy_tests).argmax(1) == (tests[:, 0] > 0)).double().mean().item()
    print(f"place: {explained:.0%} of the variance explained; masks: {right:.1%} of the pixels right")
    return explained, right


if __name__ == "__main__":
    main()
