"""Models that use their parameters in unusual ways, and losses of other kinds, against the oracle."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient


def tokens(views, *shape):
    return torch.randn(*((4,) if views == 1 else (4, views)), *shape).double()


class Bare(nn.Module):
    """A class token, positions, a scale of each channel, and slopes."""

    def __init__(self, slopes):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.places = nn.Parameter(torch.randn(1, 4, 4))
        self.scale = nn.Parameter(torch.full((4,), 0.1))
        self.slope, self.map = nn.PReLU(slopes), nn.Linear(4, 4)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        x = x + self.scale * self.map(x)
        return self.slope(x.transpose(1, 2)).sin().sum(2)


@pytest.mark.parametrize("slopes", [1, 4])
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("frozen", [(), ("token", "map.weight"), ("places", "scale", "slope.weight")])
def test_bare_parameters_and_slopes(compare, slopes, views, frozen):
    model = Bare(slopes).double()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    compare(model, tokens(views, 3, 4), torch.arange(4), views=views)


class Adapted(nn.Module):
    """A frozen layer with a trained correction of low rank, beside it or merged into its weight."""

    def __init__(self, layer, rank, merged):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.weight[0].numel()))
        self.up = nn.Parameter(torch.randn(len(layer.weight), rank))
        self.merged = merged

    def forward(self, x):
        if self.merged:
            return F.linear(x, self.layer.weight + 0.5 * self.up @ self.down, self.layer.bias)
        return self.layer(x) + 0.5 * F.linear(F.linear(x, self.down), self.up)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("views", [1, 2])
def test_adapters_of_low_rank(compare, merged, views):
    first, last = Adapted(nn.Linear(5, 9), 2, merged), Adapted(nn.Linear(9, 4), 2, merged)
    model = nn.Sequential(first, nn.Tanh(), last, nn.Flatten(1), nn.Linear(12, 4).requires_grad_(False))
    gradient = compare(model.double(), tokens(views, 3, 5), torch.arange(4), views=views)
    assert not gradient._batches.latest.expanded


def test_a_weight_that_a_hook_writes_is_refused_by_name():
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(9, 4))
    with pytest.raises(SfumatoError, match="'weight'"):
        ClippedGradient(layer, F.cross_entropy)(torch.randn(4, 9), torch.arange(4))


class ByHand(nn.Module):
    """Matrix products outside of layers."""

    def __init__(self, how):
        super().__init__()
        self.weight, self.how = nn.Parameter(torch.randn(4, 4)), how

    def forward(self, x):
        return self.how(x.tanh(), self.weight).reshape(len(x), 3, -1).sin().sum(1)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(
    "how",
    [
        lambda x, w: x @ w.t(),
        lambda x, w: x @ w,
        lambda x, w: torch.einsum("nti,oi->nto", x, w),
        lambda x, w: torch.tensordot(x, w, dims=1),
        lambda x, w: torch.baddbmm(x, x, w.expand(len(x), 4, 4)),
        lambda x, w: x.masked_fill(x > 0, 0) * w.diagonal() + w.exp().sum(),
        lambda x, w: F.bilinear(x, x.flip(1), torch.stack([w, w.t()]), w[0, :2]),
        lambda x, w: torch.linalg.multi_dot([x.flatten(0, 1), torch.linalg.inv(torch.eye(4).to(w) * 5 + w), w]).view_as(
            x
        ),
    ],
    ids=["x @ W.t()", "x @ W", "einsum", "tensordot", "baddbmm", "diagonal", "bilinear", "inverse"],
)
def test_products_by_hand(compare, how, views):
    compare(ByHand(how).double(), tokens(views, 3, 4), torch.arange(4) % 2, views=views)


LOSSES = {
    "label smoothing": (lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1), torch.arange(4)),
    "class weights": (
        lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([1.0, 2, 3, 4]).to(o), reduction="none").mean(),
        torch.arange(4),
    ),
    "soft targets": (F.cross_entropy, torch.rand(4, 4).double().softmax(-1)),
    "sigmoids": (F.binary_cross_entropy_with_logits, torch.rand(4, 4).double()),
    "sigmoids with weights": (
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, pos_weight=torch.tensor([1.0, 2, 3, 4]).to(o)),
        torch.randint(2, (4, 4)).double(),
    ),
    "several labels": (F.multilabel_soft_margin_loss, torch.randint(2, (4, 4)).double()),
    "squares": (F.mse_loss, torch.rand(4, 4).double()),
    "hinge": (F.multi_margin_loss, torch.arange(4)),
    "huber": (lambda o, t: F.huber_loss(o, t, delta=0.3), torch.rand(4, 4).double()),
    "a module": (nn.CrossEntropyLoss(label_smoothing=0.2), torch.arange(4)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(compare, name):
    loss, targets = LOSSES[name]
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    compare(model, tokens(2, 5), targets, loss=loss, views=2)


def test_a_loss_of_several_outputs(compare):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.heads = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])

        def forward(self, x):
            x = self.body(x).tanh()
            return {"class": self.heads[0](x), "size": self.heads[1](x).squeeze(1)}

    def loss(outputs, targets):
        classes = F.cross_entropy(outputs["class"], targets["class"])
        return classes + F.mse_loss(outputs["size"], targets["size"])

    targets = {"class": torch.arange(4), "size": torch.rand(4).double()}
    compare(Two().double(), tokens(1, 3), targets, loss=loss)
    compare(Two().double(), tokens(2, 3), targets, loss=loss, views=2)


@pytest.mark.parametrize(
    "layer", [nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(2, 4), nn.Linear(6, 6), nn.Conv1d(4, 4, 1)]
)
@pytest.mark.parametrize("views", [1, 2])
def test_an_activation_in_place_is_exact(compare, layer, views):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = copy.deepcopy(layer), nn.Linear(24, 3)

        def forward(self, x):
            return self.head(F.silu(self.layer(x), inplace=True).flatten(1))

    compare(
        InPlace().double(), torch.randn(3, *([views] if views > 1 else []), 4, 6).double(), torch.arange(3), views=views
    )
