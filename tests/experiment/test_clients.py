"""What a training of embeddings refuses before it reads any image, which method it takes by rule, and its plan."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sfumato._checks import SfumatoError
from sfumato.experiment import EmbeddingExperiment
from sfumato.experiment.client_choices import Clients

SOURCE: Any = SimpleNamespace(users=400, size=28, train=SimpleNamespace(users=np.arange(400).astype(str)))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (
            {"participation": "fixed-order", "order": "position"},
            r"order must be one of random; got 'position'; leave it out: users have no place in a file",
        ),
        ({"participation": "drifting"}, r"participation must be one of poisson, .*truncated; got 'drifting'"),
    ],
    ids=["order", "drift"],
)
def test_orders_of_records_are_refused_where_users_take_part(choices, words):
    experiment = EmbeddingExperiment(noise_multiplier=1.0, steps=2, batch_size=40, **choices)
    with pytest.raises(SfumatoError, match=words):
        experiment.decide(SOURCE)


def test_a_quantile_of_few_clients_is_refused_by_what_can_be_changed():
    asked = {"epsilon": 8.0, "steps": 10, "batch_size": 256, "quantile": 0.5}
    with pytest.raises(
        SfumatoError, match=r"count of 4 clients is also released, with noise of 0\.2; give more clients"
    ):
        EmbeddingExperiment(clients=4, **asked).decide(SOURCE)
    assert EmbeddingExperiment(clients=128, **asked).decide(SOURCE).plan.epsilon() <= 8


def test_heads_begin_at_prototypes_by_rule_and_at_random_as_in_the_paper_where_that_is_asked_for():
    def local(**asked):
        found = EmbeddingExperiment(**asked).local()
        return found.first_head, found.temperature, found.head_scale

    assert local() == local(client_head="prototype") == local(method="fedemb-noiseless") == ("prototype", 0.125, 1.0)
    assert local(head_scale=20.0, client_temperature=0.5) == ("prototype", 0.5, 20.0)
    assert local(client_head="random") == ("random", None, 100.0)
    assert local(client_head="random", client_temperature=0.1) == ("random", 0.1, 100.0)
    for others in ({"method": "fedavg"}, {"method": "dpsgd"}, {"method": "central"}, {"client_loss": "triplet"}):
        assert local(**others) == local(client_head="random", **others) == ("random", None, 100.0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"client_head": "zero"}, "client_head must be one of random, prototype"),
        (
            {"client_head": "prototype", "method": "fedavg"},
            "method fedavg does not use client_head, but client_head=prototype is given",
        ),
        ({"client_head": "prototype", "client_loss": "binary"}, "fedemb with the loss binary does not use client_head"),
        ({"client_temperature": 1.0, "method": "dpsgd"}, "client_temperature=1.0.*leave client_temperature out"),
        ({"client_temperature": -1.0}, "client_temperature must be positive"),
    ],
)
def test_what_is_asked_of_heads_that_clients_do_not_have_is_refused_by_the_option_s_name(asked, words):
    with pytest.raises(SfumatoError, match=words):
        EmbeddingExperiment(**asked).check_source()


def test_a_record_says_where_heads_begin():
    for asked, first in (({"client_head": "random"}, "random"), ({}, "prototype")):
        clients = EmbeddingExperiment(**asked).clients_of(count=3)
        assert clients.to_dict()["local"]["first_head"] == first
        assert Clients.from_dict(clients.to_dict()) == clients


def source(users: int, each: int = 10) -> Any:
    return SimpleNamespace(users=users, examples=users * each, size=32, train=SimpleNamespace(users=[]))


@pytest.mark.parametrize(
    ("users", "epsilon", "chosen"),
    [(30, 8.0, "untrained"), (99_999, None, "untrained"), (99_999, 200.0, "untrained"), (100_000, 8.0, "fedemb")],
)
def test_the_number_of_people_decides(users, epsilon, chosen):
    found, (reason,) = EmbeddingExperiment(epsilon=epsilon).with_method(source(users))
    assert found.chosen == chosen
    assert f"method {chosen} (by rule: {users:,} people" in reason
    assert found.epsilon == (None if chosen == "untrained" else epsilon)


@pytest.mark.parametrize("asked", [{"model": "lenet"}, {"grouping": "fixed"}, {"learning_rate": 0.1}], ids=str)
def test_whoever_chooses_how_to_train_has_chosen_to_train_a_network(asked):
    experiment = EmbeddingExperiment(**asked)
    assert experiment.with_method(source(30)) == (experiment, [])
    assert experiment.chosen == "fedemb"


def test_a_method_that_is_asked_for_is_taken():
    experiment = EmbeddingExperiment(method="untrained")
    assert experiment.with_method(source(200_000)) == (experiment, [])


def test_a_budget_is_refused_where_no_private_data_are_used():
    with pytest.raises(SfumatoError, match=r"method untrained does not use epsilon, but epsilon=3.0 is given"):
        EmbeddingExperiment(method="untrained", epsilon=3.0).refuse_others()
