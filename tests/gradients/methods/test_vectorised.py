"""Models and losses that write to their inputs: exact, and the caller's tensors are unchanged."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient, per_example_outputs
from sfumato.gradients.checks import memory


class Writing(nn.Module):
    """Writes to its inputs, and has a parameter that is found to need expansion by another run."""

    def __init__(self, write):
        super().__init__()
        self.layer, self.shift, self.write = nn.Linear(4, 3), nn.Parameter(torch.randn(2)), write

    def forward(self, x):
        self.write(self, x)
        return self.layer(x) + self.shift.sum()


WRITES = {
    "add": lambda self, x: x.add_(1),
    "set": lambda self, x: x.__setitem__((slice(None), 0), 0),
    "a parameter": lambda self, x: x.__setitem__((slice(None), slice(0, 2)), self.shift),
    "a view": lambda self, x: x.unbind(1)[2].mul_(x[:, 0]),
    "detached": lambda self, x: x.detach().exp_(),
    "relu": lambda self, x: F.relu(x, inplace=True),
    "by a condition": lambda self, x: x.add_(1) if x.sum() > 0 else None,
    "before a condition": lambda self, x: x.add_(1).mul_(2 if x.mean() > 1 else 3),
}


def unchanged(model, x, y, **options):
    """Calls with inputs that are a view of a larger tensor, which must not change."""
    larger = torch.randn(len(x) + 2, *x.shape[1:-1], x.shape[-1] + 3, dtype=x.dtype).to(x.device)
    part = larger[1:-1, ..., 2:-1]
    part.copy_(x)
    before, labels, version = larger.clone(), y.clone(), larger._version
    gradient = ClippedGradient(model, options.pop("loss", F.cross_entropy), max_norm=0.1, **options)
    first, second = gradient(part, y), gradient(part, y)
    assert torch.equal(larger, before)
    assert torch.equal(y, labels)
    assert larger._version == version
    assert torch.equal(first.norms, second.norms)
    return first


@pytest.mark.parametrize(("views", "pieces"), [(1, False), (2, True)])
@pytest.mark.parametrize("how", WRITES)
def test_a_model_that_writes_to_its_inputs(compare, there, monkeypatch, how, views, pieces):
    monkeypatch.setattr(memory, "NEAR", 0 if pieces else memory.NEAR)
    model = Writing(WRITES[how]).double()
    x, y = torch.randn(19, *[views][: views - 1], 4).double(), torch.arange(19) % 3
    model, x, y = there(model, x, y)
    total = unchanged(model, x, y, views=views)
    assert torch.equal(compare(model, x, y, views=views)(x, y).norms, total.norms)


@pytest.mark.parametrize("views", [1, 2])
def test_a_loss_that_writes_to_targets_and_outputs(compare, views):
    def loss(outputs, targets):
        targets.add_(1).remainder_(3)
        return F.cross_entropy(outputs.mul_(2), targets)

    x, y = torch.randn(5, *[views][: views - 1], 4).double(), torch.arange(5) % 3
    unchanged(nn.Linear(4, 3).double(), x, y, views=views, loss=loss)
    compare(nn.Linear(4, 3).double(), x, y, views=views, loss=loss)


def test_one_tensor_for_all_examples(compare):
    """Rows that lie on each other, as `expand` leaves them, can't be written to without a copy."""
    x = torch.randn(1, 4).double()
    compare(Writing(WRITES["add"]).double(), x.expand(5, 4), torch.arange(5) % 3)


@pytest.mark.filterwarnings("ignore:this model cannot be vectorised")
@pytest.mark.parametrize("views", [1, 2])
def test_the_slow_path_leaves_inputs_and_targets_as_they_were(compare, views):
    class Slow(Writing):
        def forward(self, x):
            return super().forward(x) * float(x.detach().abs().amax())

    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets.add_(1).remainder_(3))

    x, y = torch.randn(5, *[views][: views - 1], 4).double(), torch.arange(5) % 3
    unchanged(Slow(WRITES["add"]).double(), x, y, views=views, loss=loss)
    compare(Slow(WRITES["add"]).double(), x, y, views=views, loss=loss)


def test_the_self_check_of_a_model_that_writes():
    gradient = ClippedGradient(Writing(WRITES["add"]), F.cross_entropy, views=2)
    gradient.self_check((4,))
    gradient.explain(torch.zeros(3, 2, 4))
    assert gradient.bytes_per_example((4,)) > 0


def test_a_gradient_path_that_is_missed_once_more_meets_the_inputs_as_they_were(compare):
    class Skipping(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.first, self.extra = [0], nn.Linear(4, 3), nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.calls[0] += 1
            return self.first(x.add_(1)) * (self.extra if self.calls[0] > 1 else 1)

    compare(Skipping().double(), torch.randn(3, 4).double(), torch.arange(3))


def test_an_ordinary_batch_is_not_copied(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    gradient, writing = (ClippedGradient(m, F.cross_entropy) for m in (model, Writing(WRITES["add"])))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    gradient(x, y), writing(x, y)
    monkeypatch.setattr(torch, "clone", None)
    monkeypatch.setattr(torch.Tensor, "clone", None)
    gradient(x, y)
    with pytest.raises(TypeError):
        writing(x, y)


def test_a_model_that_starts_to_write_later_is_refused():
    class Later(Writing):
        calls = 0

        def forward(self, x):
            return super().forward(x) if Later.calls else self.layer(x) + self.shift.sum()

    gradient, x = ClippedGradient(Later(WRITES["add"]), F.cross_entropy), torch.randn(3, 4)
    gradient(x, torch.arange(3))
    Later.calls = 1
    with pytest.raises(SfumatoError, match="wrote to the inputs or targets of the call"):
        gradient(x, torch.arange(3))


def test_inputs_that_count_no_writes():
    with torch.inference_mode():
        x = torch.randn(3, 4)
    before = x.clone()
    total = ClippedGradient(Writing(WRITES["add"]), F.cross_entropy)(x, torch.arange(3))
    assert total.norms.isfinite().all()
    assert torch.equal(x, before)


@pytest.mark.parametrize("how", ["add", "relu", "by a condition"])
def test_outputs_alone_leaves_its_inputs_as_they_were(how):
    model, x = Writing(WRITES[how]), torch.randn(5, 4)
    before = x.clone()
    found = per_example_outputs(model, x)
    assert torch.equal(x, before)
    with torch.no_grad():
        expected = torch.cat([model(row.clone()) for row in x.split(1)])
    torch.testing.assert_close(found, expected)
