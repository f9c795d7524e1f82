"""A small backbone with made-up records of users; and people in groups, some to train on and others to test on."""

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import Source, open_source
from sfumato.experiment.client_choices import LocalSGD
from sfumato.training.clients import Rounds, assign_randomly
from sfumato.training.user_records import UserRecords

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
    return Rounds(
        assign=assign_randomly(USERS, clients=CLIENTS),
        users=UserRecords.from_numbers(users, np.arange(USERS), None),
        labels=(users + generator.integers(2, size=len(users))) % CLASSES,
        inputs=lambda records: inputs[records],
    )


@pytest.fixture(scope="session")
def people(tmp_path_factory) -> str:
    """24 people to train on, of two classes each, in four groups; 10 others, of other classes, to test on."""
    generator = np.random.default_rng(0)
    faces = generator.random((18, 8, 8))

    def part(users, classes, first):
        rows = [
            (np.clip(faces[c] + 0.1 * generator.standard_normal((8, 8)), 0, 1), c, f"p{first + u:02}", f"g{u % 4}")
            for u in range(users)
            for c in generator.choice(classes, 2, replace=False)
            for _ in range(3)
        ]
        images, labels, names, groups = (np.array(column) for column in zip(*rows, strict=True))
        return (255 * images).astype(np.uint8), labels, names, groups

    names = ("x", "y", "users", "groups")
    train, test = part(USERS, np.arange(10), 0), part(10, np.arange(10, 18), USERS)
    path = tmp_path_factory.mktemp("people") / "people.npz"
    np.savez(
        path,
        **{f"{name}_train": column for name, column in zip(names, train, strict=True)},
        **{f"{name}_test": column for name, column in zip(names, test, strict=True)},
    )
    return f"npz:{path}"


@pytest.fixture(scope="session")
def source(people) -> Source:
    return open_source(people, owner_key=bytes(32), open_set=True)
