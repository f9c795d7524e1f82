import pytest
import torch

from sfumato._checks import SfumatoError
from sfumato.optim import NAMES, create


def walk(name, gradients, **settings):
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = create(name, [parameter], learning_rate=0.1, **settings)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    return parameter.detach().tolist()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_moves_against_the_gradient(name):
    first, second = walk(name, [[1.0, -1.0]])
    assert first < 1
    assert second > -2


def test_sgd_and_momentum_are_their_equations():
    assert walk("sgd", [[1.0, 0.0], [2.0, 0.0]], momentum=0.5) == pytest.approx([1 - 0.1 - 0.2, -2])
    assert walk("momentum", [[1.0, 0.0], [2.0, 0.0]], momentum=0.5) == pytest.approx([1 - 0.1 - 0.1 * (0.5 + 2), -2])


def test_adam_takes_unit_steps_at_first_and_momentum_is_its_first_beta():
    assert walk("adam", [[5.0, -0.01]]) == pytest.approx([0.9, -1.9], abs=1e-5)
    assert walk("adam", [[1.0, 1.0], [-1.0, -1.0]], momentum=0.0) == pytest.approx([1.0, -2.0], abs=1e-5)


def test_weight_decay_is_decoupled_in_adamw_only():
    assert walk("adamw", [[0.0, 0.0]], weight_decay=0.5) == pytest.approx([0.95, -1.9])
    assert walk("sgd", [[0.0, 0.0]], weight_decay=0.5) == pytest.approx([0.95, -1.9])
    assert walk("adam", [[0.0, 0.0]], weight_decay=0.5) == pytest.approx([0.9, -1.9], abs=1e-5)


def test_lamb_never_clips():
    # A clip to norm 1 would shrink the second gradient of the large pair only, and part the two walks.
    small = walk("lamb", [[0.003, 0.001], [0.3, 0.8]])
    large = walk("lamb", [[3.0, 1.0], [300.0, 800.0]])
    assert small == pytest.approx(large, abs=1e-4)


def test_unknown_name_lists_the_names():
    with pytest.raises(SfumatoError, match="sgd, momentum, adam, adamw, lamb; got 'lion'"):
        create("lion", [torch.nn.Parameter(torch.ones(1))], learning_rate=0.1)


@pytest.mark.parametrize("name", ["LAMB", "lamb,beta2=0.9,epsilon=1e-8", "lamb:decay=0.1"])
def test_a_name_with_options_is_refused_and_the_name_alone_proposed(name):
    with pytest.raises(SfumatoError, match=r"got '.*'; give only the name, lamb: momentum and weight decay"):
        create(name, [torch.nn.Parameter(torch.ones(1))], learning_rate=0.1)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"learning_rate": 0.0}, "learning rate"), ({"momentum": 1.0}, "momentum"), ({"weight_decay": -1.0}, "weight")],
)
def test_numbers_out_of_range_are_refused(settings, word):
    with pytest.raises(SfumatoError, match=word):
        create("adam", [torch.nn.Parameter(torch.ones(1))], **{"learning_rate": 0.1, **settings})


def test_no_parameters_is_refused():
    with pytest.raises(SfumatoError, match="parameters"):
        create("sgd", [], learning_rate=0.1)
