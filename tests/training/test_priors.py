"""Runs on features that were learnt on synthetic images: what their statement says, and what their model file holds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sfumato
from sfumato import search
from sfumato.data import SourceSpec
from sfumato.experiment import Experiment
from sfumato.models import is_prior
from sfumato.models.networks import dictionary
from sfumato.models.networks.prior import prior_for
from sfumato.privacy.statements.circumstances import ORIGINS
from sfumato.randomness import Choice

SYNTHETIC = ORIGINS["synthetic images"]
SPELLINGS = ("dictionary", "dictionary,wavelets=0.85")
HOW = {"device": "cpu", "threads": 1}


def photographs(count=96, size=16):  # so many that no owner's key holds out none of them
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = rng.integers(0, 120, (count, size, size, 3), dtype=np.uint8) + 100 * labels[:, None, None, None]
    images[labels == 1, ::3] = 0
    return images.astype(np.uint8), labels


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> str:
    images, labels = photographs()
    place = tmp_path_factory.mktemp("few") / "few.npz"
    np.savez(place, x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    return f"npz:{place}"


def says_so(directory) -> bool:
    """Whether the statement of a run, its model file and its page say it."""
    statement = json.loads(Path(directory, "statement.json").read_text())
    origins = statement.get("circumstances", statement)["origins"]
    held = sfumato.load(directory).statement.to_dict()
    return (
        "synthetic images" in origins
        and all(any(SYNTHETIC in line for line in one["not_covered"]) for one in (statement, held))
        and "They were made from synthetic images and a public seed, without any real image"
        in Path(directory, "report.html").read_text("utf-8")
    )


@pytest.fixture(scope="module")
def run(few, tmp_path_factory):
    return sfumato.train(None, few, epsilon=8.0, steps=3, directory=tmp_path_factory.mktemp("photographs") / "run")


def test_the_statement_says_that_no_real_image_stands_behind_the_features(run):
    assert any(SYNTHETIC in line for line in run.statement.not_covered)
    assert run.statement.circumstances.origins == ("synthetic images",)
    assert sfumato.verify(run.directory).holds


def test_a_model_is_what_its_own_file_holds_whatever_dictionary_is_stored(run, monkeypatch):
    images, _ = photographs()
    before = sfumato.load(run.directory).logits(list(images[:4]))
    prior = prior_for(3)
    other = prior._replace(whitening=prior.whitening._replace(center=prior.whitening.center + 1))
    monkeypatch.setattr(dictionary, "prior_for", lambda channels: other)
    np.testing.assert_allclose(sfumato.load(run.directory).logits(list(images[:4])), before, atol=1e-6)


def test_every_spelling_says_it(few, run, tmp_path):
    assert all(map(is_prior, SPELLINGS))
    sfumato.train(SPELLINGS[1], few, noise_multiplier=4.0, steps=2, directory=tmp_path / "run", **HOW)
    assert says_so(tmp_path / "run")
    assert says_so(run.directory)


def test_training_without_privacy_says_it_too(few, tmp_path):
    source = sfumato.open_source(few, owner_key=bytes(32), public=True)
    sfumato.pretrain(SPELLINGS[0], source, directory=tmp_path / "run", steps=2, batch_size=8, learning_rate=0.01, **HOW)
    assert says_so(tmp_path / "run")


def test_each_run_of_a_search_says_it_of_itself(few, tmp_path):
    asked = search.Trial(
        experiment=Experiment(noise_multiplier=4.0, batch_size=12, steps=2, delta=1e-3, model="linear", seed=1),
        source=SourceSpec(spec=few),
        **HOW,
    )
    space = {"model": Choice(values=("linear", SPELLINGS[1]))}
    place = tmp_path / "public"
    public = replace(asked, source=SourceSpec(spec=few, public=True))
    search.sweep(search.Grid(public, space), directory=place)
    found = {
        json.loads((one / "settings.json").read_text())["settings"]["model"]: says_so(one)
        for one in (place / "1", place / "2")
    }
    assert found == {"linear": False, SPELLINGS[1]: True}
