"""sfumato features --whiten-by: from a public source to a private model, and what is refused."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato import load, open_source, owner_key
from sfumato.data import BACKBONE, Cache
from sfumato.models import read_description
from sfumato.privacy.statements.circumstances import ORIGINS
from sfumato.runs.checkpoint import read_safetensors

WHITENED = "features npz:private.npz --backbone wrn --threads 1 --device cpu --whiten-by npz:public.npz --output cache"


@pytest.fixture(autouse=True)
def sources(workplace, wrn):
    """A private, a public, and a public source that holds five private records, three of them test records."""
    (workplace / "wrn").symlink_to(wrn)
    images = np.random.default_rng(0).integers(0, 256, (140, 12, 12), dtype=np.uint8)

    def written(name: str, train: np.ndarray, test: np.ndarray) -> None:
        labels = [np.arange(len(part)) % 2 for part in (train, test)]
        np.savez(workplace / f"{name}.npz", x_train=train, y_train=labels[0], x_test=test, y_test=labels[1])

    written("private", images[:40], images[40:60])
    written("public", images[60:120], images[120:])
    written("overlapping", np.concatenate([images[:2], images[40:43], images[60:100]]), images[120:])


def test_from_a_public_source_to_a_private_model_that_takes_images(call):
    call(WHITENED)
    call("train features:cache --steps 3 --noise-multiplier 8 --batch-size 40 --threads 1 --device cpu --output run")
    call("verify run")
    on_images = json.loads(call("evaluate run npz:private.npz --json"))
    on_features = json.loads(call("evaluate run features:cache --json"))
    assert on_images["accuracy"] == on_features["accuracy"]
    assert on_images["loss"] == pytest.approx(on_features["loss"], rel=1e-5)
    call("features npz:private.npz --backbone wrn --threads 1 --device cpu --output plain")
    assert "come from another backbone than the model's" in call("evaluate run features:plain", status=1)
    whitening = load("run").module.backbone.whitening
    assert whitening is not None
    plain, white = (torch.from_numpy(Cache(name).records("train").take(slice(None))) for name in ("plain", "cache"))
    torch.testing.assert_close(plain @ whitening, white, rtol=1e-4, atol=1e-4)
    statement = json.loads(Path("run/statement.json").read_text())
    assert statement["circumstances"]["origins"] == ["public images", "public run"]
    assert any(ORIGINS["public images"] in line for line in statement["not_covered"])
    assert "wrn-10-1, whitened by public images" in Path("run/report.html").read_text()


def test_the_map_is_made_of_public_images_and_the_cache_knows_which(call):
    call(WHITENED)
    cache = Cache("cache")
    assert cache.contents.backbone is not None
    by = cache.contents.backbone["whitened_by"]
    images = np.load("public.npz")["x_train"]
    assert by == hashlib.sha256(np.ascontiguousarray(images[..., None]).data).hexdigest()
    private = np.load("private.npz")
    rest = {name: private[name] for name in ("y_train", "x_test", "y_test")}
    np.savez("private.npz", x_train=255 - private["x_train"], **rest)
    call(WHITENED.replace("--output cache", "--output other"))
    first, second = (read_safetensors(Path(place) / BACKBONE)[0]["whitening"] for place in ("cache", "other"))
    assert torch.equal(first, second), "private images do not move the map"
    assert Cache("other").contents.backbone == cache.contents.backbone
    assert Cache("other").contents.identity != cache.contents.identity


def test_the_same_command_resumes_and_another_source_does_not(call):
    assert json.loads(call(f"{WHITENED} --json"))["computed"] == 60
    assert json.loads(call(f"{WHITENED} --json"))["computed"] == 0
    assert "whitened_by was" in call(WHITENED.replace("npz:public", "npz:private") + " --public", status=1)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("npz:private.npz", "whiten_by npz:private.npz holds 40 of these 60 private records"),
        ("npz:overlapping.npz", "whiten_by npz:overlapping.npz holds 5 of these 60 private records"),
        ("features:plain", "whiten_by features:plain holds features, but images are needed"),
        ("npz:absent.npz", "absent.npz"),
    ],
)
def test_private_records_and_other_nonsense_are_refused(call, source, words):
    if source.startswith("features"):
        call("features npz:private.npz --backbone wrn --threads 1 --device cpu --output plain")
    said = call(WHITENED.replace("npz:public.npz", source), status=1)
    assert words in said
    assert not Path("cache").exists()


def test_a_model_whose_features_public_images_whitened_counts_them_as_seen(call):
    """Whoever starts from such weights with these images as private ones is refused."""
    call(WHITENED)
    seen = open_source("npz:public.npz", owner_key=owner_key(), public=True, channels=1).stored_digest
    assert seen in Cache("cache").contents.trained_on
    call("train features:cache --steps 3 --noise-multiplier 8 --batch-size 40 --threads 1 --device cpu --output run")
    about = read_description("run/model.safetensors")
    assert about is not None
    assert seen in about["trained_on"]
