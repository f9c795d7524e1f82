import torch
import torch.nn.functional as F
from torch import nn

from sfumato.models import create


def names_of(model, *types):
    return [name for name, module in model.named_modules() if isinstance(module, types)]


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
