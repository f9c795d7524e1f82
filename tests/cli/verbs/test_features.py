"""sfumato features, training on what it makes, several budgets, and several right labels."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato import SfumatoError, features, load, open_source, owner_key, train
from sfumato.cli import main
from sfumato.data import Records
from sfumato.evaluation import label_sets
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.display import rounded_up
from sfumato.training import computing, run

BACKBONE = "--backbone runs/wrn"
QUICK = "--steps 3 --noise-multiplier 8 --batch-size 64 --threads 1 --device cpu"


@pytest.fixture(scope="session")
def of_digits(wrn, tmp_path_factory, savings) -> Path:
    """The features of the digits."""
    place = tmp_path_factory.mktemp("features")
    with savings() as patch:
        patch.chdir(place)
        (place / "runs").mkdir()
        (place / "runs" / "wrn").symlink_to(wrn)
        assert main(shlex.split(f"features digits {BACKBONE} --output cache")) == 0
    return place / "cache"


@pytest.fixture
def cache(of_digits, workplace) -> None:
    """A copy of them at ./cache."""
    shutil.copytree(of_digits, workplace / "cache")


@pytest.fixture(autouse=True)
def runs(workplace, wrn):
    (workplace / "runs").mkdir()
    (workplace / "runs" / "wrn").symlink_to(wrn)


def test_from_images_to_a_private_model_that_takes_images(call, spots_folder):
    told = call(f"features folder:{spots_folder} {BACKBONE} --output cache")
    assert "\nwidth       64\n" in told
    assert "keep the cache as private as the images" not in told, "talk goes to standard error"
    call(f"train features:cache {QUICK} --output run")
    call("verify run")
    loaded = load("run")
    path = str(spots_folder / "light" / "1.png")
    scores = loaded.predict([path])
    assert scores.shape == (1, 2)
    assert json.loads(call(f"predict run {path} --json"))["predictions"][0]["score"] == pytest.approx(
        scores.max().item()
    )
    on_images = json.loads(call(f"evaluate run folder:{spots_folder} --json"))
    on_features = json.loads(call("evaluate run features:cache --json"))
    assert on_images["accuracy"] == on_features["accuracy"]
    assert on_images["loss"] == pytest.approx(on_features["loss"], rel=1e-5)
    statement = json.loads(Path("run/statement.json").read_text())
    assert statement["circumstances"]["origins"] == ["public run"]
    assert statement["circumstances"]["read"] == ["examples", "classes"], "size and colour are the backbone's"
    assert "cache" not in Path("run/statement.json").read_text()
    call("evaluate run features:other", status=1)
    assert "were fixed when it was made" in call("evaluate run features:cache --test-fraction 0.5", status=1)


def test_it_goes_on_where_it_was_cut_and_only_as_what_it_was(call, spots_folder, monkeypatch):
    command = f"features folder:{spots_folder} {BACKBONE} --output cache"

    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(computing, "_rows", dies)
        assert main(shlex.split(command)) == 130
    assert "to resume it" in call("train features:cache", status=1)
    again = json.loads(call(f"{command} --json"))
    assert again["computed"] == again["train"] + again["test"], "both parts have one piece, and none was written"
    assert json.loads(call(f"{command} --json"))["computed"] == 0
    assert "dtype was float32 and is float16" in call(f"{command} --dtype float16", status=1)


def test_several_budgets_and_what_they_cost_together(call, cache, images):
    Image.new("L", (12, 12), 99).save("a.png")
    quick = "--steps 2 --batch-size 1438 --threads 1 --device cpu"
    command = f"train features:cache {quick} --epsilon 4,1 --output b"
    found = json.loads(call(f"{command} --json"))
    assert [row["epsilon"] for row in found["rows"]] == pytest.approx([1, 4], rel=1e-3)
    plans = [
        PrivacyPlan.from_dict(json.loads(Path(f"b/epsilon-{epsilon}/plan.json").read_text())) for epsilon in (1, 4)
    ]
    assert found["epsilon_of_all"] == pytest.approx(
        plans[0].loss.composed_with(*(plan.loss for plan in plans[1:])).epsilon(plans[0].delta)
    )
    assert found["epsilon_of_all"] > 4
    assert 0 < found["without_privacy"] <= 1
    assert Path("b/budgets.svg").read_text().startswith("<?xml")
    assert json.loads(call(f"{command} --json")) == found, "finished runs are read, not trained again"
    told = call(command)
    assert "These are 2 releases of one data set" in told
    Path("noise.toml").write_text('source = "features:cache"\nepsilon = [1, 4]\nnoise-multiplier = 30.0\n')
    assert "several budgets and --noise-multiplier are both given" in call("train noise.toml --output d", status=1)
    assert [(row["steps"], row["batch_size"]) for row in found["rows"]] == [
        (plan.steps, plan.expected_batch_size) for plan in plans
    ]
    assert "not covered" not in told, "the data are public"
    assert load("b/without-privacy").predict(["a.png"]).shape == (1, 10), "its backbone stands in the file as well"
    call(f"train features:cache {quick} --private --epsilon 2 --output before")
    told = call(f"train features:cache {quick} --private --epsilon 1,4 --output p")
    assert "The best run was chosen without noise: no guarantee covers this choice." in told
    private = json.loads(call(f"train features:cache {quick} --private --epsilon 1,4 --output p --json"))
    assert not private["public"]
    assert private["epsilon_of_all_uses"] > private["epsilon_of_all"] == found["epsilon_of_all"]
    assert f"on these data: epsilon {rounded_up(private['epsilon_of_all_uses'])}, for add-or-remove adjacency." in told
    assert not Path("p/without-privacy").exists(), "a model without privacy is trained on public data alone"
    assert "a run" in call(f"train features:cache {quick} --epsilon 1,2 --output before", status=1)
    assert "also holds the curve of other budgets: 4" in call(
        f"train features:cache {quick} --epsilon 1,2 --output b", status=1
    )
    assert "or one of them twice" in call(f"train features:cache {quick} --epsilon 1,1 --output d", status=1)
    assert "runs/wrn" not in Path("b/epsilon-1/report.html").read_text()
    assert "wrn-10-1" in Path("b/epsilon-1/report.html").read_text(), "whose features they are"
    for refused in ("--epsilon 1,x", "--epsilon 1,-2", "--epsilon 1,2 --seeds 2"):
        assert main(shlex.split(f"train features:cache {quick} {refused} --output d")) != 0
    assert not Path("d").exists()


def test_several_right_labels(call, spots_folder):
    call(f"features folder:{spots_folder} {BACKBONE} --output cache")
    call(f"train features:cache {QUICK} --output run")
    figures = json.loads(call("evaluate run features:cache --json"))
    assert figures["accuracy_of_label_sets"] is None
    count = figures["images"]
    Path("list.json").write_text(json.dumps([[0]] * count))
    assert "were split by a hash and have no order" in call(
        "evaluate run features:cache --label-sets list.json", status=1
    )
    Path("by-name.json").write_text(json.dumps({path.name: ["light"] for path in spots_folder.rglob("*.png")}))
    assert "and 2 files have this name; add the folders" in call(
        f"evaluate run folder:{spots_folder} --part all --label-sets by-name.json", status=1
    )
    names = ["/".join(path.parts[-2:]) for path in spots_folder.rglob("*.png")]
    Path("own.json").write_text(json.dumps({name: [name.split("/")[0]] for name in names}))
    for part in ("all", "test"):
        own = json.loads(call(f"evaluate run folder:{spots_folder} --part {part} --label-sets own.json --json"))
        assert own["accuracy_of_label_sets"] == pytest.approx(own["accuracy"]), "each set is the image's own class"
    Path("by-name.json").write_text(json.dumps({name: ["light"] for name in names}))
    light = json.loads(call(f"evaluate run folder:{spots_folder} --label-sets by-name.json --json"))
    counted = light["images_with_label_sets"]
    assert counted == light["images"]
    shares, right = light["accuracy_per_class"], light["accuracy_of_label_sets"]
    named_light = sum(row[1] for row in json.loads(Path("run/evaluation.json").read_text())["confusion"])
    assert right == pytest.approx(named_light / counted)
    assert set(shares) == {"dark", "light"}
    parts = tuple(spots_folder.parent / "parts" / name for name in ("train", "test"))
    for part in parts:
        shutil.copytree(spots_folder, part)
    count = 120
    Path("all.json").write_text(json.dumps([["dark", 1]] * count))
    every = json.loads(call(f"evaluate run folder:{parts[0].parent} --label-sets all.json --json"))
    assert (every["accuracy_of_label_sets"], every["images_with_label_sets"]) == (1.0, count)
    call(f"features folder:{parts[0].parent} {BACKBONE} --output parted")
    for data, words in (
        ([[0]] * (count - 1), f"hold {count - 1} sets for {count} records"),
        ({"a.png": [0]}, f"hold 1 sets for {count} records"),
        ([["blue"]] * count, "neither a class nor a position below 2"),
        ("x", f"hold no sets for {count} records"),
    ):
        Path("odd.json").write_text(json.dumps(data))
        assert words in call("evaluate run features:parted --label-sets odd.json", status=1)


def test_the_numbers_of_imagenet_s_classes_are_not_those_of_a_list_by_name(tmp_path):
    part = Records(
        images=np.zeros((2, 8, 8, 1), np.uint8),
        labels=np.zeros(2, np.int64),
        files=tuple(f"val/ILSVRC2012_val_0000000{number}.JPEG" for number in (2, 1)),
    )
    path = tmp_path / "real.json"
    path.write_text("[[0, 999], [7]]")
    wordnet = [f"n{number:08d}" for number in range(1440764, 1441764)]
    backwards = wordnet[::-1]
    assert label_sets.read(str(path), [part], wordnet, parted=True) == [{7}, {0, 999}]
    assert label_sets.read(str(path), [part], backwards, parted=True) == [{992}, {999, 0}]
    assert label_sets.read(str(path), [part], ["7", "0", "999"], parted=True) == [{0}, {1, 2}]
    for classes, words in (
        (["goldfish", "tench"], "classes named like 'goldfish' cannot be matched"),
        (wordnet[:100], "classes named like 'n01440764' cannot be matched"),
        (["7", "0"], "hold '999', which is neither a class"),
    ):
        with pytest.raises(SfumatoError, match=words):
            label_sets.read(str(path), [part], classes, parted=True)


def test_a_module_of_one_s_own_on_features_is_named_beside_their_backbone(call):
    call(f"features digits --private {BACKBONE} --output cache")
    source = open_source("features:cache", owner_key=owner_key())
    plan = PrivacyPlan.calibrate(examples=source.examples, batch_size=64, steps=2, noise_multiplier=8.0, delta=1e-4)
    module = torch.nn.Linear(source.cache.contents.width, 10)
    run = train(module, source, plan, directory="own", learning_rate=1e-6, threads=1)
    assert run.statement.circumstances.origins == ("own model", "public run")
    assert {line.split(".")[0] for line in run.statement.not_covered[:2]} == {
        "Your model's initial weights",
        "The initial weights",
    }


def test_a_model_is_measured_on_the_part_that_its_own_training_left(call, spots_folder):
    source = open_source(f"folder:{spots_folder}", owner_key=owner_key(), size=8, channels=1, test_fraction=0.05)
    plan = PrivacyPlan.calibrate(examples=source.examples, batch_size=16, steps=2, noise_multiplier=8.0, delta=1e-3)
    train("linear", source, plan, directory="own", learning_rate=0.1, threads=1)
    for model in ("own", "own/model.safetensors"):
        assert json.loads(call(f"evaluate {model} folder:{spots_folder} --json"))["images"] == len(source.test)
        held = json.loads(call(f"evaluate {model} folder:{spots_folder} --test-fraction 0.5 --json"))
        assert held["images"] > len(source.test), "as told"


def test_a_run_goes_on_with_the_very_numbers_that_it_began_with(call, monkeypatch):
    call(f"features digits {BACKBONE} --output c")
    with monkeypatch.context() as patch:
        patch.setattr(run, "take_steps", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(shlex.split(f"train features:c {QUICK} --output run")) == 130
    Path("c/train-00000.safetensors").unlink()
    with monkeypatch.context() as patch:  # as another device or library might give them
        real = computing.batched_outputs
        patch.setattr(computing, "batched_outputs", lambda *given: real(*given) * (1 + 1e-6))
        call(f"features digits {BACKBONE} --output c")
    assert "differs in its data: features was" in call(f"train features:c {QUICK} --output run", status=1)


def test_uses_of_the_same_images_are_counted_whatever_was_made_of_them(call, capsys):
    digits = open_source("digits", owner_key=owner_key())
    np.savez(
        "d.npz",
        x_train=digits.train.images,
        y_train=digits.train.labels,
        x_test=digits.test.images,
        y_test=digits.test.labels,
    )
    for size in (12, 16):
        call(f"features npz:d.npz {BACKBONE} --size 8 --resolution {size} --output c{size}")
    call(
        f"sweep features:c12 {QUICK} --search uncovered --one-at-a-time --vary source=features:c16 --output s".replace(
            "--batch-size 64", "--batch-size 32"
        )
    )
    for source in ("features:c12", "features:c16", "npz:d.npz --size 8"):
        main(shlex.split(f"train {source} {QUICK} --dry-run".replace("--model", "")))
        assert "2 earlier runs of yours used these data" in capsys.readouterr().err, source


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("features digits --backbone runs/wrn --weights runs/wrn --output c", "brings its own weights"),
        (
            "features folder:none --backbone timm:none --output c",
            "folder 'none' does not exist; correct the path after folder:",
        ),
        (f"features digits {BACKBONE} --crop left --output c", "--crop must be one of central, inception"),
        (f"features digits {BACKBONE} --views 3 --output c", "--views must be 1 with crop central"),
        ("train features:none", "cache 'none' does not exist; correct the path after features:, or make it with"),
        ("train features:cache --views 2", "--views must be 1, the number of views of each example in the cache"),
        ("train features:cache --flip True", "flip cannot be chosen for features, which are already computed"),
        ("train features:cache --test-fraction 0.5", "fraction of features:cache were fixed when it was made"),
        ("train features:cache --pretrained-rate 0.1", "trains only the classifier"),
        (f"features features:cache {BACKBONE} --output c", "already holds features"),
    ],
)
def test_refusals(call, cache, command, words):
    assert words in call(command, status=1)
    assert not Path("c").exists()


def test_python_makes_the_same_cache(call, spots_folder):
    call(f"features folder:{spots_folder} {BACKBONE} --flip True --dtype float16 --output by-command")
    cache = features(f"folder:{spots_folder}", "runs/wrn", directory="by-python", flip=True, dtype="float16")
    assert cache.contents.views == 2
    for file in ("train-00000.safetensors", "test-00000.safetensors", "features.json"):
        assert Path("by-command", file).read_bytes() == Path("by-python", file).read_bytes()
    opened = open_source(f"folder:{spots_folder}", owner_key=owner_key(), size=12, channels=1, test_fraction=0.4)
    assert features(opened, "runs/wrn", directory="other").contents.test_fraction == 0.4
    with pytest.raises(SfumatoError, match=r"was started with other settings: .*dtype was float16 and is float32"):
        features(f"folder:{spots_folder}", "runs/wrn", directory="by-python", flip=True)
