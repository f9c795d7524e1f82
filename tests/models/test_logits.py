"""A model whose outputs are objects with logits is trained, measured and loaded as one that gives them itself."""

from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

from sfumato import PrivacyPlan, SfumatoError, load, train
from sfumato.cli import main
from sfumato.models import check_shapes, returning_logits

PLAN = PrivacyPlan.calibrate(examples=200, batch_size=20, steps=2, noise_multiplier=8.0, delta=1e-3)
MADE = """
import torch
from types import SimpleNamespace
from torch import nn

class Wrapped(nn.Module):
    def __init__(self, classes, channels, size):
        super().__init__()
        self.head = nn.Linear(channels * size[0] * size[1], classes)

    def forward(self, pixel_values, labels=None):
        return SimpleNamespace(loss=None, logits=self.head(pixel_values.flatten(1)))

def build(classes, channels, size):
    return Wrapped(classes, channels, size)
"""


class Wrapped(nn.Module):
    """As models of transformers are."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, pixel_values, labels=None):
        return SimpleNamespace(loss=None, logits=self.head(pixel_values.flatten(1)))


class Compiled(nn.Module):
    """As `torch.compile` gives it."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model

    def forward(self, images):
        raise AssertionError("what was compiled is not run")


def trained(model, source, directory, **choices):
    return train(model, source, PLAN, directory=directory, learning_rate=0.5, threads=1, seed=1, **choices)


def test_it_is_trained_and_loaded_like_a_plain_one(spots, tmp_path):
    torch.manual_seed(0)
    wrapped, plain = Wrapped(), nn.Sequential()
    plain.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    run = trained(wrapped, spots, tmp_path / "run")
    loaded = run.load(wrapped)
    images = spots.test.images[:3]
    assert loaded.predict(images).shape == (3, 4)
    assert torch.equal(loaded.module(loaded.transform(images)), wrapped(loaded.transform(images)).logits)
    assert [*loaded.module.state_dict()] == ["head.weight", "head.bias"]
    assert (loaded.predict(spots.test.images).argmax(1).numpy() == spots.test.labels).mean() == run.accuracy
    assert isinstance(wrapped(torch.zeros(1, 64)), SimpleNamespace)


def test_a_twin_shares_its_parameters():
    model = Wrapped()
    twin = returning_logits(model)
    assert type(twin).__qualname__ == "Wrapped"
    assert [id(one) for one in twin.parameters()] == [id(one) for one in model.parameters()]
    assert torch.equal(twin(torch.ones(1, 64)), model(torch.ones(1, 64)).logits)
    assert check_shapes("mine", nn.Flatten(), classes=4, shape=(4,)).__class__ is nn.Flatten
    with pytest.raises(SfumatoError, match=r"to logits of shape \(1, 3\), got \(1, 4\)"):
        check_shapes("mine", model, classes=3, shape=(64,))


def test_one_that_was_compiled_is_taken_by_what_it_wraps(spots, tmp_path):
    compiled = Compiled(Wrapped())
    run = trained(compiled, spots, tmp_path / "run")
    assert [*run.load(compiled).module.state_dict()] == ["head.weight", "head.bias"]


@pytest.mark.filterwarnings("ignore")
def test_a_vision_transformer_of_transformers(spots, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=4, **sizes)
    model = transformers.AutoModelForImageClassification.from_config(config)
    run = trained(model, spots, tmp_path / "run")
    assert run.load(model).predict(spots.test.images[:2]).shape == (2, 4)


def test_a_run_of_a_module_is_used_on_the_command_line_by_the_function_that_builds_it(
    spots, tmp_path, monkeypatch, capsys
):
    run = trained(Wrapped(), spots, tmp_path / "run")
    (tmp_path / "made_of_objects.py").write_text(MADE)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(spots.test.images[0][..., 0]).save(tmp_path / "image.png")
    assert main(["predict", str(run.directory), "image.png"]) == 1
    assert "--model package:function" in capsys.readouterr().err
    assert main(["predict", str(run.directory), "image.png", "--model", "made_of_objects:build", "--json"]) == 0
    assert '"label"' in capsys.readouterr().out
    named = load(run.directory, model="made_of_objects:build")
    given = load(run.directory, model=Wrapped())
    assert torch.equal(named.predict(spots.test.images), given.predict(spots.test.images))


IMAGES = {"shape": (1, 4, 4)}


def test_modes_buffers_and_weights_stay_as_they_were():
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(16, 3))
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_shapes("mine", model, classes=3, **IMAGES)
    assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), r"got \(1, 4\)"),
        (nn.Identity(), r"got \(1, 1, 4, 4\)"),
        (nn.Linear(9, 3), "fails on images of 1 x 4 x 4"),
        (nn.LSTM(4, 3), "'mine'"),
    ],
)
def test_what_gives_no_logits_is_refused(model, found):
    with pytest.raises(SfumatoError, match=found):
        check_shapes("mine", model, classes=3, **IMAGES)
