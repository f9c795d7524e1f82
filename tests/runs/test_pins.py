"""What a run records of its machine, and the digest of what a model computes."""

import torch
from torch import nn

from sfumato.runs import pins


def test_a_variable_that_changes_rounding_is_recorded(monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    before = pins.environment()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert pins.environment() == before | {"variable MKL_CBWR": "COMPATIBLE"}


def test_a_models_digest_is_that_of_what_it_computes_whatever_its_weights():
    rows = torch.linspace(-1, 1, 6).reshape(2, 3)

    def digest(activation: nn.Module) -> str:
        return pins.model_digest(nn.Sequential(nn.Linear(3, 2), activation), rows)

    assert digest(nn.ReLU()) == digest(nn.ReLU())
    assert digest(nn.ReLU()) != digest(nn.Tanh())
