"""What the choices alone decide to be impossible is refused before any data are read."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sfumato import PrivacyPlan, SfumatoError, embed, pretrain, search, train
from sfumato.cli import main
from sfumato.data import SourceSpec
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import PairOfRecords
from sfumato.models import registry
from sfumato.models.head import check as check_model
from sfumato.privacy import Example, User
from sfumato.privacy.planning.by_name import NAMES_OF_MECHANISMS, NAMES_OF_PARTICIPATIONS
from sfumato.randomness import Choice

CHOICES = [
    ("model", "resnet18", "did you mean resnet-18"),
    ("model", "lenet5,norm=batchh", "did you mean batch"),
    ("model", "nowhere:build", "cannot be imported"),
    ("optimizer", "sdg", "did you mean sgd"),
    ("head", "pretrained", "no pre-trained weights are given"),
    ("momentum", 1.0, "momentum must be below 1"),
    ("warmup", 9, "from 0 to steps - 1 = 8, got 9"),
    ("aggregate_last", 3, "gradients are not taken at an average"),
    ("zoom", 9.0, "zoom must lie between 1 and 4"),
    ("class_prevalence", ("dark=0.5", "light=0.4"), "sum to 0.9, not to 1"),
    ("normalisation", "public-batch", "public_data is not given"),
    ("mechanism", "banded", None),
    ("bands", 4, "is for mechanism banded"),
    ("unit", "user", "does not name the user of each record"),
    ("per_user", 3, "applies to users, but the unit is an example"),
    ("noise_multiplier", -1.0, "noise_multiplier must"),
    ("epsilon", -1.0, "epsilon must be positive"),
]
TOGETHER = [
    ({"mechanism": "tree", "participation": "poisson"}, "no theorem here covers tree noise under poisson"),
    ({"participation": "truncated", "adjacency": "add-or-remove"}, "adjacency must be zero-out"),
    ({"shift": 2, "zoom": 1.2}, "give shift for small images"),
    ({"aggregate": "uta", "ema": 0.9}, "aggregate is uta"),
    ({"unit": "user", "class_prevalence": ("a=0.5", "b=0.5")}, "weights single examples"),
    ({"unit": "user", "per_step": 0}, "per_step must be"),
    ({"pretrained": "nowhere.safetensors", "model": "cnn"}, "nowhere.safetensors does not exist"),
    ({"normalisation": "public-batch", "public_data": "folder:nowhere"}, "does not exist"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A folder of two small images."""
    place = tmp_path_factory.mktemp("few")
    for name in ("dark", "light"):
        (place / name).mkdir()
        Image.new("L", (8, 8)).save(place / name / "a.png")
    return f"folder:{place}"


@pytest.fixture(autouse=True)
def unread(monkeypatch, tmp_path):
    """Data that must not be read."""

    class ReadError(Exception):
        """The data were read."""

    def read(*given, **declared):
        raise ReadError

    monkeypatch.setattr("sfumato.data.opening.open_source", read)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return ReadError


def options(choices: dict) -> str:
    """Choices as the command line has them."""
    spelt = {name: " ".join(value) if isinstance(value, tuple) else value for name, value in choices.items()}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in spelt.items())


def refused(capsys, command: str) -> str:
    """What a command says that is refused."""
    capsys.readouterr()
    assert main(shlex.split(command)) == 1
    return capsys.readouterr().err.replace("--", "").replace("-", "_")


ALL = [({name: value}, words) for name, value, words in CHOICES] + TOGETHER


@pytest.mark.parametrize(("choices", "words"), ALL, ids=[options(choices) for choices, _ in ALL])
def test_from_python(folder, unread, choices, words):
    choices = {"steps": 9, **choices}
    if words is None:  # and what is possible goes on to the data
        with pytest.raises(unread):
            train(None, folder, directory="run", **choices)
        return
    with pytest.raises(SfumatoError) as error:
        train(choices.pop("model", None), folder, directory="run", **choices)
    assert words in str(error.value)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train {} --model resnet18", "did you mean resnet-18"),
        ("train {} --class-prevalence dark=0.5 light=0.4", "sum to 0.9"),
        (
            "train {} --classes dark light --class-prevalence dark=0.5 bright=0.5",
            "must be one of dark, light; got 'bright'",
        ),
        ("train {} --examples 50 --batch-size 51", "must be at most 50, got 51"),
        ("train {} --model timm:resnett", "has no model of that name"),
        ("train {} --keep -1", "keep must be at least 1"),
        ("train {} --device tpu", "device must be cpu, cuda or cuda:N"),
        ("train {} --epsilon 1,2 --model resnet18", "did you mean resnet-18"),
        ("pretrain {} --public --model resnet18", "did you mean resnet-18"),
        ("pretrain {} --model cnn", "this folder source is private"),
        ("embed {} --user-from x --model resnet18", "did you mean resnet-18"),
        ("embed {} --user-from x --client-loss tripplet", "client_loss must be one of"),
        ("embed {} --user-from x --mechanism tree --participation poisson", "no theorem here covers tree noise"),
        ("embed {}", "does not name the user of each record"),
        ("sweep {} --search uncovered --vary optimizer=sgd,adamm", "did you mean adam"),
        ("sweep {} --search uncovered --one-at-a-time --vary schedule=cosin", "did you mean cosine"),
        ("sweep {} --search uncovered --vary momentum=0.5,1", "momentum must be below 1"),
    ],
)
def test_from_every_verb(folder, command, words, capsys):
    told = refused(capsys, command.format(folder))
    assert words.replace("--", "").replace("-", "_") in told
    assert not Path("runs").exists()


@pytest.mark.parametrize("verb", ["train", "pretrain --public", "embed --user-from x"])
def test_a_board_that_is_not_installed(folder, verb, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    verb, *further = verb.split()
    told = refused(capsys, f"{verb} {folder} {' '.join(further)} --tensorboard")
    assert "TensorBoard is not installed" in told


def test_from_python_with_a_plan_and_elsewhere(folder, unread, tmp_path):
    plan = PrivacyPlan.calibrate(examples=50, batch_size=50, steps=3, noise_multiplier=8.0, delta=1e-5)
    archive = folder.replace("folder:", "npz:")
    for kind, choices, words in (
        (lambda **given: train(given.pop("model", "cnn"), folder, plan, **given), {"model": "resnet18"}, "resnet-18"),
        (lambda **given: train("cnn", folder, plan, **given), {"momentum": 2.0}, "momentum must be below 1"),
        (lambda **given: train("cnn", folder, plan, **given), {"warmup": 3}, "warmup must be"),
        (lambda **given: train("cnn", folder, plan, **given), {"views": 2, "epsilon": 3.0}, "a plan and epsilon"),
        (lambda **given: embed(archive, **given), {"optimizer": "sdg"}, "did you mean sgd"),
        (lambda **given: embed(archive, **given), {"device": "tpu"}, "device must be"),
        (lambda **given: pretrain("cnn", folder, steps=0, batch_size=4, public=True, **given), {}, "steps must be"),
        (lambda **given: pretrain("cnn", folder, steps=1, batch_size=4, **given), {}, "is private"),
    ):
        more = {"learning_rate": 0.1} if kind.__code__.co_names[0] != "embed" else {}
        with pytest.raises(SfumatoError) as error:
            kind(directory=tmp_path / "run", **more, **choices)
        assert words in str(error.value)
    trial = search.Trial(experiment=Experiment(), source=SourceSpec(spec=folder, public=True))
    with pytest.raises(SfumatoError, match="did you mean sgd"):
        search.sweep(search.Grid(trial, {"optimizer": Choice(values=("sgd", "sdg"))}), directory=tmp_path / "search")
    with pytest.raises(unread):
        search.sweep(search.Grid(trial, {"optimizer": Choice(values=("sgd", "adam"))}), directory=tmp_path / "search")


@pytest.mark.parametrize("name", [*registry._FIXED, "wrn-16-4", "nf-resnet-50", "bag", "bilstm", "head", "timm:vgg11"])
def test_no_model_that_exists_is_refused(name):
    check_model(name)


@pytest.mark.parametrize("mechanism", [None, *NAMES_OF_MECHANISMS])
@pytest.mark.parametrize("participation", [None, *NAMES_OF_PARTICIPATIONS])
@pytest.mark.parametrize("users", [False, True])
def test_a_plan_is_refused_beforehand_as_it_is_for_the_data(mechanism, participation, users):
    """And one that is possible goes on to them: of 300 examples, or users, as the plan of a run is made."""
    asked: dict[str, Any] = {"mechanism": mechanism, "participation": participation}
    if participation == "drifting":
        asked |= {"drift": 4, "drift_groups": ("a",), "drift_size": 20}
    if users:
        asked |= {"unit": "user"}

    def planned() -> None:
        size = 300 if participation == "full-batch" else 20
        unit = User() if users else Example()
        numbers = {"examples": 300, "batch_size": size, "steps": 3, "noise_multiplier": 8.0, "delta": 1e-4}
        PrivacyPlan.calibrate(**numbers, unit=unit, **pair.request(300)._asdict())

    pair = PairOfRecords(**{name: value for name, value in asked.items() if name != "unit"})
    options = {"noise_multiplier": 8.0, "delta": 1e-4, "steps": 3, **asked}
    assert said(lambda: Experiment(**options)) == said(planned)


def said(what: Callable[[], object]) -> str | None:
    """What is said of something that is refused; None where it is not."""
    try:
        what()
    except SfumatoError as error:
        return str(error)
    return None
