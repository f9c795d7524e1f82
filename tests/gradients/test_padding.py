"""Weights: clipped gradients are multiplied by them, and examples of weight 0 that fill a batch up add nothing to its
sum, whatever they hold."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient, clipping
from sfumato.gradients.checks import oracle
from sfumato.gradients.sites.dropout import fresh_keys

quick = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Convolutions(nn.Module):
    """A standardised weight and a plain one, a group norm, dropout."""

    def __init__(self, width):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, width, 3), nn.GroupNorm(1, width)
        self.weight, self.last = nn.Parameter(torch.randn(width, 9 * width)), nn.Linear(width, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        weight = (self.weight - self.weight.mean(1, keepdim=True)) / self.weight.std(1, keepdim=True)
        x = F.conv2d(x, weight.unflatten(1, (-1, 3, 3)), padding=1)
        return self.last(F.dropout(x.amax((2, 3)), 0.3))


class Sentences(nn.Module):
    """Attention over words, with a mask that is dropped where it hides nothing."""

    def __init__(self, width):
        super().__init__()
        self.words, self.mix, self.norm = nn.Embedding(9, width), nn.Linear(width, 3 * width), nn.LayerNorm(width)
        self.last = nn.Linear(width, 3)

    def forward(self, words):
        hidden = words == 0
        x = self.words(words)
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, -1)).unbind(-2)
        mask = (~hidden).unsqueeze(1) if hidden.any() else None
        return self.last((x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)).mean(1))


class Reading(nn.Module):
    """Reads a number from its example, which forces the slow path."""

    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.last(self.first(x).tanh() * float(x.detach().abs().amax()))


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell, self.last, self.token = nn.LSTM(4, width), nn.Linear(width, 3), nn.Parameter(torch.randn(width))

    def forward(self, x):
        return self.last(self.cell(x.unsqueeze(0))[0][0] + self.token)


class Hooked(nn.Module):
    """Adds to the gradient in the backward pass, even if it is zero."""

    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        x = self.first(x)
        x.register_hook(lambda gradient: gradient + 1)
        return self.last(x)


class HookedReading(Hooked):
    """The same on the slow path."""

    def forward(self, x):
        return super().forward(x * float(x.detach().abs().amax()))


SHAPES = {
    Convolutions: (1, 6, 6), Sentences: (5,), Reading: (4,), Recurrent: (4,), Hooked: (4,), HookedReading: (4,),
}  # fmt: skip


def drawn(kind, lead):
    if kind is Sentences:
        return torch.randint(1, 9, (*lead, 5)) * (torch.arange(5) <= torch.randint(2, 9, (*lead, 1)))
    return torch.randn(*lead, *SHAPES[kind], dtype=torch.float64)


def quietly(gradient, *arguments, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="this model cannot be vectorised")
        return gradient(*arguments, **options)


def close(one, other):
    for name, value in one.gradients.items():
        torch.testing.assert_close(value, other.gradients[name], rtol=1e-9, atol=1e-12)


@quick
@given(
    kind=st.sampled_from(sorted(SHAPES, key=str)),
    taking_part=st.lists(st.booleans(), min_size=1, max_size=9),
    views=st.integers(1, 3),
    width=st.integers(1, 6),
    max_norm=st.sampled_from([0.05, 1.0, 50.0]),
    real=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_padded_batch_has_the_sum_of_its_examples(kind, taking_part, views, width, max_norm, real, seed):
    torch.manual_seed(seed)
    count, weights = len(taking_part), torch.tensor(taking_part)
    x, y = drawn(kind, (count,) if views == 1 else (count, views)), torch.arange(count) % 3
    keys = fresh_keys(count)
    gradient = ClippedGradient(kind(width).double(), F.cross_entropy, max_norm=max_norm, views=views)
    rest = quietly(gradient, x[weights], y[weights], keys[weights])
    whole = quietly(gradient, x, y, keys, weights.double() if real else weights)
    close(whole, rest)
    torch.testing.assert_close(whole.norms[weights], rest.norms)
    torch.testing.assert_close(whole.losses[weights], rest.losses, check_dtype=False)
    assert whole.norms[~weights].isnan().all()
    assert whole.losses[~weights].isnan().all()


@pytest.mark.parametrize("kind", [Convolutions, Recurrent, Reading, Hooked, HookedReading])
def test_what_padding_holds_does_not_matter(kind):
    """Finite padding changes no bit; padding that is not finite is left out, which may change the rest by rounding."""
    x, y, weights = drawn(kind, (7, 2)), torch.arange(7) % 3, torch.arange(7) % 3 != 1
    gradient, keys = ClippedGradient(kind(4).double(), F.cross_entropy, max_norm=0.3, views=2), fresh_keys(7)
    sums = {}
    for held in (0.0, 1.0, 1e8, float("nan"), float("inf")):
        x[~weights], y[~weights] = held, int(held == 1.0)
        sums[held] = quietly(gradient, x, y, keys, weights)
    first = sums.pop(0.0)
    assert any(value.any() for value in first.gradients.values())
    for held, found in sums.items():
        close(found, first)
        if held in (1.0, 1e8) and not issubclass(kind, Hooked):
            assert all(torch.equal(value, first.gradients[name]) for name, value in found.gradients.items())


@pytest.mark.parametrize("kind", [Convolutions, Recurrent, Reading])
@pytest.mark.parametrize("held", [0.0, 3.0])
def test_padding_leaves_no_trace_in_the_path_that_a_batch_takes(kind, held, monkeypatch):
    """Leaving examples out of a sum costs time; with 0 to 6 padding examples, none is left out."""
    seen, right = [], clipping.doubtful
    monkeypatch.setattr(clipping, "doubtful", lambda *a: seen.append(right(*a)) or seen[-1])
    gradient, x, y = ClippedGradient(kind(4).double(), F.cross_entropy), drawn(kind, (6,)), torch.arange(6) % 3
    for present in range(7):
        weights = torch.arange(6) < present
        x[~weights] = held
        quietly(gradient, x, y, weights=weights)
    assert len(seen) >= 7 or kind is Reading
    assert not any(others.any() for others in seen)


@pytest.mark.parametrize("kind", [Convolutions, Sentences, Reading])
def test_weights_of_one_change_no_bit(kind):
    gradient, x, y, keys = ClippedGradient(kind(4), F.cross_entropy), drawn(kind, (6,)), torch.arange(6), fresh_keys(6)
    x, y = x.float() if x.is_floating_point() else x, y % 3
    plain, weighted = (quietly(gradient, x, y, keys, weights) for weights in (None, torch.ones(6)))
    assert all(torch.equal(value, weighted.gradients[name]) for name, value in plain.gradients.items())
    assert torch.equal(plain.norms, weighted.norms)
    assert torch.equal(plain.losses, weighted.losses)


def test_all_may_be_padding_and_none_may_be_there():
    gradient = ClippedGradient(nn.Linear(4, 3), F.cross_entropy)
    for count in (3, 0):
        found = gradient(torch.randn(count, 4), torch.zeros(count).long(), weights=torch.zeros(count))
        assert not any(value.any() for value in found.gradients.values())
        assert found.norms.shape == (count,)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.tensor([1.0, 1.5, 0.0]), "weights must lie between 0 and 1, got numbers outside"),
        (torch.tensor([1.0, -1.0, 0.0]), "weights must lie between 0 and 1, got numbers outside"),
        (torch.tensor([1.0, float("nan"), 0.0]), "weights must lie between 0 and 1, got numbers outside"),
        (torch.tensor([1, 0, 1]), r"weights must be booleans or real numbers, got torch\.int64"),
        (torch.ones(2), r"weights must be a tensor of shape \(3,\), got shape \(2,\)"),
        (torch.ones(3, 1), r"weights must be a tensor of shape \(3,\), got shape \(3, 1\)"),
        ([True, False, True], r"weights must be a tensor of shape \(3,\), got list"),
    ],
)
def test_weights_that_are_none_are_refused(weights, message):
    with pytest.raises(SfumatoError, match=message):
        ClippedGradient(nn.Linear(4, 3), F.cross_entropy)(torch.randn(3, 4), torch.arange(3), weights=weights)


@quick
@given(
    kind=st.sampled_from([Sentences, Reading, Recurrent]),
    weights=st.lists(st.just(0.0) | st.floats(1e-6, 1), min_size=1, max_size=6),
    views=st.integers(1, 2),
    max_norm=st.sampled_from([0.05, 1.0, 50.0]),
    seed=st.integers(0, 99),
)
def test_a_weight_multiplies_what_is_clipped_already(kind, weights, views, max_norm, seed):
    torch.manual_seed(seed)
    count = len(weights)
    x, y = drawn(kind, (count,) if views == 1 else (count, views)), torch.arange(count) % 3
    model = kind(4).double()
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=max_norm, views=views)
    found = quietly(gradient, x, y, None, torch.tensor(weights, dtype=torch.float64))
    expected = {name: torch.zeros_like(value) for name, value in found.gradients.items()}
    for place, weight in enumerate(weights):
        rows = slice(place, place + 1)
        own, norms, _ = oracle.clipped_sum(model, F.cross_entropy, x[rows], y[rows], max_norm=max_norm, views=views)
        if weight:
            torch.testing.assert_close(found.norms[place].double(), norms[0])
        for name in expected:
            expected[name] += weight * own[name]
    for name, value in found.gradients.items():
        # Sums lie on a grid whose cells grow with the clipping norm.
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-10 * max_norm)


@pytest.mark.parametrize("way", ["keep product", "drop product", "gram"])
@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e3])
def test_weights_in_every_way_of_clipping(way, max_norm):
    """A linear layer over positions, whose norms are computed by each method."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)).double()
    x, y, weights = torch.randn(8, 4, 6).double(), torch.arange(8) % 3, torch.linspace(0, 1, 8)
    sites = ClippedGradient(model, F.cross_entropy)
    sites(x, y)
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=max_norm, methods=dict.fromkeys(sites.methods, way))
    found = gradient(x, y, None, weights)
    assert set(gradient.methods.values()) == {way}
    for name, value in found.gradients.items():
        each_one = [
            oracle.clipped_sum(model, F.cross_entropy, x[b : b + 1], y[b : b + 1], max_norm=max_norm)[0][name]
            for b in range(8)
        ]
        torch.testing.assert_close(value, sum(w * one for w, one in zip(weights.double(), each_one, strict=True)))


@given(weight=st.floats(0, 1), scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e3, 1e18]), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_no_weight_makes_a_term_longer_than_its_bound(weight, scale, seed):
    torch.manual_seed(seed)
    model, x = nn.Linear(5, 3), scale * torch.randn(1, 5)
    found = ClippedGradient(model, F.cross_entropy, max_norm=0.5)(x, torch.tensor([1]), None, torch.tensor([weight]))
    length = torch.cat([value.double().flatten() for value in found.gradients.values()]).norm()
    assert length <= 0.5 * weight * (1 + 1e-7) + 1e-30
