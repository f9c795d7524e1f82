"""Ten families of timm, none of which needed a line of code of its own, against the oracle in float64."""

import pytest
import torch
from torch import nn

timm = pytest.importorskip("timm")

# Name, side of the image, options. All are small members of their families.
MODELS = [
    ("vit_tiny_patch16_224", 32, {"img_size": 32, "depth": 2}),
    ("deit_tiny_distilled_patch16_224", 32, {"img_size": 32, "depth": 2}),
    ("convnext_atto", 32, {"depths": (1, 1, 2, 1)}),
    ("test_nfnet", 32, {}),
    ("nf_resnet26", 32, {}),
    ("resnet26", 32, {"norm_layer": "groupnorm"}),
    ("mixer_s32_224", 32, {"img_size": 32}),
    ("resmlp_12_224", 32, {"img_size": 32}),
    ("gmlp_ti16_224", 32, {"img_size": 32}),
    ("poolformer_s12", 32, {}),
    ("xcit_nano_12_p8_224", 32, {"depth": 2}),
    ("mobilenetv3_small_050", 32, {}),
    ("regnetx_002", 32, {}),
    ("test_efficientnet_gn", 32, {}),
    ("crossvit_tiny_240", 240, {"depth": ([1, 1, 0], [1, 1, 0], [1, 1, 0])}),
    ("levit_128s", 224, {}),
    ("coat_lite_tiny", 32, {"img_size": 32}),
    ("swin_tiny_patch4_window7_224", 32, {"img_size": 32, "depths": (1, 1, 1, 1)}),
]


@pytest.mark.parametrize(("name", "side", "options"), MODELS, ids=[name for name, *_ in MODELS])
def test_timm_models_are_exact(compare, name, side, options):
    model = timm.create_model(name, pretrained=False, num_classes=5, **options).double()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        elif type(module).__name__ == "DropPath":
            module.eval()
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    gradient = compare(model, x, torch.arange(2), tolerance=1e-8)
    assert gradient.unused_parameters == ()
