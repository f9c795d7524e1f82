"""A small network and its records, for loops of one's own."""

import pytest
import torch
from torch import nn


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def records() -> tuple[torch.Tensor, torch.Tensor]:
    """60 of three classes."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(60, 6, generator=generator), torch.arange(60) % 3


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    return records()
