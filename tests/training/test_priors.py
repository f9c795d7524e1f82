"""Runs on features that were learnt on synthetic images: what their statement says, and what their model file holds."""

from __future__ import annotations

import numpy as np
import pytest

import sfumato
from sfumato.models.networks import dictionary
from sfumato.models.priors.stored import prior_for
from sfumato.privacy.statements.circumstances import ORIGINS

SYNTHETIC = ORIGINS["synthetic images"]


def photographs(count=24, size=16):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = rng.integers(0, 120, (count, size, size, 3), dtype=np.uint8) + 100 * labels[:, None, None, None]
    images[labels == 1, ::3] = 0
    return images.astype(np.uint8), labels


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    images, labels = photographs()
    place = tmp_path_factory.mktemp("photographs")
    np.savez(place / "few.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    return sfumato.train(None, f"npz:{place / 'few.npz'}", epsilon=8.0, steps=3, directory=place / "run")


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


def test_other_models_say_nothing_of_it(tmp_path):
    images, labels = photographs()
    np.savez(tmp_path / "few.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    run = sfumato.train("scattering", f"npz:{tmp_path / 'few.npz'}", epsilon=8.0, steps=3, directory=tmp_path / "run")
    assert not any(SYNTHETIC in line for line in run.statement.not_covered)
