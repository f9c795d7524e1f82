"""What the sites agree on: the model, and who has which images."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Network(nn.Sequential):
    """The model that the sites train together. The first weights are always the same, for a job that begins again."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def images_of(site: int, sites: int) -> tuple[Tensor, Tensor]:
    """The images (N, 1, 8, 8) and labels (N,) of one site; of site -1 those that nobody trains on."""
    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    mine = order[:360] if site < 0 else order[360:][site::sites]
    return images[mine], targets[mine]
