"""Whole runs whose sums are recorded: the same weights as without."""

import torch
from safetensors.torch import load_file

from sfumato import train
from tests.recorders import recording


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
