"""No choice of a training of embeddings is taken and ignored."""

from functools import partial

import pytest
import torch

import sfumato
from tests.training.clients.jobs import LINEAR, MACHINE
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


def trained(source, place, method, **more):
    """By an owner who has no other run, whose epsilons would be added up."""
    choices = {**LINEAR, "seed": 1, "steps": 2, "learning_rate": 0.5, "batch_size": 12, "noise_multiplier": 1.0}
    choices |= {"method": method} | ({} if method == "dpsgd" else {"max_norm": 0.01}) | more
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", f"{place}-home")
        sfumato.embed(source, **choices, **MACHINE, directory=place)


@pytest.mark.parametrize("method", ["fedemb", pytest.param("dpsgd", marks=pytest.mark.slow)])
def test_a_choice_that_is_given_changes_the_result_or_is_refused(source, tmp_path, method):
    train = partial(trained, source, method=method)
    for name, words in refused(train, CHANGED, tmp_path, recorded=RECORDED).items():
        assert name in words, f"{name} is refused without being named: {words}"
    train(tmp_path / "again")
    (plain, record), (again, same) = left_by(tmp_path / "plain"), left_by(tmp_path / "again")
    assert all(torch.equal(plain[one], again[one]) for one in plain)
    assert record == same
