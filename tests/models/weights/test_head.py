"""The head alone, and on its backbone."""

import math

import pytest
import torch
from torch import nn

from sfumato._checks import SfumatoError
from sfumato.models import Architecture, begin_classifier, build_backbone, create, create_head


def test_it_starts_at_zero_and_brings_features_to_one_norm():
    head = create_head("head,norm=12.5", classes=3, width=4)
    features = torch.tensor([[3.0, 0, 0, 4], [0, 1e-3, 0, 0]])
    assert torch.equal(head(features), torch.zeros(2, 3))
    nn.init.ones_(head.head.weight)
    expected = torch.tensor([12.5 * 7 / 5, 12.5])
    torch.testing.assert_close(head(features), expected.unsqueeze(1).expand(2, 3))
    plain = create_head("head", classes=3, width=4)
    nn.init.ones_(plain.head.weight)
    torch.testing.assert_close(plain(features)[:, 0], torch.tensor([7.0, 1e-3]))


def test_a_hidden_layer_lies_before_the_zeros():
    head = create_head("head,norm=2,hidden=5", classes=3, width=4)
    assert tuple(head.hidden.weight.shape) == (5, 4)
    assert tuple(head.head.weight.shape) == (3, 5)
    features = torch.randn(2, 4)
    assert torch.equal(head(features), torch.zeros(2, 3))
    nn.init.ones_(head.head.weight)
    hidden = (2 * nn.functional.normalize(features) @ head.hidden.weight.T + head.hidden.bias).clamp(min=0)
    torch.testing.assert_close(head(features), hidden.sum(1, keepdim=True).expand(2, 3))


def test_a_zero_vector_stays_finite():
    assert torch.isfinite(create_head("head,norm=12.5", classes=3, width=4)(torch.zeros(1, 4))).all()


@pytest.mark.parametrize("spelling", ["head,norm=2", "head,norm=2,hidden=7"])
def test_on_its_backbone_it_takes_images(spelling):
    backbone = build_backbone(Architecture(name="wrn-10-1", size=16))
    whole = create_head(spelling, classes=3, width=backbone.width, backbone=backbone)
    nn.init.normal_(whole.head.weight)
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(whole(images), whole.on_features()(backbone(images)))
    keys = {key for key in whole.state_dict() if not key.startswith("backbone.")}
    assert keys == set(create_head(spelling, classes=3, width=4).state_dict())


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        ("cnn", "model 'cnn' is for images, and the source holds features of 4 numbers"),
        ("head,bias=3", "has no option bias; it takes norm, hidden"),
        ("head,norm=-1", "norm must not be negative"),
        ("head,hidden=-1", "hidden must be"),
    ],
)
def test_other_spellings_are_refused(spelling, words):
    with pytest.raises(SfumatoError, match=words):
        create_head(spelling, classes=3, width=4)


def test_a_classifier_begins_where_it_is_told():
    torch.manual_seed(0)
    model = create("wrn-10-4", classes=100, channels=3, size=16)
    body = {name: value.clone() for name, value in model.named_parameters() if not name.startswith("head.")}
    begin_classifier(model, deviation=0.5, bias=-10.0)
    assert torch.equal(model.head.bias, torch.full((100,), -10.0))
    assert math.isclose(model.head.weight.std().item(), 0.5, rel_tol=0.02)
    assert all(torch.equal(value, body[name]) for name, value in model.named_parameters() if name in body)
    begin_classifier(model, deviation=0.0, bias=None)
    assert not model.head.weight.any()
    assert torch.equal(model.head.bias, torch.full((100,), -10.0))
    with pytest.raises(SfumatoError, match="the model has none that is known"):
        begin_classifier(nn.Sequential(nn.Linear(4, 3)), deviation=0.1, bias=None)
