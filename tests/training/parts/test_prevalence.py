"""Scores that are moved to declared shares: in the model file, on the page, when resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, SfumatoError, open_source, train, verify
from sfumato.experiment.settings import Settings
from sfumato.models.shares import logit_offsets
from sfumato.privacy import Gaussian, Poisson
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import METADATA, read_safetensors
from sfumato.runs.directory import RunDirectory
from sfumato.training.conclusion import finish

pytestmark = pytest.mark.usefixtures("one_secret")

CLASSES = ("normal", "pneumonia")
TRAINED, USED = {"normal": 0.26, "pneumonia": 0.74}, {"normal": 0.38, "pneumonia": 0.62}
SETTINGS = Settings(model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0, seed=None)
WEIGHTED = Settings(
    model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0, seed=None, class_prevalence=TRAINED
)


def part(shares, count, seed):
    """Images (N, 8, 8) that are a little lighter for one class, and labels with these shares."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < shares["pneumonia"]).astype(int)
    images = generator.normal(128, 40, (count, 8, 8)) + 5 * (2 * labels[:, None, None] - 1)
    return images.clip(0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def rays(tmp_path_factory) -> str:
    """A private archive whose test part has other shares."""
    (x_train, y_train), (x_test, y_test) = part(TRAINED, 800, 0), part(USED, 1000, 1)
    path = tmp_path_factory.mktemp("rays") / "rays.npz"
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=np.array(CLASSES))
    return f"npz:{path}"


@pytest.fixture(scope="module")
def source(rays):
    return open_source(rays, owner_key=bytes(32))


PLAN = PrivacyPlan(
    mechanism=Gaussian(noise_multiplier=4.0),
    population=800,
    participation=Poisson(batch_size=400),
    steps=20,
    delta=1e-5,
)


def trained(source, place, settings=SETTINGS, **others):
    given = {"report_epsilon": 3.0} | others
    return train(None, source, PLAN, directory=place, settings=settings, threads=1, device="cpu", **given)


def test_what_is_asked_for_is_kept_when_a_run_is_resumed(rays, source, tmp_path, killed_at, monkeypatch):
    class StopError(Exception):
        pass

    def stopping(*_):
        raise StopError

    shares = {"prevalence": USED, "training_prevalence": TRAINED}
    with monkeypatch.context() as patch:
        patch.setattr(finish, "close", stopping)
        with pytest.raises(StopError):
            trained(rays, tmp_path / "run", **shares)
    with pytest.raises(SfumatoError, match="prevalence"):
        trained(rays, tmp_path / "run", prevalence=TRAINED, training_prevalence=TRAINED)
    from sfumato.training.preparation import from_record

    record = RunDirectory(tmp_path / "run").read_json(names.SETTINGS)
    assert from_record.registry.recorded_options(record, "run") == {
        "report_epsilon": 3.0, "keep": 20, **shares,
    }  # fmt: skip
    run = trained(rays, tmp_path / "run", **shares)
    loaded = run.load()
    assert (loaded.reading.prevalence, loaded.reading.shares) == (USED, TRAINED)
    assert verify(run.directory).holds


def test_declared_shares_move_the_scores_and_stand_in_the_statement(source, tmp_path):
    plain = trained(source, tmp_path / "plain", report_epsilon=None).load()
    run = trained(source, tmp_path / "run", report_epsilon=None, prevalence=["normal=0.9,pneumonia=0.1"],
                  training_prevalence=TRAINED)  # fmt: skip
    loaded, images = run.load(), list(source.test.take(slice(0, 50)))
    assert torch.equal(loaded.logits(images), plain.logits(images)), "the weights are the same"
    moved = torch.tensor(logit_offsets((0.26, 0.74), (0.9, 0.1), loss="softmax"))
    assert torch.allclose(loaded.predict(images), (plain.logits(images) + moved).softmax(1))
    assert torch.equal(
        plain.with_prevalence(loaded.reading.prevalence, TRAINED).predict(images), loaded.predict(images)
    )
    lines = [line for line in run.statement.not_covered if "which scores are adjusted" in line]
    assert "from which scores are adjusted (normal 0.26, pneumonia 0.74). sfumato trusts the owner" in lines[0]
    assert "to which scores are adjusted (normal 0.9, pneumonia 0.1)" in lines[1]
    assert verify(run.directory).holds
    assert plain.statement.circumstances.prevalence == ()
    written = json.loads(read_safetensors(run.directory / names.MODEL)[1][METADATA])
    assert (written["shares"], written["prevalence"]) == (TRAINED, {"normal": 0.9, "pneumonia": 0.1})


def test_published_counts_are_those_of_the_moved_model(source, tmp_path):
    run = trained(source, tmp_path / "run", prevalence={"normal": 0.9, "pneumonia": 0.1}, training_prevalence=TRAINED)
    assert abs(run.published.accuracy.value - run.accuracy) < 0.02
    assert run.accuracy < 0.6


def test_with_weights_scores_hold_where_all_classes_are_as_frequent(source, tmp_path):
    run = trained(source, tmp_path / "run", WEIGHTED)
    loaded, images = run.load(), list(source.test.take(slice(0, 20)))
    assert loaded.reading.shares == {"normal": 0.5, "pneumonia": 0.5}
    there = loaded.with_prevalence(USED)
    expected = torch.tensor(logit_offsets((0.5, 0.5), (0.38, 0.62), loss="softmax"))
    scaled = loaded.logits(images) / (loaded.reading.temperature or 1.0)
    assert torch.allclose(there.predict(images), (scaled + expected).softmax(1))
    with pytest.raises(SfumatoError, match="training_prevalence and class_prevalence are both given"):
        trained(source, tmp_path / "two", WEIGHTED, training_prevalence=TRAINED, prevalence=USED)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prevalence": USED}, "the classes' shares in the training data are not declared"),
        ({"prevalence": {"cat": 0.5, "normal": 0.5}, "training_prevalence": TRAINED}, "'cat', which is not a class"),
        ({"training_prevalence": ["normal=0.2"]}, "sum to 0.2, not to 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(rays, source, tmp_path, given, words):
    for spelt_or_opened in (rays, source):
        with pytest.raises(SfumatoError, match=words):
            trained(spelt_or_opened, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
