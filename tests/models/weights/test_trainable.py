"""Which parameters are trained."""

import pytest

from sfumato._checks import SfumatoError
from sfumato.models import create, select_trainable


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_words_and_patterns_name_parameters():
    model = create("wrn-16-1", classes=3, channels=3, size=16)
    everything = trained(model)
    select_trainable(model, ["classifier"])
    assert trained(model) == {"head.weight", "head.bias"}
    select_trainable(model, ["first"])
    assert trained(model) == {"stem.weight", "stem.bias"}
    select_trainable(model, ["norm"])
    assert trained(model) == {name for name in everything if "norm" in name}
    select_trainable(model, ["blocks.3.*", "classifier"])
    assert trained(model) == {name for name in everything if name.startswith(("blocks.3.", "head."))}
    select_trainable(model, ["all"])
    assert trained(model) == everything


def test_a_frozen_batch_norm_keeps_to_its_public_statistics():
    model = create("timm:resnet10t", classes=3, channels=3, size=32)
    model.train()
    select_trainable(model, ["classifier"])
    assert not model.bn1.training
    assert trained(model) == {"fc.weight", "fc.bias"}
    model.train()
    select_trainable(model, ["layer1.*"])
    assert model.get_submodule("layer1.0.bn1").training
    assert not model.get_submodule("layer2.0.bn1").training


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["claasifier"], "trainable 'claasifier' matches no parameter of the model; give all, classifier, norm, first"),
        ([], "must be a list"),
        ("all", "must be a list"),
    ],
)
def test_what_names_nothing_is_refused(patterns, words):
    model = create("linear", classes=3, channels=1, size=8)
    with pytest.raises(SfumatoError, match=words):
        select_trainable(model, patterns)
