"""How models are spelt."""

import pytest

from sfumato._checks import SfumatoError
from sfumato.models import create
from sfumato.models.registry import parse


def test_options_follow_after_commas():
    assert parse("timm:vit_tiny_patch16_224,qkv_bias=False,depth=2,act_layer=gelu") == (
        "timm:vit_tiny_patch16_224",
        {"qkv_bias": False, "depth": 2, "act_layer": "gelu"},
    )


@pytest.mark.parametrize("length", [900, 5000, 100_000])
def test_a_value_that_no_parser_takes_is_text(length):
    """Python's own ends with a different error for each of these lengths."""
    value = "-" * length + "1"
    assert parse(f"cnn,a={value}") == ("cnn", {"a": value})


@pytest.mark.parametrize("spelling", ["cnn,", "cnn,norm", "cnn,=3", "cnn,a b=3"])
def test_what_is_no_option_is_refused(spelling):
    with pytest.raises(SfumatoError, match="is not an option; write options as in wrn-16-4,norm=none"):
        parse(spelling)


def test_an_option_given_twice_is_refused():
    with pytest.raises(SfumatoError, match="given twice"):
        parse("wrn-16-1,norm=none,norm=group")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrn-16-1,bias=8", "has no option bias; it takes form, norm, standardise, groups"),
        ("wrn-16-1,groups=3", "groups must divide 16, got 3"),
        ("wrn-16-1,norm=batch", "norm must be one of group, none; got 'batch'"),
        ("timm:resnet10t,skipinit=1", "model 'timm:resnet10t' has no gains to set to skipinit=1"),
        ("timm:resnet10t,no_such_option=1", "cannot be created"),
        ("timm:resnet10t,checkpoint_path=w.pth", "cannot be given checkpoint_path=w.pth; give weights by pretrained"),
        ("timm:test_vit,img_size=64", "cannot be given img_size=64; .* size come from the source"),
    ],
)
def test_an_option_that_a_model_lacks_is_refused(name, words):
    with pytest.raises(SfumatoError, match=words):
        create(name, classes=3, channels=3, size=32)
