"""A small backbone and made-up users, each with records of a few classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import RunKey
from sfumato.embedding import LocalSGD, Rounds, anew

USERS, CLIENTS, PER_USER, WIDTH, CLASSES = 24, 5, 6, 4, 9


@pytest.fixture
def backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, WIDTH))


@pytest.fixture
def settings() -> LocalSGD:
    return LocalSGD(learning_rate=0.05, head_scale=10.0, epochs=2, batch_size=5)


@pytest.fixture
def rounds() -> Rounds:
    """The records of a user are scattered among those of the others."""
    generator = np.random.default_rng(0)
    users = generator.permutation(np.repeat(np.arange(USERS), PER_USER))
    inputs = torch.from_numpy(generator.normal(size=(len(users), 6)).astype(np.float32))
    key = RunKey.from_seed(1)
    return Rounds(
        key=key,
        assign=anew(key, USERS, clients=CLIENTS),
        users=users,
        labels=(users + generator.integers(2, size=len(users))) % CLASSES,
        inputs=lambda records: inputs[records],
    )
