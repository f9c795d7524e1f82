"""Records that lie on the device: the same inputs, and the same run, as of those that are read in each step."""

from dataclasses import replace
from itertools import zip_longest

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sfumato import PrivacyPlan, RunKey, train
from sfumato.experiment.settings import Settings
from sfumato.privacy import FixedClipping, Gaussian, TruncatedPoisson, User
from sfumato.randomness import NoiseState
from sfumato.training import inputs, pretraining
from sfumato.training.inputs import Inputs
from sfumato.training.job import PublicTraining
from sfumato.training.preparation.prepare import prepare
from sfumato.training.steps import PublicSteps, UserInputs
from tests.recorders import recording

KEY = RunKey.from_seed(0)
OPTIONS = {"optimizer": "sgd", "learning_rate": 1.0, "seed": 0}
MODELS = {
    "images": {"model": "cnn"},
    "views": {"model": "cnn", "views": 3, "shift": 2, "flip": True},
    "zoom": {"model": "cnn", "views": 2, "zoom": 1.5},
    "crops": {"model": "cnn", "views": 2, "crop_area": 0.5},
    "dropout": {"model": "module"},
}


@pytest.fixture
def on_a_device(monkeypatch):
    """Records lie where they would on a device, though there is none."""

    return lambda: monkeypatch.setattr(inputs, "fits_on_device", lambda records, device: True)


def same(one, other) -> None:
    for piece, again in zip_longest(one, other):
        for value, copied in zip(piece, again, strict=True):
            assert value is copied is None or torch.equal(value, copied)


@pytest.mark.parametrize("model", MODELS)
def test_the_inputs_are_those_of_records_that_are_read(spots, plan, model, on_a_device):
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4)) if model == "dropout" else None
    job = prepare(dropping, spots, plan, Settings(**MODELS[model], **OPTIONS), micro_batch=16)
    read = list(Inputs(job).micro_batches(KEY, 4, np.arange(0, 200, 3)))
    on_a_device()
    lying = Inputs(job)
    assert lying._held is not None
    same(read, lying.micro_batches(KEY, 4, np.arange(0, 200, 3)))


def test_so_they_are_of_whole_users(spots, on_a_device):
    people = np.array([f"person {number % 23}" for number in range(200)])
    source = replace(spots, train=replace(spots.train, users=people), users=23)
    of_users = {"examples": 23, "unit": User()}
    plan = PrivacyPlan.calibrate(batch_size=20, steps=2, noise_multiplier=2.0, delta=1e-3, **of_users)
    job = prepare(None, source, plan, Settings(**MODELS["views"], **OPTIONS), threads=1, micro_batch=30)
    read = list(UserInputs(job).micro_batches(KEY, 1, np.arange(3, 20)))
    on_a_device()
    same(read, UserInputs(job).micro_batches(KEY, 1, np.arange(3, 20)))


def test_so_they_are_in_steps_of_one_shape(spots, on_a_device):
    rule = TruncatedPoisson(batch_size=20, largest=28)
    known = {"population": 200, "mechanism": Gaussian(noise_multiplier=2.0), "steps": 6, "delta": 1e-3}
    plan = PrivacyPlan(participation=rule, clipping=FixedClipping(0.5), adjacency="zero-out", **known)
    job = prepare(None, spots, plan, Settings(**MODELS["views"], **OPTIONS), micro_batch=8)
    read = list(Inputs(job).micro_batches(KEY, 2, np.arange(0, 200, 17)))
    on_a_device()
    same(read, Inputs(job).micro_batches(KEY, 2, np.arange(0, 200, 17)))


def test_so_they_are_in_training_without_privacy(spots, on_a_device):
    parts = [
        replace(part, codes=np.full((len(part), 32), place)) for place, part in enumerate((spots.train, spots.test))
    ]
    shown = replace(spots, public=True, stored_digest="f" * 64, pixels="e" * 64, train=parts[0], test=parts[1])
    training = PublicTraining(settings=Settings(**MODELS["views"], **OPTIONS), steps=3, batch_size=16)

    def gradient():
        return PublicSteps(pretraining.prepare(shown, training, threads=1), KEY)(0, NoiseState(step=0))[0]

    read = gradient()
    on_a_device()
    for name, value in gradient().items():
        assert torch.equal(value, read[name])


def weights(directory, source):
    choices = {"views": 2, "shift": 1, "flip": True, "noise_multiplier": 2.0, "delta": 1e-5, "seed": 0, "keep": 0}
    train("cnn", source, directory=str(directory), batch_size=24, micro_batch=8, steps=5, **choices)
    return load_file(directory / "model.safetensors")


def test_a_run_gives_the_same_weights_whether_its_sums_are_recorded_or_not(arrays, monkeypatch, tmp_path):
    with recording(monkeypatch) as graphs:
        found = weights(tmp_path / "recorded", arrays)
        assert graphs
        monkeypatch.setattr("sfumato._devices.can_capture", lambda device: False)
        expected = weights(tmp_path / "plain", arrays)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
