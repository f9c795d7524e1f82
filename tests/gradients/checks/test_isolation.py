"""Isolation: everything through which one example could reach another is refused."""

from collections import deque

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient


def run(model, loss=F.cross_entropy):
    return ClippedGradient(model, loss)(torch.randn(3, 4), torch.arange(3))


def net(*modules):
    return nn.Sequential(nn.Linear(4, 3), *modules)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.BatchNorm1d(3), "batch norm"),
        (nn.BatchNorm1d(3, track_running_stats=False).eval(), "batch norm"),
        (nn.SyncBatchNorm(3), "synchronised batch norm"),
    ],
)
def test_batch_norm_of_data_is_refused_with_the_ways_out(module, kind):
    with pytest.raises(SfumatoError) as refusal:
        ClippedGradient(net(nn.Sequential(module)), F.cross_entropy)
    message = str(refusal.value)
    assert "module '1.0'" in message
    assert f"is {kind} that normalises by the private batch" in message
    for method in ("normalisation=group", "public-batch", "sfumato.models.replace_norms", ".eval()"):
        assert method in message
    assert "\n" not in message


def test_batch_norm_that_is_thawed_later_is_refused():
    model = net(nn.BatchNorm1d(3).eval())
    gradient = ClippedGradient(model, F.cross_entropy)
    gradient(torch.randn(3, 4), torch.arange(3))
    model.train()
    with pytest.raises(SfumatoError, match="batch norm"):
        gradient(torch.randn(3, 4), torch.arange(3))


def test_frozen_batch_norm_is_exact(compare):
    model = nn.Sequential(nn.Conv2d(2, 4, 3, 2), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 3, 1), nn.Flatten()).eval()
    nn.init.uniform_(model[1].running_var, 0.5, 2)
    nn.init.uniform_(model[1].weight, 0.5, 2)
    model = nn.Sequential(model, nn.Linear(12, 3)).double()
    compare(model, torch.randn(3, 2, 5, 5, dtype=torch.float64), torch.arange(3))
    model[0][1].requires_grad_(False)
    compare(model, torch.randn(3, 2, 5, 5, dtype=torch.float64), torch.arange(3))


def test_batch_norm_of_weights_is_no_batch_norm_of_data(compare):
    class Standardised(nn.Linear):
        def forward(self, x):
            weight = F.batch_norm(self.weight.reshape(1, self.out_features, -1), None, None, training=True)
            return F.linear(x, weight.reshape_as(self.weight), self.bias)

    compare(Standardised(4, 3).double(), torch.randn(3, 4, dtype=torch.float64), torch.arange(3))


def test_running_instance_norm_and_max_norm_are_refused():
    with pytest.raises(SfumatoError, match="running statistics"):
        ClippedGradient(net(nn.InstanceNorm1d(3, track_running_stats=True)), F.cross_entropy)
    with pytest.raises(SfumatoError, match="max_norm=1"):
        ClippedGradient(net(nn.Embedding(3, 4, max_norm=1.0)), F.cross_entropy)


class Keeping(nn.Module):
    """Stores something of its input, in one of many ways."""

    def __init__(self, method):
        super().__init__()
        self.method, self.linear, self.cache, self.history = method, nn.Linear(4, 3), {}, []
        self.memory, self.count = None, 0
        self.plain = torch.zeros(3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        y = self.linear(x)
        match self.method:
            case "attribute":
                self.memory = y
            case "new attribute":
                self.fresh = y.detach()
            case "buffer":
                self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            case "buffer in place":
                self.mean.mul_(0.9).add_(y.detach().mean(0))
            case "attribute in place":
                self.plain.add_(1)
            case "dict":
                self.cache["bias"] = y.detach()
            case "list":
                self.history.append(y.detach())
            case "number":
                self.count = 0.9 * self.count + y.mean().item()
            case "weights":
                with torch.no_grad():
                    self.linear.bias.add_(1)
        return y


PLACES = {
    "attribute": "memory",
    "new attribute": "fresh",
    "buffer": "mean",
    "buffer in place": "mean",
    "attribute in place": "plain",
    "dict": "cache.bias",
    "list": "history.0",
    "number": "count",
    "weights": "linear.bias",
}


@pytest.mark.parametrize("method", PLACES)
def test_a_module_that_keeps_something_is_refused_by_name(method):
    model = nn.Sequential(nn.Identity(), Keeping(method))
    with pytest.raises(SfumatoError, match=f"value in '(1.)?{PLACES[method]}'"):
        run(model)
    assert model[1].memory is None
    assert not hasattr(model[1], "fresh")
    assert model[1].cache == {}
    assert model[1].history == []
    assert torch.equal(model[1].mean, torch.zeros(3))


def test_a_loss_that_keeps_something_is_refused():
    class Remembering(nn.Module):
        def forward(self, outputs, targets):
            self.last = outputs
            return F.cross_entropy(outputs, targets)

    with pytest.raises(SfumatoError, match=r"loss\.last"):
        run(net(), Remembering())


def test_a_model_that_starts_to_keep_something_later_is_refused():
    model = Keeping("nothing")
    gradient = ClippedGradient(model, F.cross_entropy)
    gradient(torch.randn(3, 4), torch.arange(3))
    model.method = "attribute"
    with pytest.raises(SfumatoError, match="memory"):
        gradient(torch.randn(3, 4), torch.arange(3))


class Remembers(nn.Module):
    """Stores something of an example without a change of version."""

    def __init__(self, buffer):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        if buffer:
            self.register_buffer("n", torch.zeros(()))
        else:
            self.n = torch.zeros(())

    def forward(self, x):
        outputs = self.layer(x) + 100 * self.n * torch.arange(3.0)
        self.n.data.fill_(float(x.mean().item() > 0))
        return outputs


@pytest.mark.filterwarnings("ignore:this model cannot be vectorised")
def test_a_write_past_the_versions_of_a_buffer_reaches_no_other_example():
    model, y = Remembers(buffer=True), torch.tensor([2, 0, 1])
    x = torch.stack([torch.ones(4), -torch.ones(4), torch.ones(4)])
    gradient = ClippedGradient(model, F.cross_entropy)
    whole, rest = gradient(x, y), gradient(x[1:], y[1:])
    assert torch.equal(whole.norms[1:], rest.norms)
    moved = torch.cat([(whole.gradients[n] - rest.gradients[n]).flatten() for n in whole.gradients])
    assert moved.double().norm() <= 1 + 1e-6
    assert model.n == 0


@pytest.mark.filterwarnings("ignore:this model cannot be vectorised")
def test_a_write_past_the_versions_of_an_attribute_is_refused():
    with pytest.raises(SfumatoError, match=r"new or changed value in 'n'.*parametrizations"):
        ClippedGradient(Remembers(buffer=False), F.cross_entropy)(torch.ones(3, 4), torch.arange(3))


class Held:
    """A helper object that holds something, with and without a dictionary of attributes."""

    def __init__(self):
        self.value = torch.zeros(3)

    def __call__(self, y):
        self.value = y


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = torch.zeros(3)


class KeepsAside(nn.Module):
    """Stores something of an example in a place that torch does not track."""

    def __init__(self, method):
        super().__init__()
        self.method, self.linear = method, nn.Linear(4, 3)
        self.helper, self.slotted, self.recent, self.unknown = Held(), Slotted(), deque(maxlen=2), [nn.Module()]
        self.numbers = np.zeros(3)

    def forward(self, x):
        y = self.linear(x)
        match self.method:
            case "helper.value":
                self.helper(y.detach())
            case "slotted.value":
                self.slotted.value = y.detach()
            case "recent.0":
                self.recent.append(y.detach())
            case "unknown.0.mean":
                self.unknown[0].mean = y.detach()
            case "numbers":
                self.numbers += 1
        return y


@pytest.mark.parametrize("method", ["helper.value", "slotted.value", "recent.0", "unknown.0.mean", "numbers"])
def test_what_is_kept_aside_is_found(method):
    with pytest.raises(SfumatoError, match=f"value in '{method}'"):
        run(KeepsAside(method))


def test_holding_something_from_the_beginning_is_no_offence():
    run(KeepsAside("nothing"))
