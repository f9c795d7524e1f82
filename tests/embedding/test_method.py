"""Which method is taken by rule, what it is decided by, and what is refused beside one that begins at features."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sfumato import SfumatoError
from sfumato.embedding import EmbeddingExperiment, method
from sfumato.privacy.planning.target import Epsilon


def source(users: int, each: int = 10) -> Any:
    return SimpleNamespace(users=users, examples=users * each, size=32, train=SimpleNamespace(users=[]))


@pytest.mark.parametrize(
    ("users", "epsilon", "chosen"),
    [
        (30, 8.0, "untrained"),
        (158, 8.0, "whiten"),
        (158, 1.0, "untrained"),
        (60, 3.0, "untrained"),
        (158, None, "whiten"),
        (99_999, 8.0, "whiten"),
        (100_000, 8.0, "fedemb"),
    ],
)
def test_the_number_of_people_and_the_budget_decide(users, epsilon, chosen):
    found, reasons = method.resolve_method(EmbeddingExperiment(epsilon=epsilon), source(users))
    assert found.chosen == chosen
    assert chosen in reasons[0]
    assert "people on, a network from 100,000" in reasons[0]
    assert (found.epsilon is None) == (chosen == "untrained" or epsilon is None)


def test_from_the_number_that_it_names_whitening_is_taken():
    least = method.forecast(Epsilon(8.0), None, 100).whiten
    assert 30 < least < 60
    for users, chosen in ((least - 1, "untrained"), (least, "whiten")):
        assert method.resolve_method(EmbeddingExperiment(epsilon=8.0), source(users))[0].chosen == chosen


@pytest.mark.parametrize(
    "asked",
    [{"model": "lenet"}, {"grouping": "fixed"}, {"learning_rate": 0.1}],
    ids=str,
)
def test_whoever_chooses_how_to_train_has_chosen_to_train_a_network(asked):
    experiment = EmbeddingExperiment(**asked)
    assert method.resolve_method(experiment, source(30)) == (experiment, [])
    assert experiment.chosen == "fedemb"


def test_a_method_that_is_asked_for_is_taken():
    experiment = EmbeddingExperiment(method="whiten", epsilon=8.0)
    assert method.resolve_method(experiment, source(5)) == (experiment, [])
    decided = method.decide_whitening(experiment, source(5))
    assert any("worth its budget from 41 people on" in line for line in decided.reasons)
    assert not any("note" in line for line in method.decide_whitening(experiment, source(158)).reasons)


@pytest.mark.parametrize("name", ["clients", "steps", "quantile"])
def test_what_is_no_choice_of_theirs_is_refused(name):
    with pytest.raises(SfumatoError, match=rf"method whiten takes one step over all users.*{name}=.*use method fedemb"):
        EmbeddingExperiment(method="whiten", **{name: 1}).refuse_others()


def test_a_budget_is_refused_where_no_private_data_are_used():
    with pytest.raises(
        SfumatoError, match=r"method untrained trains nothing and uses no private data.*epsilon=3.0 is given"
    ):
        EmbeddingExperiment(method="untrained", epsilon=3.0).refuse_others()
