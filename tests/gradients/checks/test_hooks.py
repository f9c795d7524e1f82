"""Backward hooks and compiled code: refused by name where the clipped sum would not call them, honoured elsewhere."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

from sfumato import SfumatoError
from sfumato.gradients import ClippedGradient

X, Y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Tanh()), nn.Linear(5, 3))


def thrice(*arguments):
    return tuple(3 * gradient for gradient in arguments[-1] if gradient is not None)


HOOKS = {
    "backward": (
        lambda m: m[1][0].register_full_backward_hook(lambda module, of_inputs, of_outputs: thrice(of_inputs)),
        r"module '1\.0' \(Tanh\) has a backward hook \(register_full_backward_hook or register_backward_hook\)",
    ),
    "backward pre": (
        lambda m: m[1].register_full_backward_pre_hook(thrice),
        r"module '1' \(Sequential\) has a backward pre-hook \(register_full_backward_pre_hook\)",
    ),
    "of the model": (
        lambda m: m.register_full_backward_hook(lambda *a: None),
        r"the model \(Sequential\) has a backward hook \(register_full_backward_hook or register_backward_hook\)",
    ),
    "not full": (
        lambda m: m[0].register_backward_hook(lambda *a: None),
        r"module '0' \(Linear\) has a backward hook \(register_full_backward_hook or register_backward_hook\)",
    ),
    "of all modules": (
        lambda m: register_module_full_backward_hook(lambda *a: None),
        r"a backward hook of all modules \(register_module_full_backward_hook\)",
    ),
    "parameter": (
        lambda m: m[0].weight.register_hook(lambda gradient: 3 * gradient),
        r"parameter '0\.weight' has a gradient hook \(register_hook\)",
    ),
    "accumulated": (
        lambda m: m[2].bias.register_post_accumulate_grad_hook(lambda parameter: None),
        r"parameter '2\.bias' has a gradient hook \(register_post_accumulate_grad_hook\)",
    ),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_that_wait_for_a_batch_are_refused_by_name(kind):
    register, message = HOOKS[kind]
    model = net()
    gradient = ClippedGradient(model, F.cross_entropy)
    before = gradient(X, Y).norms
    handle = register(model)
    try:
        with pytest.raises(SfumatoError, match=rf"{message}, which the clipped sum would not call;.*handle\.remove"):
            ClippedGradient(model, F.cross_entropy)
        for use in (lambda: gradient(X, Y), lambda: gradient.self_check((4,)), lambda: gradient.explain(X)):
            with pytest.raises(SfumatoError, match=message):
                use()
    finally:
        handle.remove()
    assert torch.equal(gradient(X, Y).norms, before)


def test_a_hook_of_a_frozen_parameter_does_nothing_here_nor_there():
    model = net()
    model[0].weight.register_hook(lambda gradient: 3 * gradient)
    model[0].weight.requires_grad_(False)
    ClippedGradient(model, F.cross_entropy)(X, Y)


def test_a_hook_of_the_loss_is_refused():
    class Loss(nn.CrossEntropyLoss):
        pass

    loss = nn.Sequential(Loss())
    loss[0].register_full_backward_hook(lambda *a: None)
    with pytest.raises(SfumatoError, match=r"loss module 'loss\.0' \(Loss\) has a backward hook"):
        ClippedGradient(net(), loss)


def test_forward_hooks_run_as_ever(compare, there):
    model = net().double()
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    model[1].register_forward_hook(lambda module, inputs, outputs: outputs * inputs[0].sigmoid())
    model[2].register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    gradient = compare(model, X.double(), Y)
    plain = ClippedGradient(*there(net().double()), F.cross_entropy)
    plain._model.load_state_dict(model.state_dict())
    assert not torch.allclose(gradient(X.double(), Y).norms, plain(*there(X.double(), Y)).norms)


class Hooked(nn.Module):
    """Registers hooks on an activation; several hooks run in turn."""

    def __init__(self, *hooks):
        super().__init__()
        self.first, self.last, self.hooks = nn.Linear(4, 5), nn.Linear(5, 3), hooks

    def forward(self, x):
        x = self.first(x).tanh()
        for hook in self.hooks:
            x.register_hook(hook)
        return self.last(x)


SEEN = []
GRADIENT_HOOKS = {
    "scaled": [lambda gradient: 3 * gradient],
    "reversed, then shifted": [lambda gradient: -gradient, lambda gradient: gradient + 1],
    "of length one": [lambda gradient: gradient / gradient.norm()],
    "of length one if long": [
        lambda gradient: torch.where(gradient.norm() > 0.1, gradient / gradient.norm(), gradient)
    ],
    "looked at": [lambda gradient: SEEN.append(gradient.shape)],
}


@pytest.mark.parametrize("kind", GRADIENT_HOOKS)
def test_a_hook_on_an_activation_sees_each_example_s_gradient(kind):
    model, views = Hooked(*GRADIENT_HOOKS[kind]).double(), 2
    x = torch.randn(5, views, 4).double()
    gradient = ClippedGradient(model, F.cross_entropy, max_norm=0.5, views=views)
    total = gradient(x, Y)
    assert gradient._batches.latest.fast
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for index, example in enumerate(x):
        loss = F.cross_entropy(model(example.reshape(views, 4)), Y[index].expand(views))
        found = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.stack([value.norm() for value in found]).norm()
        torch.testing.assert_close(total.norms[index], norm)
        for name, value in zip(expected, found, strict=True):
            expected[name] += value * min(1.0, 0.5 / float(norm))
    torch.testing.assert_close(total.gradients, expected)


@pytest.mark.parametrize(
    "made",
    [lambda w: w, lambda w: w.t().t(), lambda w: 2 * w, lambda w: w.view(3, 4)],
    ids=["w", "w.t()", "2 w", "view"],
)
def test_a_hook_on_a_weight_in_the_forward_pass_is_refused(made):
    class Model(nn.Linear):
        def forward(self, x):
            weight = made(self.weight)
            weight.register_hook(lambda gradient: 3 * gradient)
            return F.linear(x, weight, self.bias)

    with pytest.raises(SfumatoError, match=r"registers a gradient hook \(register_hook\) on a weight made of weight"):
        ClippedGradient(Model(4, 3), F.cross_entropy)(X, Y)


def test_a_later_hook_on_a_weight_in_the_forward_pass_is_refused():
    class Model(nn.Linear):
        def forward(self, x):
            self.bias.register_post_accumulate_grad_hook(lambda parameter: None)
            return super().forward(x)

    with pytest.raises(SfumatoError, match=r"post_accumulate_grad_hook\) on a weight made of bias"):
        ClippedGradient(Model(4, 3), F.cross_entropy)(X, Y)


def scripted(thing):
    with pytest.warns((FutureWarning, DeprecationWarning)):
        return torch.jit.script(thing)


compiled = None  # a function that TorchScript compiled, while the test below runs


def swish(x: torch.Tensor):
    return x * x.sigmoid()


class Calls(nn.Module):
    def __init__(self, function=None):
        super().__init__()
        self.layer, self.held = nn.Linear(4, 3), function

    def forward(self, x):
        return self.layer(x) if self.held is None else self.held(self.layer(x))


class CallsGlobal(Calls):
    def forward(self, x):
        return compiled(self.layer(x))


def test_compiled_models_are_refused_by_name(monkeypatch):
    with pytest.warns((FutureWarning, DeprecationWarning)):
        traced = torch.jit.trace(nn.Linear(4, 3), X)
    monkeypatch.setitem(globals(), "compiled", scripted(swish))
    for model, message in (
        (scripted(net()), r"the model \(RecursiveScriptModule\) is compiled by TorchScript"),
        (traced, r"the model \(TopLevelTracedModule\) is compiled by TorchScript"),
        (nn.Sequential(nn.Linear(4, 4), traced), r"module '1' \(TopLevelTracedModule\) is compiled"),
        (Calls(compiled), r"the model \(Calls\) calls 'held', which is compiled by TorchScript"),
        (nn.Sequential(CallsGlobal()), r"module '0' \(CallsGlobal\) calls 'compiled', which is compiled"),
    ):
        with pytest.raises(SfumatoError, match=rf"{message}.*give the Python module"):
            ClippedGradient(model, F.cross_entropy)
    with pytest.raises(SfumatoError, match="loss is compiled by TorchScript"):
        ClippedGradient(net(), compiled)
    ClippedGradient(Calls(swish), F.cross_entropy)(X, Y)
