"""What is declared of 16-bit images goes from the command line to the model that labels such images."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

UNDECLARED = "has 16-bit pixels, but the values of black and white are not declared"


@pytest.fixture
def xrays(workplace) -> str:
    """A private folder of 12-bit images in 16-bit files."""
    generator = np.random.default_rng(0)
    for name, shade in (("dense", 3000), ("thin", 1000)):
        Path("xrays", name).mkdir(parents=True)
        for number in range(60):
            values = shade + generator.integers(-500, 500, (12, 12))
            Image.fromarray(values.astype(np.uint16)).save(f"xrays/{name}/{number}.png")
    return "folder:xrays"


def scores(told: str) -> list[float]:
    return [row["score"] for row in json.loads(told)["predictions"]]


def test_a_model_labels_images_as_its_own_were_read(call, xrays, quick):
    assert UNDECLARED in call(f"train {xrays} {quick} --output run", status=1)
    assert not Path("run").exists()
    told = call(f"train {xrays} {quick} --bit-depth 11 --output run", status=1)
    assert "but 11 bits hold 0 to 2047; declare a larger --bit-depth" in told
    call(f"train {xrays} {quick} --bit-depth 12 --output run")
    settings = json.loads(Path("run/settings.json").read_text())
    assert settings["transform"]["bit_depth"] == settings["request"]["source"]["bit_depth"] == 12
    assert "bit_depth" not in settings["circumstances"]["read"]
    image = np.asarray(Image.open("xrays/dense/0.png"))
    Image.fromarray(np.rint(image * (255 / 4095)).astype(np.uint8)).save("eight.png")
    sixteen, eight = scores(call("predict run xrays/dense/0.png eight.png --json"))
    assert sixteen == eight
    as_trained = call(f"evaluate run {xrays} --json")
    assert as_trained == call(f"evaluate run {xrays} --window 0,4095 --json")
    assert as_trained != call(f"evaluate run {xrays} --bit-depth 16 --json")


def test_a_model_that_knows_no_more_than_8_bits_refuses_others(call, xrays, run):
    told = call(f"predict {run} xrays/dense/0.png", status=1)
    assert f"image 'xrays/dense/0.png' {UNDECLARED}; declare --bit-depth" in told


def test_features_know_it_too(call, xrays, quick):
    public = "--steps 2 --batch-size 20 --threads 1 --device cpu"
    assert UNDECLARED in call(f"pretrain {xrays} --public --model lenet-300-100 {public} --output wrn", status=1)
    call(f"pretrain {xrays} --public --model lenet-300-100 --bit-depth 12 {public} --output wrn")
    digits = f"pretrain digits --model lenet-300-100 --size 12 {public} --output digits"
    call(digits)
    assert UNDECLARED in call(f"features {xrays} --backbone digits --output cache", status=1)
    call(f"features {xrays} --backbone digits --window 100,4000 --output cache")
    assert json.loads(Path("cache/features.json").read_text())["transform"]["window"] == [100, 4000]
    told = call(f"features {xrays} --backbone digits --bit-depth 12 --output cache", status=1)
    assert "was started with other settings" in told
    assert "window was [100, 4000] and is" in told
    quick = quick.replace("--model linear", "")
    assert "bit_depth of features:cache were fixed" in call(f"train features:cache {quick} --bit-depth 12", status=1)
    call(f"train features:cache {quick} --output head")
    losses = [json.loads(call(f"evaluate head {source} --json"))["loss"] for source in (xrays, "features:cache")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    told = call("evaluate head features:cache --window 0,4095", status=1)
    assert "window of features:cache were fixed when it was made" in told
    assert len(scores(call("predict head xrays --json"))) == 120
