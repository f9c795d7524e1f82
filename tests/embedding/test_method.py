"""Which method is taken by rule, what it is decided by, and what is refused beside one that begins at features."""

from types import SimpleNamespace
from typing import Any

import pytest

from sfumato import SfumatoError
from sfumato.embedding import EmbeddingExperiment, method


def source(users: int, each: int = 10) -> Any:
    return SimpleNamespace(users=users, examples=users * each, size=32, train=SimpleNamespace(users=[]))


@pytest.mark.parametrize(
    ("users", "epsilon", "chosen"),
    [(30, 8.0, "untrained"), (99_999, None, "untrained"), (99_999, 200.0, "untrained"), (100_000, 8.0, "fedemb")],
)
def test_the_number_of_people_decides(users, epsilon, chosen):
    found, (reason,) = method.resolve_method(EmbeddingExperiment(epsilon=epsilon), source(users))
    assert found.chosen == chosen
    assert f"method {chosen} (by rule: {users:,} people" in reason
    assert found.epsilon == (None if chosen == "untrained" else epsilon)


@pytest.mark.parametrize("asked", [{"model": "lenet"}, {"grouping": "fixed"}, {"learning_rate": 0.1}], ids=str)
def test_whoever_chooses_how_to_train_has_chosen_to_train_a_network(asked):
    experiment = EmbeddingExperiment(**asked)
    assert method.resolve_method(experiment, source(30)) == (experiment, [])
    assert experiment.chosen == "fedemb"


def test_a_method_that_is_asked_for_is_taken():
    experiment = EmbeddingExperiment(method="untrained")
    assert method.resolve_method(experiment, source(200_000)) == (experiment, [])


def test_a_budget_is_refused_where_no_private_data_are_used():
    with pytest.raises(
        SfumatoError, match=r"method untrained trains nothing and uses no private data.*epsilon=3.0 is given"
    ):
        EmbeddingExperiment(method="untrained", epsilon=3.0).refuse_others()
