"""What the body of a loop of one's own did to the model does not get into what is kept."""

import pytest
import torch
from torch import nn

import sfumato


def begun(directory):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(60, 6, generator=generator), torch.arange(60) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    how = {"noise_multiplier": 1.0, "batch_size": 20, "steps": 4, "seed": 1, "threads": 1}
    return sfumato.private_steps(model, optimizer, data, directory=directory, **how), model


@pytest.mark.parametrize("changes", [lambda model: model[0].weight.data.sub_(1.0), lambda model: None])
def test_a_loop_that_is_left_goes_on_from_what_its_steps_made(tmp_path, changes):
    """Whether or not the body has moved the weights before its `break`: then the step is taken again."""
    run, model = begun(tmp_path / "cut")
    for step in run:
        if step.number == 2:
            changes(model)
            break
    found = []
    for name in ("cut", "whole"):
        run, model = begun(tmp_path / name)
        assert len(list(run)) >= 2
        found.append(model.state_dict())
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name
