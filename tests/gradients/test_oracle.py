"""The truth itself, against finite differences in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.gradients import oracle
from sfumato.gradients.examples import call


def frozen_batch_norm():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 1), nn.Flatten(2))
    nn.init.uniform_(model[1].running_var, 0.5, 2)
    nn.init.normal_(model[1].running_mean)
    return nn.Sequential(model.eval(), Mean())


class Mean(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).mean(1)


MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(50, 4)),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 4)
    ),
    "frozen batch norm": frozen_batch_norm,
}


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_oracle_against_finite_differences(name, views):
    model = MODELS[name]().double()
    x = torch.randn(1, *([views] if views > 1 else []), 2, 5, 5, dtype=torch.float64)
    y = torch.tensor([2])
    gradients, norms, losses = oracle.clipped_sum(model, F.cross_entropy, x, y, max_norm=1e9, views=views)
    rows = x[0] if views > 1 else x
    state = {key: value.detach() for key, value in model.named_parameters()}

    def loss_at(key, moved):
        return F.cross_entropy(call(model, {**state, key: moved}, rows), y.expand(views))

    assert losses.item() == pytest.approx(loss_at("", torch.zeros(())).item())
    for key, value in gradients.items():
        for element in torch.randperm(value.numel())[:6].tolist():
            step = torch.zeros(value.numel(), dtype=torch.float64)
            step[element] = 1e-5
            ahead, behind = (loss_at(key, state[key] + sign * step.view(value.shape)) for sign in (1, -1))
            slope = (ahead - behind) / 2e-5
            assert slope.item() == pytest.approx(value.flatten()[element].item(), rel=1e-5, abs=1e-8)
    clipped, *_ = oracle.clipped_sum(model, F.cross_entropy, x, y, max_norm=norms.item() / 3, views=views)
    for key, value in gradients.items():
        torch.testing.assert_close(clipped[key], value / 3)
