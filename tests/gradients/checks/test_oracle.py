"""The oracle against finite differences in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.gradients.checks import oracle
from sfumato.gradients.examples import call_model


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
        return F.cross_entropy(call_model(model, {**state, key: moved}, rows), y.expand(views))

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


def test_frozen_norms_of_rows_with_strides():
    """For these, torch's own backward reads beyond the weights; finite differences do not."""

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.gains = nn.Parameter(torch.randn(6, 2).double())
            self.register_buffer("statistics", torch.rand(6, 2).double() + 0.5)

        def forward(self, x):
            x = (x * self.gains.sum(1)).reshape(-1, 6)
            mean, variance = self.statistics.unbind(1)
            return F.batch_norm(x, mean, variance, *self.gains.unbind(1)).sin().unflatten(0, (-1, 4)).sum(1)

    model, x, y = Rows(), torch.randn(3, 4, 6).double(), torch.arange(3)
    found, _, _ = oracle.clipped_sum(model, F.cross_entropy, x, y, max_norm=1e9)
    parameter, direction = model.gains, torch.randn(6, 2).double()
    losses = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            parameter += step * direction
            losses.append(sum(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(3)))
            parameter -= step * direction
    slope = (losses[0] - losses[1]) / 2e-6
    torch.testing.assert_close((found["gains"] * direction).sum(), slope, rtol=1e-6, atol=1e-8)
