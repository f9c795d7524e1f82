import torch
from torch.func import functional_call, grad, vmap

from sfumato.models.norms import WSConv2d, standardise


def test_rows_have_mean_zero_and_variance_one_over_fan_in():
    weight = standardise(3 + 5 * torch.randn(7, 4, 3, 3, generator=torch.Generator().manual_seed(0)))
    rows = weight.flatten(1).double()
    torch.testing.assert_close(rows.mean(1), torch.zeros(7, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.square().mean(1), torch.full((7,), 1 / 36, dtype=torch.float64), atol=1e-6, rtol=0)


def test_constant_rows_stay_finite():
    weight = torch.ones(2, 1, 1, 1, requires_grad=True)
    standardise(weight).sum().backward()
    assert torch.equal(standardise(weight), torch.zeros(2, 1, 1, 1))
    assert weight.grad is not None
    assert torch.isfinite(weight.grad).all()


def test_shift_and_scale_of_the_weight_do_not_change_the_output():
    torch.manual_seed(0)
    layer, images = WSConv2d(2, 4, 3, padding=1), torch.randn(2, 2, 6, 6)
    before = layer(images)
    with torch.no_grad():
        layer.weight.mul_(7).add_(1)
    torch.testing.assert_close(layer(images), before, atol=1e-4, rtol=1e-4)


def test_gradients_per_example_add_up_under_vmap():
    torch.manual_seed(0)
    layer, images = WSConv2d(2, 4, 3), torch.randn(5, 2, 6, 6)
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def loss(parameters, batch):
        return functional_call(layer, parameters, (batch,)).square().sum()

    single = vmap(grad(loss), in_dims=(None, 0))(parameters, images.unsqueeze(1))
    whole = grad(loss)(parameters, images)
    torch.testing.assert_close(single["weight"].sum(0), whole["weight"], atol=1e-4, rtol=1e-4)
