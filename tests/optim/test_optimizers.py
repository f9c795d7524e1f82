import pytest
import torch

from sfumato._checks import SfumatoError
from sfumato.optim import create, schedule


def test_unknown_name_lists_the_names():
    with pytest.raises(SfumatoError, match="sgd, momentum, adam, adamw, lamb; got 'lion'"):
        create("lion", [torch.nn.Parameter(torch.ones(1))], learning_rate=0.1)


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


def test_an_unknown_schedule_lists_the_names():
    with pytest.raises(SfumatoError, match=r"constant, cosine, linear, step.*'stepwise'"):
        schedule("stepwise", steps=3)


@pytest.mark.parametrize("warmup", [-1, 3, 1.0, True])
def test_bad_warmup_is_refused(warmup):
    with pytest.raises(SfumatoError, match="warmup"):
        schedule("constant", steps=3, warmup=warmup)


def test_step_past_the_last_is_refused():
    with pytest.raises(SfumatoError, match="between 0 and 2"):
        schedule("constant", steps=3)(3)
