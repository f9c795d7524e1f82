"""No choice of a training of embeddings is taken and ignored."""

from functools import partial

import numpy as np
import pytest
import torch

import sfumato
from tests.unread import left_by, refused

pytestmark = pytest.mark.usefixtures("one_key")

CHANGED = {
    "clients": 3,
    "grouping": "group",
    "client_rate": 0.1,
    "client_momentum": 0.5,
    "head_scale": 7.0,
    "client_epochs": 2,
    "client_batch_size": 2,
    "client_examples": 3,
    "shuffle_buffer": 2,
    "client_loss": "triplet",
    "client_head": "random",
    "client_temperature": 0.7,
    "reconstruction_steps": 1,
    "quantile": 0.5,
    "max_norm": 0.02,
    "per_user": 2,
    "far": 0.1,
    "dimension": 9,
    "learning_rate": 0.3,
    "optimizer": "adam",
    "ema": 0.1,
    "steps": 3,
    "momentum": 0.1,
    "weight_decay": 0.1,
    "warmup": 2,
    "schedule": "cosine",
}
"""Of each choice a value that is no default."""
RECORDED = {"far", "grouping"}
"""What names or measures something, and need not move a weight."""


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    place, numbers = tmp_path_factory.mktemp("people") / "people.npz", np.random.default_rng(0)
    images = numbers.integers(0, 255, (120, 8, 8, 1), dtype=np.uint8)
    users, kinds = np.arange(120) % 24, np.arange(120) % 5
    parts = {
        "x_train": images[:100],
        "y_train": kinds[:100],
        "users_train": users[:100],
        "groups_train": users[:100] // 6,
    }
    rest = {"x_test": images[100:], "y_test": kinds[100:], "users_test": 50 + users[100:], "groups_test": users[100:]}
    np.savez(place, **parts, **rest)
    return str(place)


def trained(people, place, method, **more):
    """By an owner who has no other run, whose epsilons would be added up."""
    given = {"method": method, "model": "linear", "seed": 1, "steps": 2, "dimension": 8, "learning_rate": 0.5}
    given |= {"batch_size": 12, "noise_multiplier": 1.0} | ({} if method == "dpsgd" else {"max_norm": 0.01}) | more
    source = sfumato.open_source(f"npz:{people}", owner_key=bytes(32), public=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", f"{place}-home")
        sfumato.embed(source, **given, directory=place, threads=1, device="cpu")


@pytest.mark.parametrize("method", ["fedemb", pytest.param("dpsgd", marks=pytest.mark.slow)])
def test_a_choice_that_is_given_changes_the_result_or_is_refused(people, tmp_path, method):
    train = partial(trained, people, method=method)
    for name, words in refused(train, CHANGED, tmp_path, recorded=RECORDED).items():
        assert name in words, f"{name} is refused without being named: {words}"
    train(tmp_path / "again")
    (plain, record), (again, same) = left_by(tmp_path / "plain"), left_by(tmp_path / "again")
    assert all(torch.equal(plain[one], again[one]) for one in plain)
    assert record == same
