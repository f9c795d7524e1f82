"""How models are spelt."""

import sys
import textwrap

import pytest
import torch
from safetensors.torch import save_file

from sfumato._checks import SfumatoError
from sfumato.models import NAMES, create
from sfumato.models.registry import parse

FITTING = [
    ("lenet5", 1, 28),
    ("lenet5", 1, (12, 20)),
    ("cnn", 1, 8),
    ("linear", 1, 8),
    ("scattering", 1, 8),
    ("scattering", 1, (130, 100)),
    ("wrn-10-2,form=de2022", 1, (28, 21)),
    ("lenet-300-100,norm=instance,norm_last=1", 3, (9, 5)),
    ("lenet5,norm=batch,norm_last=1,activation=relu", 1, 28),
    ("vgg,norm=group,norm_last=1", 1, (28, 20)),
    ("resnet-18,mod=1", 3, (9, 16)),
    ("timm:resnet10t", 3, 32),
    ("timm:vit_tiny_patch16_224", 1, 32),
]


@pytest.mark.parametrize(("name", "channels", "size"), FITTING)
def test_images_in_logits_out(name, channels, size):
    model = create(name, classes=7, channels=channels, size=size)
    height, width = size if isinstance(size, tuple) else (size, size)
    assert model(torch.randn(2, channels, height, width)).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet18", ""])
def test_unknown_name_lists_the_names(name):
    with pytest.raises(SfumatoError, match="model must be one of dictionary, scattering, lenet5") as caught:
        create(name, classes=10, channels=3, size=32)
    assert all(known in str(caught.value) for known in NAMES)


def test_timm_model_that_does_not_fit_the_size_is_one_line():
    with pytest.raises(SfumatoError, match="1 x 8 x 8") as caught:
        create("timm:vit_tiny_patch16_224", classes=10, channels=1, size=8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("lenet5,norm=weight", "norm must be one of none, batch, layer"),
        ("lenet5,norm=layer,norm_last=2", "norm_last is 2"),
        ("lenet5,activation=sigmoid", "activation must be one of tanh, relu"),
        ("resnet-18,norm=none,mod=1", "norm is none"),
        ("vgg16,mod=1,norm_last=1", "at most one of the two"),
        ("cnn,norm=layer", "it takes none"),
        ("vgg16", "fails on images of 3 x 16 x 16"),
        ("wrn-15-4", "depth of a Wide-ResNet"),
        ("wrn-16-0", "width must be at least 1"),
        ("wrn-10-1,form=de2021", "form must be one of"),
        ("wrn-10-1,order=activation-first", "it takes form, norm"),
        ("timm:resnet81", "did you mean .*resnet18"),
    ],
)
def test_misspelt_options_and_sizes_that_do_not_fit_are_refused(name, word):
    with pytest.raises(SfumatoError, match=word):
        create(name, classes=10, channels=3, size=16)
    with pytest.raises(SfumatoError, match="for lenet5 must be at least 12, got 8; choose the model cnn"):
        create("lenet5", classes=10, channels=1, size=8)


def test_images_too_small_for_stored_weights_are_refused_as_they_are_without(tmp_path):
    """Their position embeddings can't be resized to no patch at all."""
    pytest.importorskip("timm")
    model = create("timm:test_vit", classes=2, channels=3, size=32)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, tmp_path / "a.safetensors")
    for pretrained in (None, str(tmp_path / "a.safetensors")):
        with pytest.raises(SfumatoError, match="model 'timm:test_vit' fails on images of 3 x 8 x 8"):
            create("timm:test_vit", classes=2, channels=3, size=8, pretrained=pretrained)


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_models_of_this_test.py").write_text(
        textwrap.dedent("""
        from torch import nn

        number = 3

        def build(*, classes, channels, size):
            return nn.Sequential(nn.Flatten(), nn.Linear(channels * size[0] * size[1], classes))

        def text(*, classes, channels, size):
            return "a model"

        def other(depth):
            return None

        def features(*, classes, channels, size):
            return nn.Flatten()

        def boom(*, classes, channels, size):
            raise RuntimeError("kaputt,\\nand how")

        def within(*, classes, channels, size):
            return nn.Linear(classes, None)
        """)
    )
    monkeypatch.chdir(tmp_path)
    yield "own_models_of_this_test"
    sys.modules.pop("own_models_of_this_test", None)


def test_own_function_is_called(own_module):
    model = create(f"{own_module}:build", classes=4, channels=2, size=8)
    assert model(torch.zeros(1, 2, 8, 8)).shape == (1, 4)


@pytest.mark.parametrize(
    ("function", "word"),
    [
        ("absent", "has no function 'absent'"),
        ("number", "has no function 'number'"),
        ("text", "fails on images of"),
        ("other", "keywords"),
        ("features", "logits of shape"),
        ("boom", r"raised RuntimeError: kaputt, and how \(own_models_of_this_test.py:19\); fix it there"),
        ("within", r"raised TypeError: .* \(own_models_of_this_test.py:22\)"),
    ],
)
def test_own_function_that_is_none_is_refused(own_module, function, word):
    with pytest.raises(SfumatoError, match=word) as caught:
        create(f"{own_module}:{function}", classes=4, channels=2, size=8)
    assert function != "boom" or isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\nraise RuntimeError('no')", r"raised RuntimeError: no \(broken_at_import.py:2\)"),
        ("def build(:", r"raised SyntaxError: .*\(broken_at_import.py, line 1\)"),
    ],
)
def test_a_module_that_raises_is_refused(code, words, tmp_path, monkeypatch):
    (tmp_path / "broken_at_import.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SfumatoError, match=words):
        create("broken_at_import:build", classes=4, channels=2, size=8)


@pytest.mark.parametrize("name", ["no_such_module_anywhere:build", ":build"])
def test_module_that_cannot_be_imported_is_refused(name):
    with pytest.raises(SfumatoError, match="cannot be imported"):
        create(name, classes=4, channels=2, size=8)


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
    with pytest.raises(SfumatoError, match="is not an option; write each option once, as in wrn-16-4,norm=none"):
        parse(spelling)


def test_an_option_given_twice_is_refused():
    with pytest.raises(SfumatoError, match="given twice"):
        parse("wrn-16-1,norm=none,norm=group")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrn-16-1,bias=8", "has no option bias; it takes form, norm, standardise, groups"),
        ("wrn-16-1,groups=3", "groups must be one of 1, 2, 4, 8, 16; got '3'"),
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
