"""From choices to a job: threads, and the check of the engine."""

import joblib
import pytest
import torch

from sfumato import SfumatoError, train
from sfumato.experiment import Settings
from sfumato.gradients import clipping
from sfumato.training.preparation.prepare import default_threads, prepare


@pytest.fixture(autouse=True)
def models_are_checked_once() -> None:
    """Here each time."""


def test_threads_are_those_that_the_container_allows(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    assert default_threads() == 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert default_threads() == 1


def test_an_engine_that_is_wrong_is_found_before_a_run_begins(spots, plan, tmp_path, monkeypatch):
    """Whatever is wrong with it: here norms that are too small by a tenth."""
    squares = clipping.squared_lengths
    monkeypatch.setattr(clipping, "squared_lengths", lambda values: 0.81 * squares(values))
    with pytest.raises(SfumatoError, match="do not train with this model as it is"):
        train("cnn", spots, plan, directory=tmp_path / "run", learning_rate=0.5, threads=1, device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("asked", [{"threads": 0}, {"micro_batch": 0}, {"device": "tpu"}], ids=str)
def test_what_no_machine_has_is_refused_however_a_run_is_prepared(spots, plan, asked):
    (name,) = asked
    settings = Settings(model="linear", optimizer="sgd", learning_rate=0.5)
    with pytest.raises(SfumatoError, match=f"^{name} must be"):
        prepare(None, spots, plan, settings, **asked)
