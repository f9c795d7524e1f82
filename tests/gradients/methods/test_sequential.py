"""Models that torch cannot vectorise take the slow path, with a warning, and are just as exact."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.gradients import ClippedGradient


class Branching(nn.Module):
    """Branches on a value read from the example."""

    def __init__(self, width=4):
        super().__init__()
        self.left, self.right = nn.Linear(width, 3), nn.Linear(width, 3)

    def forward(self, x):
        return self.left(x) if float(x.detach().sum()) > 0 else self.right(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 3, batch_first=True), Branching(3)

    def forward(self, x):
        return self.head(self.cell(x.unflatten(1, (2, 2)))[0][:, -1])


def test_a_recurrent_model_keeps_its_own_parameters():
    model = Recurrent()
    held = [id(parameter) for parameter in model.cell._flat_weights]
    with pytest.warns(RuntimeWarning, match="one at a time"):
        ClippedGradient(model, F.cross_entropy)(torch.randn(2, 4), torch.arange(2))
    assert held == [id(parameter) for parameter in model.cell._flat_weights]


class Wandering(nn.Module):
    """Reads a number from the example, which cannot be vectorised."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.first(x) * float(x.detach().abs().amax()))


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("model", [Branching, Wandering])
def test_the_slow_path_is_exact(compare, model, views):
    x = torch.randn(5, *([views] if views > 1 else []), 4, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="one at a time"):
        gradient = compare(model().double(), x, torch.arange(5) % 3, views=views)
    assert model is Branching or gradient.unused_parameters == ()


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_an_example_whose_loss_alone_is_not_finite_adds_zero_on_the_slow_path(compare, bad):
    """Its gradient is finite and small; only the loss is not finite."""

    def loss(outputs, targets):
        return (outputs.square().sum(1) + targets).mean()

    x, y = torch.randn(3, 4).double(), torch.tensor([0, bad, 0]).double()
    model = Branching().double()
    with pytest.warns(RuntimeWarning, match="one at a time"):
        gradient = compare(model, x, y, loss=loss)
    total, others = gradient(x, y), gradient(x[[0, 2]], y[[0, 2]])
    assert total.norms.isfinite().all()
    assert total.losses.isfinite().tolist() == [True, False, True]
    assert all(torch.equal(value, others.gradients[name]) for name, value in total.gradients.items())


def test_a_bad_example_adds_zero_on_the_slow_path():
    x = torch.randn(3, 4)
    x[1, 0] = float("nan")
    gradient = ClippedGradient(Branching(), F.cross_entropy)
    with pytest.warns(RuntimeWarning, match="one at a time"):
        total = gradient(x, torch.arange(3))
    assert total.norms.isnan().tolist() == [False, True, False]
    alone = gradient(x[[0, 2]], torch.tensor([0, 2]))
    assert all(torch.equal(value, alone.gradients[name]) for name, value in total.gradients.items())
