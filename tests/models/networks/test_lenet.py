import torch
import torch.nn.functional as F
from torch import nn

from sfumato.models import create


def names_of(model, *types):
    return [name for name, module in model.named_modules() if isinstance(module, types)]


def test_lenet_300_100_has_its_size():
    model = create("lenet-300-100", classes=10, channels=1, size=28)
    assert sum(parameter.numel() for parameter in model.parameters()) == 784 * 300 + 300 + 300 * 100 + 100 + 1010


def test_lenet5_without_options_has_neither_other_names_nor_other_beginnings():
    torch.manual_seed(3)
    model = create("lenet5", classes=10, channels=1, size=28)
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5), nn.Linear(400, 120), nn.Linear(120, 84)]
    assert list(model.state_dict()) == [
        f"{layer}.{kind}" for layer in ("conv1", "conv2", "hidden1", "hidden2", "head") for kind in ("weight", "bias")
    ]
    own = [model.conv1, model.conv2, model.hidden1, model.hidden2]
    assert all(torch.equal(one.weight, other.weight) for one, other in zip(own, layers, strict=True))
    assert not model.head.weight.any()
    images = torch.randn(2, 1, 28, 28)
    features = F.avg_pool2d(layers[0](images).tanh(), 2)
    features = F.avg_pool2d(layers[1](features).tanh(), 2).flatten(1)
    with torch.no_grad():
        model.head.weight.normal_()
    expected = model.head(layers[3](layers[2](features).tanh()).tanh())
    assert torch.equal(model(images), expected)


def test_norms_stand_after_all_layers_but_the_last_and_in_the_augmented_form_there_too():
    for name, norms in (("lenet-300-100", 2), ("lenet5", 4)):
        model = create(f"{name},norm=layer", classes=10, channels=1, size=28)
        augmented = create(f"{name},norm=layer,norm_last=1", classes=10, channels=1, size=28)
        assert len(names_of(model, nn.LayerNorm, nn.GroupNorm)) == norms
        assert names_of(augmented, nn.LayerNorm, nn.GroupNorm)[-1] == "norm_of_logits"
        assert augmented.head.weight.any()
        logits = augmented(torch.randn(3, 1, 28, 28))
        torch.testing.assert_close(logits.mean(1), torch.zeros(3), atol=1e-5, rtol=0)


def test_scale_of_the_weights_does_not_matter_in_the_augmented_form():
    """What the robustness to noise rests on (Davody et al. 2020, section 2)."""
    images = 3 * torch.rand(4, 1, 28, 28)
    for kind in ("layer", "group"):
        model = create(f"lenet5,norm={kind},norm_last=1", classes=10, channels=1, size=28)
        logits = model(images)
        with torch.no_grad():
            for layer in (model.conv1, model.conv2, model.hidden1, model.hidden2, model.head):
                layer.weight.mul_(7), layer.bias.mul_(7)
        torch.testing.assert_close(model(images), logits, atol=1e-2, rtol=1e-2)


def test_the_activation_is_tanh_or_relu():
    images = torch.randn(2, 1, 28, 28)
    for activation, function in (("tanh", torch.tanh), ("relu", torch.relu)):
        model = create(f"lenet5,activation={activation}", classes=10, channels=1, size=28)
        seen = []
        model.hidden2.register_forward_hook(lambda _m, _i, output, seen=seen: seen.append(output))
        with torch.no_grad():
            model.head.weight.normal_()
        assert torch.equal(model(images), model.head(function(seen[0])))
