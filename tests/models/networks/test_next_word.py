"""The network of next words: its published size, what it computes, and the engine's sums against the oracle's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient, UserGradient
from sfumato.gradients.checks import oracle
from sfumato.models import check, create, create_for_texts
from sfumato.models.losses import next_word_cross_entropy

SPELLINGS = ("lstm,embedding=3,hidden=4", "lstm,embedding=3,hidden=4,tied=1")
V, T = 11, 5


def made(name, seed=0):
    """A network whose every parameter counts, in float64."""
    torch.manual_seed(seed)
    model = create_for_texts(name, classes=V, vocabulary=V, length=T, next_words=True).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def texts(lengths, seed=0):
    """Inputs and targets (N, T) of texts with so many words, zeros after them."""
    generator = torch.Generator().manual_seed(seed)
    padded = torch.arange(T) >= torch.tensor(lengths).unsqueeze(1)
    rows = (torch.randint(1, V, (len(lengths), T), generator=generator) for _ in range(2))
    return tuple(row.masked_fill(padded, 0) for row in rows)


@pytest.mark.parametrize(("name", "count"), [("lstm", 4_050_748), ("lstm,tied=1", 3_080_360)])
def test_it_has_the_published_number_of_parameters(name, count):
    model = create_for_texts(name, classes=10_004, vocabulary=10_004, length=20, next_words=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_it_starts_as_published():
    torch.manual_seed(0)
    model = create_for_texts("lstm", classes=500, vocabulary=500, length=20, next_words=True)
    assert not model.embedding.weight[0].any()
    assert 0.04 < model.embedding.weight.abs().max() <= 0.05
    bias = model.lstm.weight_ih_l0[:, -1].reshape(4, -1)
    assert bias.sum(1).tolist() == [0, 670, 0, 0]
    assert model.lstm.weight_ih_l0[:, :-1].std().item() == pytest.approx((2 / 97) ** 0.5, rel=0.02)
    assert not model.head.bias.any()


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_word_is_predicted_from_those_before_it_alone(name):
    model, (inputs, _) = made(name), texts([5, 5])
    changed = inputs.clone()
    changed[:, 3:] = 1 + (changed[:, 3:] % (V - 1))
    before, after = model(inputs), model(changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.isclose(before[:, 3:], after[:, 3:]).all()


@settings(max_examples=10, deadline=None)
@given(
    name=st.sampled_from(SPELLINGS),
    lengths=st.lists(st.integers(0, T), min_size=1, max_size=4),
    max_norm=st.floats(0.01, 5.0),
    seed=st.integers(0, 20),
)
def test_clipped_sums_are_those_of_one_text_after_the_other(name, lengths, max_norm, seed):
    model, (inputs, targets) = made(name, seed), texts(lengths, seed)
    gradient = ClippedGradient(model, next_word_cross_entropy, max_norm=max_norm, template=texts([3, 0, 5]))
    found = gradient(inputs, targets)
    truth, _, _ = oracle.clipped_sum(model, next_word_cross_entropy, inputs, targets, max_norm=max_norm)
    for key, value in truth.items():
        torch.testing.assert_close(found.gradients[key], value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_user_is_clipped_with_all_of_their_words(name):
    """A user's gradient is that of the mean loss over their words, clipped as a whole."""
    model, (inputs, targets) = made(name), texts([5, 1, 3, 2, 0, 0])
    inputs, targets = inputs.unflatten(0, (2, 3)), targets.unflatten(0, (2, 3))
    words = (targets > 0).sum(2)
    found = UserGradient(model, next_word_cross_entropy, max_norm=0.1)(
        inputs, targets, words / words.sum(1, keepdim=True)
    )
    total = {key: torch.zeros_like(value) for key, value in model.named_parameters()}
    for user in range(2):
        logits, wanted = model(inputs[user]).flatten(0, 1), targets[user].flatten()
        loss = functional.cross_entropy(logits[wanted > 0], wanted[wanted > 0])
        own = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([one.flatten() for one in own]).norm()
        assert norm > 0.1
        for key, one in zip(total, own, strict=True):
            total[key] += one * 0.1 / norm
    for key, value in total.items():
        torch.testing.assert_close(found.gradients[key], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: create_for_texts("bag", classes=V, vocabulary=V, length=T, next_words=True),
            "model of next words must",
        ),
        (lambda: create_for_texts("lstm", classes=V, vocabulary=V, length=T), "model of texts must be one of bag, bil"),
        (lambda: create("lstm", classes=3, channels=1, size=8), "is for texts, but these are images"),
        (lambda: create_for_texts("lstm,layers=2", classes=V, vocabulary=V, length=T, next_words=True), "layers"),
        (lambda: check("bilstm", records="next words"), "model of next words must be one of lstm"),
        (lambda: check("lstm", records="texts"), "model of texts must be one of"),
        (lambda: check("lstm", records="images"), "is for texts"),
    ],
)
def test_what_is_refused(make, match):
    with pytest.raises(SfumatoError, match=match):
        make()


def test_it_is_found_before_the_records_are_known():
    check("lstm")
    check("lstm,tied=1", records="next words")


def test_a_model_of_classes_is_refused_for_words(monkeypatch):
    def pooled(*, classes, vocabulary, length):
        return nn.Sequential(nn.Embedding(vocabulary, 2), nn.Flatten(), nn.Linear(2 * length, classes))

    monkeypatch.setattr("sfumato.models.registry.create_custom", lambda base, options, **facts: pooled(**facts))
    with pytest.raises(SfumatoError, match=r"to logits of shape \(1, 5, 11\), got \(1, 11\)"):
        create_for_texts("mine:pooled", classes=V, vocabulary=V, length=T, next_words=True)
