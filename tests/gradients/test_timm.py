"""Models of timm, none of which needed a line of code of its own, against the oracle in float64.

They have among them every kind of layer of the 160 that `benchmarks/trust/zoo.py` sweeps.
"""

import json
from importlib.metadata import version

import pytest
import torch
import torch.nn.functional as F

from benchmarks import RESULTS
from benchmarks.shared import timm_models
from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.models import create

FLOAT64_SINCE = {"vit_base_patch16_rope_mixed_224": (1, 0, 31)}
"""Before these versions timm itself ran the model in float32 alone, and the oracle's tolerance is float64's."""


LARGE = {
    *("nasnet", "efficientformerv2_s0", "mobilenetv5_base", "tresnet_m", "lowformer_b0", "levit_128s", "res2next50"),
    *(
        "volo_d1",
        "resnet26 groupnorm",
        "skresnet18",
        "ghostnetv2",
        "test_coatnet",
        "vit_tiny_r_s16_p8_224",
        "coat_tiny",
    ),
    *("swinv2_tiny_window8_256", "mvitv2", "resnetv2_50x1_bit", "hieradet_small"),
}
"""Half a second to two each."""


@pytest.mark.parametrize(
    "label", [pytest.param(one, marks=pytest.mark.slow) if one in LARGE else one for one in timm_models.CHOSEN]
)
def test_timm_models_are_exact(compare, request, label):
    row = timm_models.MODELS[label]
    if label.startswith("sequencer"):  # of LSTMs
        request.getfixturevalue("a_whole_device")
    if tuple(map(int, version("timm").split(".")[:3])) < FLOAT64_SINCE.get(label, ()):
        pytest.skip("this version of timm does not run it in float64")
    if not row.exists:
        pytest.skip("not in this version of timm")
    model, images, targets, loss = timm_models.problem(row)
    gradient = compare(model, images, targets, loss=loss, tolerance=row.tolerance)
    assert gradient.unused_parameters == timm_models.unused(row, model)


def test_the_sweep_agreed_and_has_no_kind_of_layer_that_is_not_tested_here():
    found = json.loads((RESULTS / "zoo.json").read_text())
    assert found["models"].keys() == timm_models.MODELS.keys()
    assert all(row["agrees"] for row in found["models"].values())
    assert found["chosen"] == list(timm_models.CHOSEN)
    assert found["kinds"] > 100
    assert found["kinds_that_the_chosen_lack"] == []


def test_timm_model_that_keeps_an_attribute_from_its_first_forward_pass_is_refused_until_then():
    model = timm_models.build(timm_models.MODELS["convit_tiny"])
    gradient = ClippedGradient(model, F.cross_entropy)
    inputs, targets = torch.randn(2, 3, 32, 32, dtype=torch.float64), torch.arange(2)
    with pytest.raises(SfumatoError, match=r"blocks\.0\.attn\.rel_indices"):
        gradient(inputs, targets)
    model(torch.zeros(1, 3, 32, 32, dtype=torch.float64))
    assert gradient(inputs, targets).norms.isfinite().all()


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
