"""A small backbone and made-up users, each with records of a few classes."""

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import RunKey, Source, open_source
from sfumato.embedding import LocalSGD, Rounds, assign_randomly

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
        assign=assign_randomly(key, USERS, clients=CLIENTS),
        users=users,
        labels=(users + generator.integers(2, size=len(users))) % CLASSES,
        inputs=lambda records: inputs[records],
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Source:
    """12 people to train on, 4 others to test on."""
    generator, path = np.random.default_rng(0), tmp_path_factory.mktemp("people") / "people.npz"
    held = {}
    for part, first, count in (("train", 0, 12), ("test", 12, 4)):
        labels = np.repeat(np.arange(first, first + count), 3)
        images = generator.integers(256, size=(len(labels), 8, 8)).astype(np.uint8)
        held |= {f"x_{part}": images, f"y_{part}": labels, f"users_{part}": np.array([f"p{one:02}" for one in labels])}
    np.savez(path, **held)
    return open_source(f"npz:{path}", owner_key=bytes(32), open_set=True, classes=[f"c{one:02}" for one in range(16)])
