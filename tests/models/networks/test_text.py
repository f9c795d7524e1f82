"""Models of texts: what they compute, and the engine's sums against the oracle's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks import oracle
from sfumato.models import create_for_texts

MODELS = ("bag", "bilstm,embedding=3,hidden=2", "bilstm,embedding=3,hidden=2,norm=layer,norm_last=1")


def made(name, *, seed=0, vocabulary=20, length=6):
    """A model whose every parameter counts, in float64."""
    torch.manual_seed(seed)
    model = create_for_texts(name, classes=3, vocabulary=vocabulary, length=length).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def texts(lengths, *, length=6, vocabulary=20, seed=0):
    """Random texts (N, T) of so many words, zeros after them."""
    rows = torch.randint(1, vocabulary, (len(lengths), length), generator=torch.Generator().manual_seed(seed))
    return rows.masked_fill(torch.arange(length) >= torch.tensor(lengths).unsqueeze(1), 0)


def test_the_bag_is_a_linear_model_of_square_rooted_counts():
    model, row = made("bag,norm=2"), torch.tensor([[5, 7, 5, 5, 0, 0]])
    features = torch.zeros(20, dtype=torch.float64)
    features[5], features[7] = 3**0.5, 1
    expected = 2 * functional.normalize(features, dim=0) @ model.head.weight
    torch.testing.assert_close(model(row)[0], expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_text_has_the_same_logits_in_any_batch(name):
    model, rows = made(name), texts([2, 6, 0, 4])
    alone = torch.cat([model(row.unsqueeze(0)) for row in rows])
    torch.testing.assert_close(model(rows), alone)


def test_norms_stand_after_each_trainable_layer():
    def norms(name):
        model = create_for_texts(name, classes=4, vocabulary=9, length=5)
        return [type(getattr(model, f"norm{place}")).__name__ for place in (1, 2, 3)]

    assert norms("bilstm") == ["Identity"] * 3
    assert norms("bilstm,norm=layer") == ["LayerNorm", "LayerNorm", "Identity"]
    assert norms("bilstm,norm=layer,norm_last=1") == ["LayerNorm"] * 3


def test_the_last_layer_starts_at_zero_unless_its_output_is_normalised():
    def first(name):
        return create_for_texts(name, classes=4, vocabulary=9, length=5).head.weight

    assert not first("bilstm,norm=layer").any()
    assert first("bilstm,norm=layer,norm_last=1").std() > 0


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_text_has_finite_logits_and_gradients(name):
    model = made(name)
    functional.cross_entropy(model(texts([0, 6])), torch.tensor([0, 1])).backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    max_norm=st.sampled_from([0.05, 1.0, 100.0]),
)
def test_clipped_sums_are_the_oracle_s(name, lengths, seed, max_norm):
    model, x = made(name, seed=seed), texts(lengths, seed=seed)
    y = torch.arange(len(lengths)) % 3
    truth, norms, _ = oracle.clipped_sum(model, functional.cross_entropy, x, y, max_norm=max_norm)
    gradient = ClippedGradient(model, functional.cross_entropy, max_norm=max_norm)
    found = gradient(x, y)
    assert gradient._batches.latest.fast
    torch.testing.assert_close(found.norms, norms, rtol=1e-6, atol=1e-9)
    for parameter, value in truth.items():
        torch.testing.assert_close(found.gradients[parameter], value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_no_text_moves_another_s_gradient(name):
    """Of a long text beside it, or of a short one: the padding is the declared length's, not the batch's."""
    model, y = made(name), torch.tensor([0, 1])
    gradient = ClippedGradient(model, functional.cross_entropy, max_norm=1e6)
    own = texts([3], seed=1)

    def beside(other):
        both = gradient(torch.cat([own, other]), y).gradients
        alone = gradient(other, y[1:]).gradients
        return {name: both[name] - alone[name] for name in both}

    first, second = beside(texts([6], seed=2)), beside(texts([1], seed=3))
    for parameter, value in first.items():
        torch.testing.assert_close(value, second[parameter], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("cnn", "model of texts must be one of bag, bilstm"),
        ("bag,hidden=3", "has no option hidden"),
        ("bilstm,norm=batch", "norm must be one of none, layer"),
        ("bilstm,hidden=0", "hidden"),
    ],
)
def test_other_models_are_refused(name, match):
    with pytest.raises(SfumatoError, match=match):
        create_for_texts(name, classes=3, vocabulary=9, length=5)


def test_weights_of_timm_are_refused():
    with pytest.raises(SfumatoError, match="needs a timm model, got model 'bag'"):
        create_for_texts("bag", classes=3, vocabulary=9, length=5, pretrained="timm")
