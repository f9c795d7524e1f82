"""The models whose layers the option `norm` normalises, against the oracle, and their refusal where norms couple
examples."""

import pytest
import torch
import torch.nn.functional as F

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.models import create

TOLERANCE = 1e-7
"""Sums are rounded to a grid, and what that comes to grows with the number of weights: ten millions here."""
CHECKED = [
    ("lenet-300-100,norm=group,norm_last=1", 1, 8),
    ("lenet5,norm=instance,norm_last=1", 3, 16),
    ("vgg,norm=group,mod=1", 1, 8),
    *(("tf-tutorial" + norm, 1, 8) for norm in ("", ",norm=layer,norm_last=1")),
]


@pytest.mark.parametrize(("name", "channels", "size"), CHECKED)
def test_clipped_sums_are_exact(compare, name, channels, size):
    model = create(name, classes=4, channels=channels, size=size).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) / max(1.0, parameter[0].numel() ** 0.5))
    images = torch.randn(2, channels, size, size, dtype=torch.float64)
    gradient = compare(model, images, torch.tensor([0, 3]), tolerance=TOLERANCE)
    assert gradient.unused_parameters == ()


@pytest.mark.parametrize("name", ["lenet5,norm=batch,norm_last=1", "resnet-18"])
def test_batch_norm_is_refused_by_name(name):
    model = create(name, classes=4, channels=3, size=32)
    first = next(place for place, module in model.named_modules() if "BatchNorm" in type(module).__name__)
    with pytest.raises(SfumatoError, match=rf"'{first}' .* is batch norm that normalises by the private batch"):
        ClippedGradient(model, F.cross_entropy)(torch.randn(2, 3, 32, 32), torch.arange(2))
