"""Whole runs whose sums are recorded: the same weights as without."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from sfumato import train
from tests.recorders import recording

RUNS = {
    "cnn": {"views": 1},
    "wrn-10-1": {"views": 2, "shift": 1, "flip": True},
}


def weights(directory, model, options):
    train(
        model,
        "digits",
        directory=str(directory),
        batch_size=40,
        micro_batch=16,
        steps=6,
        noise_multiplier=2.0,
        delta=1e-5,
        seed=0,
        **options,
    )
    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize("model", RUNS)
def test_a_run_gives_the_same_weights_whether_its_sums_are_recorded_or_not(model, monkeypatch, tmp_path):
    with recording(monkeypatch) as graphs:
        found = weights(tmp_path / "recorded", model, RUNS[model])
        assert graphs
        monkeypatch.setattr("sfumato._devices.can_capture", lambda device: False)
        expected = weights(tmp_path / "plain", model, RUNS[model])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
