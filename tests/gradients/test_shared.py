"""Models that use a layer more than once: right sums, norms that are never too small, and a self-check that says so."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks import selfcheck
from sfumato.gradients.checks.oracle import clipped_sum
from sfumato.gradients.sites import forms
from sfumato.gradients.sites.linear import LinearKernel
from sfumato.gradients.use import tolerance


def linear(width=12, positions=1, calls=2):
    layer, tanh = nn.Linear(width, width), nn.Tanh()
    return nn.Sequential(*[layer, tanh] * calls, nn.Flatten(), nn.Linear(width * positions, 3))


def convolution(*between):
    layer, activation = nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()
    return nn.Sequential(layer, activation, *between, layer, activation, nn.Flatten(), nn.LazyLinear(3))


def norms():
    norm, layer = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), layer, norm, nn.ReLU(), layer, norm, nn.Flatten(), nn.LazyLinear(3))
    )


def normed(positions):
    layer = parametrizations.weight_norm(nn.Linear(6, 6))
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Flatten(), nn.Linear(6 * positions, 3))


class Positions(nn.Module):
    """One module at all positions, and again at their mean."""

    def __init__(self):
        super().__init__()
        self.both, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.both(self.both(x).tanh().mean(1)).tanh())


class Layers(nn.Module):
    """A transformer whose layers are one (ALBERT)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = self.layer(x)
        return self.last(x.mean(1))


class Words(nn.Module):
    """The embedding table is also the weight of the output layer."""

    def __init__(self):
        super().__init__()
        self.table, self.middle = nn.Embedding(7, 6), nn.Linear(6, 6)

    def forward(self, words):
        return F.linear(self.middle(self.table(words)).tanh().mean(1), self.table.weight)


MODELS = {
    "linear": (linear, (12,)),
    "linear at several positions": (lambda: linear(6, 9, 3), (9, 6)),
    "convolution": (convolution, (2, 6, 6)),
    "convolution at two sizes": (lambda: convolution(nn.MaxPool2d(2)), (2, 6, 6)),
    "norm": (norms, (2, 6, 6)),
    "weight norm": (lambda: normed(1), (6,)),
    "weight norm at several positions": (lambda: normed(5), (5, 6)),
    "positions": (Positions, (5, 6)),
    "layers": (Layers, (5, 4)),
    "words": (Words, None),
}


@pytest.mark.parametrize(("name", "views"), [("linear", 1), ("words", 1), *((name, 2) for name in MODELS)])
def test_sums_are_the_slow_truth_s_and_the_self_check_passes(compare, name, views):
    make, shape = MODELS[name]
    model, lead = make(), (4,) if views == 1 else (4, views)
    words = torch.randint(7, (*lead, 5))
    inputs = words if shape is None else torch.randn(*lead, *shape)
    model(inputs.flatten(0, len(lead) - 1))  # lazy layers learn their size
    model.double()
    inputs = inputs if shape is None else inputs.double()
    gradient = compare(model, inputs, torch.arange(4) % 3, views=views)
    gradient.self_check(words[0, 0] if shape is None and views > 1 else words[0] if shape is None else shape)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 20),
    positions=st.integers(1, 24),
    calls=st.integers(2, 4),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 1.0, 1000.0]),
)
def test_norms_are_at_least_the_slow_truth_s_and_hardly_more(seed, width, positions, calls, scale, offset):
    torch.manual_seed(seed)
    model, targets = linear(width, positions, calls).double(), torch.arange(3)
    inputs = (torch.randn(3, positions, width).double() + offset) * scale
    total = ClippedGradient(model, F.cross_entropy, max_norm=1e-3)(inputs, targets)
    expected, norms, _ = clipped_sum(model, F.cross_entropy, inputs, targets, max_norm=1e-3)
    assert bool((total.norms >= norms * (1 - 1e-9)).all()), "but for the rounding of the two backward passes"
    assert bool((total.norms <= norms * (1 + 2 * forms.GRAM_TOLERANCE)).all())
    for name, value in expected.items():
        torch.testing.assert_close(total.gradients[name], value, rtol=1e-6, atol=1e-9)


def test_the_self_check_allows_all_that_the_norms_allow_themselves():
    assert forms.GRAM_TOLERANCE + tolerance(torch.float64) < selfcheck._SHARP / 5


def _gram_norm(monkeypatch):
    right = LinearKernel.squares_by_gram
    monkeypatch.setattr(LinearKernel, "squares_by_gram", lambda *given: (1 - 1e-5) * right(*given))


def _sum(monkeypatch):
    right = LinearKernel.total
    monkeypatch.setattr(LinearKernel, "total", lambda *given: (1 + 1e-5) * right(*given))


def _apart(monkeypatch):
    """Each use has its own norm, and the cross terms are left out."""

    def squares(self):
        halves = [t.chunk(2, dim=1) for t in (self.x, self.g)]
        return sum(self.kernel.squares_by_gram(x, g) for x, g in zip(*halves, strict=True))

    monkeypatch.setattr(forms.Factored, "_sums_of_squares", squares)


def _one(monkeypatch):
    """Only one of the two uses counts."""
    monkeypatch.setattr(
        forms.Factored, "join", lambda uses: forms.Factored(uses[0].kernel, uses[0].x, uses[0].g, "gram")
    )


def _kept(monkeypatch):
    """Hard examples, whose gradients are kept because of the Gram form's rounding, have norms that are too small."""
    right = forms.Factored.keep_hard
    monkeypatch.setattr(forms.Factored, "keep_hard", lambda *given: (1 - 1e-4) * right(*given))


@pytest.mark.parametrize("bug", [_gram_norm, _sum, _apart, _one, _kept])
def test_the_self_check_finds_what_is_wrong_with_a_layer_s_norm_or_sum(monkeypatch, bug):
    ClippedGradient(linear(), F.cross_entropy, max_norm=1e-3).self_check((12,))
    bug(monkeypatch)
    with pytest.raises(SfumatoError, match=r"differs from the plain computation|gradient norm"):
        ClippedGradient(linear(), F.cross_entropy, max_norm=1e-3).self_check((12,))
