"""Models that branch on their example are vectorised, and each example takes the branches that it would take alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.gradients.batch_runner import BatchRunner
from sfumato.gradients.conditions import Disagreement, run_by_branch
from sfumato.gradients.sites.dropout import fresh_keys


def loops(self, x):
    while x.square().mean() > 0.3:
        x = self.inner(x).tanh() / 2
    return x


def caught(self, x):
    try:
        if x.mean() > 0:
            return x * 2
    except Exception:
        return x * 0
    return x * 3


def nested(self, x):
    if x.mean() > 0:
        return self.inner(x) if x[..., 0].mean() > 0 else x.exp()
    return x if not (x > 1).any() else self.inner(x).tanh()


# Each of (N, T, 4) to the same.
BRANCHES = {
    "if": lambda self, x: self.inner(x) if x.mean() > 0 else x,
    "not any": lambda self, x: x if not (x > 1).any() else self.inner(x),
    "and": lambda self, x: self.inner(x) if x.mean() > 0 and x[..., 0].mean() > 0 else x,
    "item": lambda self, x: self.inner(x) if (x > -1).all().item() else x,
    "is_nonzero": lambda self, x: self.inner(x) if torch.is_nonzero((x > -1).all()) else x,
    "in": lambda self, x: self.inner(x) if 2 in x.round() else x,
    "equal": lambda self, x: self.inner(x) if torch.equal(x.clamp(-1, 1), x) else x,
    "a number": lambda self, x: self.inner(x) if (x > 1).sum() else x,
    "max": lambda self, x: x * max(x.mean(), x[..., 0].mean()),
    "while": loops,
    "caught": caught,
    "nested": nested,
}


class Branching(nn.Module):
    def __init__(self, *branches):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.branches = branches

    def forward(self, x):
        x = self.first(x)
        for branch in self.branches:
            x = BRANCHES[branch](self, x)
        return self.last(x.tanh()).mean(1)


@pytest.mark.parametrize("branch", BRANCHES)
def test_each_branch_is_exact_and_checks_itself(compare, branch):
    x, y = 1.5 * torch.randn(6, 3, 4).double(), torch.arange(6) % 3
    gradient = compare(Branching(branch).double(), x, y)
    assert gradient._batches.latest.fast
    assert gradient._batches.latest.conditional
    whole = gradient(x, y)
    alone = torch.cat([gradient(x[i : i + 1], y[i : i + 1]).norms for i in range(6)])
    torch.testing.assert_close(whole.norms, alone, rtol=1e-9, atol=0)
    gradient.self_check((3, 4))
    assert gradient.bytes_per_example((3, 4)) > 0
    assert gradient.explain(x, y).rows


def test_a_loss_may_ask_too(compare):
    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets) if (targets > 0).all() else outputs.square().mean()

    found = compare(nn.Linear(4, 3).double(), torch.randn(9, 4).double(), torch.arange(9) % 3, loss=loss)
    assert found._batches.latest.fast


def test_masks_of_dropout_follow_the_keys_however_a_batch_is_parted():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x):
            x = F.dropout(x, 0.5)
            return self.layer(F.dropout(x, 0.5)) if x.mean() > 0 else self.layer(F.dropout(x, 0.3).exp())

    gradient, x, y = ClippedGradient(Dropping(), F.cross_entropy), torch.randn(12, 8), torch.arange(12) % 3
    keys = fresh_keys(12)
    whole = gradient(x, y, keys)
    alone = torch.cat([gradient(x[i : i + 1], y[i : i + 1], keys[i : i + 1]).norms for i in range(12)])
    torch.testing.assert_close(whole.norms, alone)
    assert not torch.allclose(whole.norms, gradient(x, y, fresh_keys(12)).norms)


class Coin(nn.Module):
    """A branch that depends on a dropout mask: kept with probability 0.8."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.layer.weight)

    def forward(self, x):
        return self.layer(x) if F.dropout(x, 0.2).sum() > 0 else self.layer(10 * x)


def test_a_branch_by_chance_is_taken_as_often_as_it_should(monkeypatch):
    monkeypatch.setattr(BatchRunner, "sum_one_by_one", None)
    gradient = ClippedGradient(Coin(), lambda outputs, targets: outputs.mean())
    total = gradient(torch.ones(600, 1), torch.zeros(600))
    kept = (total.norms < 5).double().mean()
    assert abs(kept - 0.8) < 4 * (0.8 * 0.2 / 600) ** 0.5


@pytest.mark.parametrize("after", [False, True])
def test_no_answer_hangs_on_random_numbers_of_the_model_s_own(after):
    class Noisy(nn.Linear):
        def forward(self, x):
            if after:
                y = super().forward(x) if x.sum() > 0 else super().forward(x.exp())
                return y + torch.rand_like(y)
            x = x + torch.randn_like(x)
            return super().forward(x) if x.sum() > 0 else super().forward(x.exp())

    gradient, x, y = ClippedGradient(Noisy(4, 3), F.cross_entropy), torch.randn(5, 4), torch.arange(5) % 3
    if after:
        gradient(x, y)
    else:
        with pytest.warns(
            RuntimeWarning, match="which is slow: RuntimeError: a condition after random numbers drawn inside the model"
        ):
            gradient(x, y)
    assert gradient._batches.latest.fast == after


class Rare(nn.Module):
    """A branch that no synthetic example takes."""

    def __init__(self, method):
        super().__init__()
        self.method, self.usual, self.rare = method, nn.Linear(4, 3), nn.Linear(4, 3)
        self.bare = nn.Parameter(torch.ones(3))

    def forward(self, x):
        if x.sum() < 100:
            return self.usual(x)
        match self.method:
            case "a layer":
                return self.rare(x)
            case "several positions":
                return self.rare(torch.stack([x, x.exp()], dim=1)).mean(1)
            case "a bare parameter":
                return self.usual(x) * self.bare
            case "a number":
                return self.rare(x) * float(x.detach().amax())
            case "random numbers":
                return self.rare(x * torch.ones_like(x).bernoulli()) if x.sum() < 1e6 else self.usual(x)
            case "a question after random numbers":
                return self.rare(x) if (torch.rand_like(x) >= 0).all() else self.usual(x)
            case "dropout":
                return self.rare(x) if F.dropout(x, 0.0).sum() > 0 else self.usual(x)


RARE = [
    "a layer",
    "several positions",
    "a bare parameter",
    "a number",
    "random numbers",
    "a question after random numbers",
    "dropout",
]


@pytest.mark.parametrize("method", RARE)
def test_a_branch_that_was_never_tried_is_exact_and_forgotten(compare, there, method):
    x, y = torch.randn(7, 4).double(), torch.arange(7) % 3
    x[2], x[5] = 50, 60
    if method == "random numbers":
        ClippedGradient(Rare(method).double(), F.cross_entropy)(x, y)
        return
    gradient = compare(Rare(method).double(), x, y)
    fresh = ClippedGradient(gradient._model, F.cross_entropy)
    fresh(*there(x[:1], y[:1]))
    assert gradient.methods == fresh.methods
    assert gradient.unused_parameters == fresh.unused_parameters
    assert gradient._batches.latest == fresh._batches.latest
    assert "rare.weight" in gradient.unused_parameters


class Telling(nn.Module):
    """Stores an answer, which the next example would see."""

    def __init__(self, method):
        super().__init__()
        self.method, self.layer, self.number, self.plain = method, nn.Linear(4, 3), 0, torch.zeros(3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        y = self.layer(x) + 100 * self.number + 100 * self.plain + 100 * self.mean
        told = 1 if x.sum() > 0 else 2
        match self.method:
            case "number":
                self.number = told
            case "plain":
                self.plain.data.fill_(told)
            case "mean":
                self.mean.data.fill_(told)
            case "layer.weight":
                self.layer.weight.data.fill_(told)
        return y


@pytest.mark.parametrize("method", ["number", "plain"])
def test_an_answer_that_is_written_down_is_refused(method):
    with pytest.raises(SfumatoError, match=f"new or changed value in '{method}'"):
        ClippedGradient(Telling(method), F.cross_entropy)(torch.randn(9, 4), torch.arange(9) % 3)


@pytest.mark.parametrize("method", ["mean", "layer.weight"])
def test_an_answer_that_is_written_to_a_copy_reaches_nobody(method):
    model, x, y = Telling(method), torch.randn(9, 4), torch.arange(9) % 3
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient = ClippedGradient(model, F.cross_entropy)
    whole = gradient(x, y)
    torch.testing.assert_close(whole.norms[3:], gradient(x[3:], y[3:]).norms)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_bad_example_changes_no_bit_of_the_others():
    model, x, y = Branching("nested", "while"), 1.5 * torch.randn(12, 3, 4), torch.arange(12) % 3
    gradient = ClippedGradient(model, F.cross_entropy)
    clean = gradient(x, y)
    x[4] = float("nan")
    total = gradient(x, y)
    others = [index for index in range(12) if index != 4]
    assert total.norms[4].isnan()
    torch.testing.assert_close(total.norms[others], clean.norms[others], rtol=1e-5, atol=0)
    alone = gradient(x[others], y[others])
    torch.testing.assert_close(total.gradients, alone.gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("conditions", [[], ["odd"], ["odd", "large"], ["each"]])
def test_every_example_is_in_one_part_of_one_mind(conditions):
    values = torch.tensor([3, 8, 1, 1, 9, 4, 7])
    asked = {"odd": lambda v: v % 2 == 1, "large": lambda v: v > 4}
    tries = []

    def run(rows):
        part = values[rows]
        tries.append(len(part))
        if "each" in conditions and len(part) > 1:
            raise Disagreement(torch.arange(len(part)) == 0)
        for condition in filter(asked.get, conditions):
            answers = asked[condition](part)
            if answers.any() and not answers.all():
                raise Disagreement(answers)
        return part

    found = list(run_by_branch(run, len(values)))
    assert torch.equal(torch.cat([rows for rows, _ in found]).sort().values, torch.arange(7))
    assert all(torch.equal(values[rows], part) for rows, part in found)
    assert len(found) == {0: 1, 1: 2, 2: 4}[len(conditions)] if conditions != ["each"] else 7
    assert tries[0] == 7


def test_a_model_that_starts_to_ask_later(compare, there):
    class Later(nn.Linear):
        asks = False

        def forward(self, x):
            return super().forward(x) if self.asks and x.mean() > 0 else super().forward(x.exp())

    model, x, y = there(Later(4, 3).double(), torch.randn(9, 4).double(), torch.arange(9) % 3)
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.1)
    gradient(x, y)
    model.asks = True
    found, expected = gradient(x, y), compare(model, x, y)(x, y)
    torch.testing.assert_close(found.norms, expected.norms)
    torch.testing.assert_close(found.gradients, expected.gradients)
