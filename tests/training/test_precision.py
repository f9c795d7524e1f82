"""Steps computed in half precision: what is promised stays, and another run's noise is not theirs."""

import json
from unittest import mock

import pytest
import torch

from sfumato import ClippedGradient, PrivacyPlan, load, train
from sfumato._checks import SfumatoError
from sfumato.experiment.settings import Settings
from sfumato.runs.directory import RunDirectory
from sfumato.training.preparation import resume
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import Start
from sfumato.training.step import PrivateStep

PLAN = PrivacyPlan.calibrate(examples=200, batch_size=50, steps=3, noise_multiplier=2.0, delta=1e-3)


def weights_of(run):
    return load(run.directory).module.state_dict()


@pytest.fixture(scope="module")
def runs(tmp_path_factory, spots, options):
    place = tmp_path_factory.mktemp("precision")
    known = {**options, "source": spots, "plan": PLAN, "averaging": None}
    return {
        str(name): train("cnn", directory=place / str(name), **known, precision=name)
        for name in (None, "float32", "bfloat16")
    }


def settings_of(run):
    return json.loads((run.directory / "settings.json").read_text("utf-8"))


def test_it_is_recorded_and_float32_by_default(runs):
    recorded = {name: settings_of(run)["performance"]["precision"] for name, run in runs.items()}
    assert recorded == {"None": "float32", "float32": "float32", "bfloat16": "bfloat16"}
    weights = {name: weights_of(run) for name, run in runs.items()}
    for name, value in weights["float32"].items():
        assert torch.equal(weights["None"][name], value)
    assert any(not torch.equal(weights["bfloat16"][name], value) for name, value in weights["float32"].items())


def test_the_promise_is_the_same(runs):
    assert runs["bfloat16"].statement.sentence == runs["float32"].statement.sentence


def test_the_model_stays_in_float32(runs):
    assert {value.dtype for value in weights_of(runs["bfloat16"]).values()} == {torch.float32}


def test_under_one_seed_the_two_have_different_noise(spots):
    """Their sums differ, so noise in common would be gone from the difference of the models."""
    settings = Settings(model="linear", learning_rate=1.0, seed=7)
    jobs = [prepare(None, spots, PLAN, settings, threads=1, precision=name) for name in (None, "float32", "bfloat16")]
    secrets = [job.key._secret for job in jobs]
    assert secrets[0] == secrets[1] != secrets[2]


def test_the_step_is_computed_in_it(spots, options, tmp_path, monkeypatch):
    met, right = set(), ClippedGradient.__call__

    def noted(self, *given, **named):
        met.add((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return right(self, *given, **named)

    monkeypatch.setattr(ClippedGradient, "__call__", noted)
    train("cnn", spots, PLAN, directory=tmp_path / "run", **options, precision="bfloat16")
    assert (True, torch.bfloat16) in met  # the others are those of the self-check
    assert not torch.is_autocast_enabled("cpu")


def test_another_is_refused(spots, options, tmp_path):
    with pytest.raises(SfumatoError, match="precision must be one of float32, bfloat16; got 'fp16'"):
        train("cnn", spots, PLAN, directory=tmp_path / "run", **options, precision="fp16")
    assert not (tmp_path / "run").exists()


def test_a_run_whose_record_was_edited_does_not_go_on_in_another(spots, options, tmp_path, monkeypatch):
    """Two sums with one noise: their difference would be private data without any."""
    given = {**options, "directory": tmp_path / "run"}
    with monkeypatch.context() as patch:
        patch.setattr(PrivateStep, "__call__", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train("cnn", spots, PLAN, **given, precision="bfloat16")
    record = json.loads((tmp_path / "run" / "settings.json").read_text("utf-8"))
    record["performance"]["precision"] = "float32"
    (tmp_path / "run" / "settings.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(SfumatoError, match="does not match this run, in: settings commitment"):
        train("cnn", spots, PLAN, **given)


def test_a_run_goes_on_in_the_precision_that_it_began_with(spots, tmp_path):
    run, settings = RunDirectory(tmp_path / "run"), Settings(model="linear", learning_rate=1.0)
    resume.begin(prepare(None, spots, PLAN, settings, Start.for_run(run, threads=1, precision="bfloat16")), run)
    assert prepare(None, spots, PLAN, settings, Start.for_run(run)).performance.precision == "bfloat16"
