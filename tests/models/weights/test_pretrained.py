"""Which parameters are trained."""

import pytest
import torch
from safetensors.torch import save_file

from sfumato._checks import SfumatoError
from sfumato.models import create, public_constants, refresh, replace_norms, select_trainable


def model_of(classes, name="cnn", **settings):
    return create(name, **{"classes": classes, "channels": 1, "size": 8, **settings})


@pytest.fixture
def weights(tmp_path):
    model = model_of(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), path)
    return model.state_dict(), path


def test_the_head_may_come_from_the_file(weights):
    state, path = weights
    loaded = model_of(5, pretrained=str(path), head="pretrained").state_dict()
    assert all(torch.equal(loaded[key], state[key]) for key in state)
    with pytest.raises(SfumatoError, match=r"head.bias is \(5,\) in the file and \(3,\) in the model"):
        model_of(3, pretrained=str(path), head="pretrained")


@pytest.mark.parametrize("classes", [3, 5])
def test_a_new_head_starts_at_zero(weights, classes):
    state, path = weights
    loaded = model_of(classes, pretrained=str(path)).state_dict()
    assert all(torch.equal(loaded[key], state[key]) for key in state if not key.startswith("head."))
    assert loaded["head.weight"].shape[0] == classes
    assert loaded["head.weight"].abs().max() == 0


@pytest.mark.parametrize("name", ["lenet-300-100", "tf-tutorial"])
def test_a_new_head_whose_outputs_are_normalised_keeps_its_own_weights(name, tmp_path):
    """At zero there would be nothing to divide by; and the file's normalisation is of other classes."""
    spelling, path = f"{name},norm=batch,norm_last=1", tmp_path / "weights.safetensors"
    stored = model_of(7, spelling, size=16)
    with torch.no_grad():
        for value in (*stored.parameters(), stored.norm_of_logits.running_mean):
            value.fill_(0.5)
    save_file(stored.state_dict(), path)
    loaded = model_of(3, spelling, size=16, pretrained=str(path)).state_dict()
    others = [key for key in loaded if not key.startswith(("head.", "norm_of_logits."))]
    assert all(torch.equal(loaded[key], stored.state_dict()[key]) for key in others)
    assert loaded["head.weight"].std() > 0
    assert loaded["norm_of_logits.weight"].tolist() == [1.0] * 3
    assert loaded["norm_of_logits.running_mean"].tolist() == [0.0] * 3
    kept = model_of(7, spelling, size=16, pretrained=str(path), head="pretrained").state_dict()
    assert kept["norm_of_logits.running_mean"].tolist() == [0.5] * 7


def test_weights_may_come_from_a_run_directory(weights, tmp_path):
    (tmp_path / "run").mkdir()
    weights[1].rename(tmp_path / "run" / "model.safetensors")
    loaded = model_of(5, pretrained=str(tmp_path / "run"), head="pretrained").state_dict()
    assert torch.equal(loaded["head.weight"], weights[0]["head.weight"])


def test_file_without_a_head_gives_a_head_of_zeros(weights, tmp_path):
    state, _ = weights
    save_file(
        {key: value for key, value in state.items() if not key.startswith("head.")}, tmp_path / "body.safetensors"
    )
    loaded = model_of(5, pretrained=str(tmp_path / "body.safetensors")).state_dict()
    assert torch.equal(loaded["conv1.weight"], state["conv1.weight"])
    assert loaded["head.weight"].abs().max() == 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda state: state.pop("conv1.weight"), "conv1.weight is missing"),
        (lambda state: state.update({"extra.weight": torch.ones(1)}), "extra.weight is not in the model"),
        (lambda state: state.update({"conv1.bias": torch.ones(3)}), r"conv1.bias is \(3,\) in the file"),
    ],
)
def test_any_other_difference_is_refused_by_key(weights, tmp_path, change, word):
    state = dict(weights[0])
    change(state)
    save_file(state, tmp_path / "changed.safetensors")
    with pytest.raises(SfumatoError, match=word):
        model_of(5, pretrained=str(tmp_path / "changed.safetensors"))


def test_timm_classifier_is_found_by_its_own_name(tmp_path):
    source = model_of(5, "timm:resnet10t", channels=3, size=32)
    save_file(source.state_dict(), tmp_path / "timm.safetensors")
    loaded = model_of(2, "timm:resnet10t", channels=3, size=32, pretrained=str(tmp_path / "timm.safetensors"))
    assert torch.equal(loaded.state_dict()["layer1.0.conv1.weight"], source.state_dict()["layer1.0.conv1.weight"])
    assert loaded.get_submodule("fc").weight.abs().max() == 0


def test_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"PK\x03\x04 not tensors at all")
    with pytest.raises(SfumatoError, match="cannot be read as safetensors"):
        model_of(5, pretrained=str(tmp_path / "weights.pt"))


def test_the_word_timm_needs_a_model_of_timm():
    with pytest.raises(SfumatoError, match="needs a timm model, got model 'cnn'"):
        model_of(5, pretrained="timm")


def test_public_constants_are_those_of_the_backbone():
    vit = model_of(5, "timm:vit_tiny_patch16_224", channels=3, size=32)
    assert public_constants(vit) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    resnet = model_of(5, "timm:resnet10t", channels=1, size=32)
    mean, deviation = public_constants(resnet, channels=1)
    assert mean == pytest.approx(((0.485 + 0.456 + 0.406) / 3,))
    assert deviation == pytest.approx(((0.229 + 0.224 + 0.225) / 3,))
    assert public_constants(model_of(5)) is None


@pytest.mark.parametrize("kind", ["public-batch", "public-batch-own"])
def test_a_file_with_public_moments_fills_batch_norm(kind, tmp_path):
    public, images = torch.rand(16, 1, 8, 8), torch.rand(4, 1, 8, 8)
    model = replace_norms(model_of(5, "tf-tutorial,norm=batch"), kind, public).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    refresh(model)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    loaded = model_of(5, "tf-tutorial,norm=batch", pretrained=str(tmp_path / "weights.safetensors"), head="pretrained")
    shown = loaded.eval()(images)
    if kind != "public-batch-own":  # whose examples have moments of their own besides
        torch.testing.assert_close(shown, model(images), rtol=1e-4, atol=1e-5)
    again = replace_norms(loaded, kind, public).eval()
    torch.testing.assert_close(again(images), model(images), rtol=1e-4, atol=1e-5)


def test_position_embeddings_are_interpolated_to_another_size_of_images(tmp_path):
    small = create("timm:test_vit", classes=3, channels=3, size=64)
    assert small.pos_embed.shape == (1, 1 + 4**2, 64)
    row, column = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    with torch.no_grad():  # a plane, which interpolation leaves a plane but at its edges
        small.pos_embed[0, 0] = 7
        small.pos_embed[0, 1:] = (row + 10 * column).flatten().unsqueeze(-1)
    save_file(small.state_dict(), tmp_path / "w.safetensors")
    large = create("timm:test_vit", classes=5, channels=3, size=128, pretrained=str(tmp_path / "w.safetensors"))
    assert large.pos_embed.shape == (1, 1 + 8**2, 64)
    assert (large.pos_embed[0, 0] == 7).all(), "the class token has no place"
    grid = large.pos_embed[0, 1:, 0].detach().reshape(8, 8)
    place = (torch.arange(8) + 0.5) / 2 - 0.5
    inner = slice(3, 5)
    torch.testing.assert_close(grid[inner, inner], (place[:, None] + 10 * place)[inner, inner], atol=1e-4, rtol=0)
    assert (grid.diff(dim=0) > 0).all()
    assert (grid.diff(dim=1) > 0).all()
    assert torch.equal(large.patch_embed.proj.weight, small.patch_embed.proj.weight)
    state = small.state_dict()
    save_file({**state, "pos_embed": state["pos_embed"][:, 1:].contiguous()}, tmp_path / "odd.safetensors")
    with pytest.raises(SfumatoError, match=r"pos_embed is \(1, 16, 64\) in the file and \(1, 65, 64\) in the model"):
        create("timm:test_vit", classes=5, channels=3, size=128, pretrained=str(tmp_path / "odd.safetensors"))


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
        ([], "trainable '' matches no parameter"),
    ],
)
def test_what_names_nothing_is_refused(patterns, words):
    model = create("linear", classes=3, channels=1, size=8)
    with pytest.raises(SfumatoError, match=words):
        select_trainable(model, patterns)
