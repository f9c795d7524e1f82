"""A site of one's own, as CONTRIBUTING.md refers to it: it is exact, and used."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.gradients import taps
from sfumato.gradients.sites import Site
from sfumato.gradients.use import Instantiated


class PReLUSite(Site):
    """max(0, x) + w min(0, x) with a slope for each channel, or one for all."""

    kind = "prelu"

    def __init__(self, weight):
        super().__init__(weight=weight)

    def forward(self, inputs):  # (B*K, C, ...): the ordinary kernel, and what the backward wants to see again
        return F.prelu(inputs, self.constant("weight", inputs)), (inputs,)

    def backward(self, saved, output_gradients, wanted):
        (inputs,) = saved
        if self.needs_gradient("weight"):
            products = output_gradients * inputs.clamp_max(0)
            products = products.reshape(*products.shape[:2], -1).sum(2)  # (B*K, C)
            each = products.unflatten(0, (self.examples, -1)).sum(1)  # (B, C): over an example's views
            shared = len(self.operands["weight"]) == 1
            self.add("weight", Instantiated(each.sum(1, keepdim=True) if shared else each))
        slope = self.constant("weight", inputs).reshape(1, -1, *[1] * (inputs.dim() - 2))
        return output_gradients * (inputs > 0).logical_not().mul(slope - 1).add(1) if wanted else None


def tap(mode, input, weight):
    """The handler of F.prelu: NotImplemented lets torch do as it would."""
    return mode.call(PReLUSite(weight), input) if input.dim() > 1 else NotImplemented


@pytest.mark.parametrize("slopes", [1, 4])
@pytest.mark.parametrize("views", [1, 2])
def test_a_site_of_ones_own_is_exact_and_used(compare, monkeypatch, slopes, views):
    monkeypatch.setattr(taps, "HANDLERS", {**taps.HANDLERS, F.prelu: tap})
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.PReLU(slopes), nn.Flatten(), nn.Linear(16, 3)).double()
    batch = [views] if views > 1 else []
    gradient = compare(model, torch.randn(3, *batch, 2, 6).double(), torch.arange(3), views=views)
    rows = gradient.explain(torch.zeros(2, *batch, 2, 6, dtype=torch.float64)).rows
    assert "prelu" in [row.kind for row in rows]
