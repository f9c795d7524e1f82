"""Autocast inside a model is reported when it makes the self-check fail."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, SfumatoError


class Coarse(nn.Linear):
    """Enables autocast in its forward pass."""

    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(inputs).to(inputs.dtype)


@pytest.mark.parametrize("views", [1, 2])
def test_it_is_named_with_the_option_that_is_there(views):
    with pytest.raises(SfumatoError, match=r"computes in bfloat16 in its forward pass.*precision=bfloat16"):
        ClippedGradient(Coarse(20, 3), functional.cross_entropy, views=views).self_check((20,))


def test_a_self_check_under_autocast_is_named():
    gradient = ClippedGradient(nn.Linear(20, 3), functional.cross_entropy)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(SfumatoError, match="call it outside"):
        gradient.self_check((20,))
    gradient.self_check((20,))
    with torch.autocast("cpu", torch.bfloat16):
        assert gradient(torch.randn(4, 20), torch.arange(4) % 3).norms.dtype == torch.float64
