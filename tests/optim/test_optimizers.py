import pytest
import torch

from sfumato._checks import SfumatoError
from sfumato.optim import create


def test_unknown_name_lists_the_names():
    with pytest.raises(SfumatoError, match="sgd, momentum, adam, adamw, lamb; got 'lion'"):
        create("lion", [torch.nn.Parameter(torch.ones(1))], learning_rate=0.1)


@pytest.mark.parametrize("name", ["LAMB", "lamb,beta2=0.9,epsilon=1e-8", "lamb:decay=0.1"])
def test_a_name_with_options_is_refused_and_the_name_alone_proposed(name):
    with pytest.raises(SfumatoError, match=r"got '.*'; give only the name, lamb: momentum and weight decay"):
        create(name, [torch.nn.Parameter(torch.ones(1))], learning_rate=0.1)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"learning_rate": 0.0}, "learning_rate"), ({"momentum": 1.0}, "momentum"), ({"weight_decay": -1.0}, "weight")],
)
def test_numbers_out_of_range_are_refused(settings, word):
    with pytest.raises(SfumatoError, match=word):
        create("adam", [torch.nn.Parameter(torch.ones(1))], **{"learning_rate": 0.1, **settings})


def test_no_parameters_is_refused():
    with pytest.raises(SfumatoError, match="parameters"):
        create("sgd", [], learning_rate=0.1)
