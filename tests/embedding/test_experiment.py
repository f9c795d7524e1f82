"""What a training of embeddings refuses before it reads any image, and the plan that it comes to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sfumato._checks import SfumatoError
from sfumato.embedding import EmbeddingExperiment

SOURCE: Any = SimpleNamespace(users=400, size=28, train=SimpleNamespace(users=np.arange(400).astype(str)))


@pytest.mark.parametrize("given", [{"order": "position"}, {"order": "time"}, {"start": "0"}, {"period": "1d"}])
def test_an_order_of_records_is_refused_where_users_take_part(given: dict[str, str]):
    (name,) = given
    experiment = EmbeddingExperiment(noise_multiplier=1.0, steps=2, batch_size=40, participation="fixed-order", **given)
    with pytest.raises(
        SfumatoError, match=rf"{name}=.*have neither a place in the file nor one time.*leave {name} out"
    ):
        experiment.decide(SOURCE)


def test_a_drift_of_records_is_refused_where_users_take_part():
    experiment = EmbeddingExperiment(noise_multiplier=1.0, steps=2, batch_size=40, participation="drifting")
    with pytest.raises(SfumatoError, match=r"goes by each record's own group, and here users take part.*take poisson"):
        experiment.decide(SOURCE)


def test_users_may_take_part_in_a_secret_order():
    experiment = EmbeddingExperiment(
        noise_multiplier=4.0, steps=4, batch_size=200, mechanism="tree", participation="fixed-order", order="random"
    )
    plan = experiment.decide(SOURCE).plan
    assert (plan.participation.assignment, plan.users, plan.unit.drawn) == ("random", 400, "clients")


def test_a_quantile_of_few_clients_is_refused_by_what_can_be_changed():
    asked = {"epsilon": 8.0, "steps": 10, "batch_size": 256, "quantile": 0.5}
    with pytest.raises(
        SfumatoError, match=r"count of 4 clients is released too, with noise of 0\.2; give more clients"
    ):
        EmbeddingExperiment(clients=4, **asked).decide(SOURCE)
    assert EmbeddingExperiment(clients=128, **asked).decide(SOURCE).plan.epsilon() <= 8
