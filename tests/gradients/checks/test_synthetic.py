"""Synthetic examples: valid integers come from a template, and nothing comes from private examples."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.checks.synthetic import candidates
from sfumato.gradients.examples import tree_tensors


class FromOne(nn.Module):
    """Tokens are numbered from 1; the model itself rejects others."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        if (tokens < 1).any():
            raise ValueError("tokens begin at 1")
        return self.last(self.words(tokens - 1).mean(1))


def test_tokens_and_classes_that_are_counted_from_one(compare):
    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets - 1)

    gradient = compare(FromOne().double(), torch.randint(1, 7, (5, 4)), torch.arange(5) % 3 + 1, loss=loss)
    assert gradient._batches.latest.fast


class Ending(nn.Module):
    """Reads at the one special token of each sequence, like BART, and rejects everything else."""

    def __init__(self):
        super().__init__()
        self.words, self.mix, self.last = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, tokens, scale=None):
        ends = tokens == 2
        if not (ends.sum(1) == 1).all():
            raise ValueError("each sequence must have one token 2")
        x = self.mix(self.words(tokens)).tanh().cumsum(1)
        x = x if scale is None else x * scale[:, None, None]
        return self.last((x * ends.unsqueeze(-1)).sum(1))


def sequences(examples, length, views=1):
    lead = (examples,) if views == 1 else (examples, views)
    tokens = torch.randint(3, 9, (*lead, length))
    return tokens.scatter(-1, torch.randint(length, (*lead, 1)), 2)


@pytest.mark.parametrize("views", [1, 2])
def test_a_special_token_needs_a_template(compare, views):
    model, x, y = Ending().double(), sequences(5, 6, views), torch.arange(5) % 3
    with pytest.raises(SfumatoError, match=r"each sequence must have one token 2; .*give template=\(inputs, targets\)"):
        ClippedGradient(model, F.cross_entropy, views=views)(x, y)
    template = (sequences(2, 6, views), torch.tensor([0, 1]))
    gradient = ClippedGradient(model, F.cross_entropy, views=views, max_norm=0.1, template=template)
    total = gradient(x, y)
    assert gradient._batches.latest.fast
    gradient.self_check()
    assert gradient.bytes_per_example() > 0
    assert gradient.explain(x).rows
    checked = ClippedGradient(model, F.cross_entropy, views=views, max_norm=0.1)
    checked.self_check(torch.tensor([3, 4, 2, 5, 3, 1]))
    again = checked(x, y)
    assert checked._batches.latest.fast
    torch.testing.assert_close(again.norms, total.norms)
    torch.testing.assert_close(again.gradients, total.gradients)
    checked.self_check(torch.tensor([3, 4, 2, 5]))
    checked(sequences(3, 5, views), torch.arange(3))


@pytest.mark.parametrize("length", [3, 5, 8])
def test_a_template_of_another_length(length):
    template = (torch.tensor([[2, 3, 4, 5, 6]]), torch.tensor([1]))
    gradient = ClippedGradient(Ending(), F.cross_entropy, template=template)
    x = sequences(4, length)
    if length > 5:
        with pytest.raises(SfumatoError, match="one token 2"):
            gradient(x, torch.arange(4) % 3)
    else:
        assert gradient(x, torch.arange(4) % 3).norms.min() > 0


def test_real_numbers_are_the_template_s_too():
    def loss(outputs, targets):
        if (targets < 0).any():
            raise ValueError("no distribution")
        return F.cross_entropy(outputs, targets)

    model, x, y = nn.Linear(4, 3), torch.randn(5, 4), torch.rand(5, 3)
    with pytest.raises(SfumatoError, match=r"no distribution; .*give template="):
        ClippedGradient(model, loss)(x, y)
    gradient = ClippedGradient(model, loss, template=(torch.zeros(1, 4), torch.ones(1, 3)))
    gradient(x, y)
    gradient.self_check()
    checked = ClippedGradient(model, loss)
    checked.self_check((4,), targets=torch.ones(1, 3))
    assert torch.equal(checked(x, y).norms, gradient(x, y).norms)


def test_the_call_s_own_values_are_never_looked_at():
    def alike(value):
        return {"a": torch.full((3, 2), value), "b": (torch.full((3,), value).double(), torch.full((3, 1), value > 0))}

    template = {"a": torch.tensor([[1, 2, 3]]), "b": (torch.tensor([0.5]), torch.tensor([[True]]))}
    for given in (None, (template, torch.tensor([4]))):
        one, other = (list(candidates((alike(v), torch.full((3,), v)), given)) for v in (7, -5))
        assert len(one) == len(other) == (1 if given else 2)
        for first, second in zip(one, other, strict=True):
            assert all(map(torch.equal, tree_tensors(first), tree_tensors(second)))
    assert one[0][0]["a"].tolist() == [[1, 2], [1, 2]]
    assert one[0][1].tolist() == [4, 4]


def test_a_template_is_not_what_the_caller_goes_on_with():
    tokens = sequences(2, 6)
    gradient = ClippedGradient(Ending(), F.cross_entropy, template=(tokens, torch.tensor([0, 1])))
    tokens.zero_()
    gradient(sequences(3, 6), torch.arange(3))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (torch.zeros(3, 4), r"template must be a pair \(inputs, targets\) of synthetic examples, got Tensor"),
        ((torch.zeros(3, 4),), "template must be a pair"),
        ((torch.zeros(0, 4), torch.zeros(0)), "template holds no example"),
        ((torch.zeros(3, 4), torch.zeros(2)), "targets of shape"),
        ((torch.zeros(3, 4), "class"), "must be tensors"),
    ],
)
def test_bad_templates_are_refused(template, message):
    with pytest.raises(SfumatoError, match=message):
        ClippedGradient(nn.Linear(4, 3), F.cross_entropy, template=template)


@pytest.mark.parametrize(
    "template",
    [
        (torch.zeros(1, 4).long(), torch.zeros(1).long()),
        (torch.zeros(1, 2, 4), torch.zeros(1).long()),
        ((torch.zeros(1, 4),), torch.zeros(1).long()),
        (torch.zeros(1, 0), torch.zeros(1).long()),
        (torch.zeros(1, 4), torch.zeros(1)),
    ],
    ids=["tokens", "an axis more", "a tuple", "nothing", "targets of another kind"],
)
def test_a_template_of_another_structure_is_refused(template):
    gradient = ClippedGradient(nn.Linear(4, 3), F.cross_entropy, template=template)
    with pytest.raises(
        SfumatoError,
        match="template differs in structure, or in kind of number, from the inputs and targets of the call",
    ):
        gradient(torch.randn(3, 4), torch.arange(3))


def test_without_a_template_a_shape_is_needed():
    with pytest.raises(SfumatoError, match=r"example_shape is missing; give one example's shape, or .*template="):
        ClippedGradient(nn.Linear(4, 3), F.cross_entropy).self_check()
