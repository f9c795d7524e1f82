"""Zoom in training: windows on images made from the originals, in private and in public runs, resumed as begun."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import PrivacyPlan, RunKey, SfumatoError, Views, open_source, owner_key, pretrain, train
from sfumato.experiment.settings import Settings
from sfumato.randomness import NoiseState
from sfumato.training import pretraining, run
from sfumato.training.inputs import Inputs
from sfumato.training.job import PublicTraining
from sfumato.training.preparation.estimate import estimate
from sfumato.training.preparation.prepare import prepare
from sfumato.training.scorers import Scorer
from sfumato.training.steps import PublicSteps

SIZE, SIDE, ZOOM = 10, 12, 1.2
SETTINGS = Settings(model="linear", optimizer="sgd", learning_rate=0.1, views=2, zoom=ZOOM, flip=True, seed=3)


@pytest.fixture(scope="module")
def sources(folder):
    """Without zoom, and with it."""
    return [open_source(folder, owner_key=bytes(32), size=SIZE, zoom=zoom) for zoom in (1, ZOOM)]


@pytest.fixture(scope="module")
def plan():
    return PrivacyPlan.calibrate(examples=40, batch_size=20, steps=4, noise_multiplier=1.0, delta=1e-2)


def windows(folder, key, step, rows, n):
    """What the model must see: the originals brought to the larger side, and views cut out of that."""
    whole = open_source(folder, owner_key=bytes(32), size=SIDE)
    images = torch.from_numpy(whole.train.take(rows)).permute(0, 3, 1, 2).float() / 127.5 - 1
    draws = Views(count=n, zoom=ZOOM, flip=True).draw(key.generator("views", step), len(rows), size=SIZE)
    shown = torch.empty(len(rows), n, 1, SIZE, SIZE)
    for row in range(len(rows)):
        for view in range(n):
            top, left = (1 + int(dice[row, view]) for dice in (draws.down, draws.right))
            window = images[row, :, top : top + SIZE, left : left + SIZE]
            shown[row, view] = window.flip(-1) if draws.mirrored[row, view] else window
    return shown


def test_private_training_sees_windows_on_the_larger_images(folder, sources, plan):
    plain, zoomed = (prepare(None, source, plan, SETTINGS) for source in sources)
    key, rows = RunKey.from_seed(0), np.array([1, 5, 30])
    ((inputs, *_),) = Inputs(zoomed).micro_batches(key, 2, rows)
    expected = windows(folder, key, 2, rows, 2)
    assert torch.allclose(inputs, expected, atol=1e-5)
    ((blurred, *_),) = Inputs(plain).micro_batches(key, 2, rows)
    assert (inputs - blurred).abs().mean() > 0.05, "a source opened without zoom has its images enlarged"
    assert zoomed.transform == plain.transform
    assert zoomed.transform.size == SIZE
    scores = [Scorer(job).outputs(plain.module.state_dict()) for job in (plain, zoomed)]
    assert torch.equal(*scores), "test images are what they were"
    assert estimate(zoomed).data_bytes - estimate(plain).data_bytes == 40 * SIDE**2


def test_public_training_sees_them_too(folder, sources):
    job = pretraining.prepare(
        replace(sources[1], public=True), PublicTraining(settings=SETTINGS, steps=2, batch_size=8)
    )
    seen = []
    job.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    key = RunKey.from_seed(0)
    steps = PublicSteps(job, key)
    steps(1, NoiseState(step=1))
    expected = windows(folder, key, 1, steps.batch(1), 2)
    assert torch.allclose(torch.cat(seen), expected.flatten(0, 1), atol=1e-5)


def test_a_source_named_by_its_spelling_is_read_for_the_zoom(folder, plan, tmp_path, monkeypatch):
    opened = []

    def stop(job, *_, **__):
        opened.append(job.source)
        raise KeyboardInterrupt

    def begin(source):
        train("linear", source, plan, directory=tmp_path / "run", learning_rate=0.1, views=2, zoom=ZOOM)

    with monkeypatch.context() as patch:
        patch.setattr(run, "take_steps", stop)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                begin(folder)
        assert opened[0].zoomed.shape[1] == round(ZOOM * opened[0].size)
        assert opened[0].fingerprint == opened[1].fingerprint
        with pytest.raises(SfumatoError, match="differs in its data: fingerprint"):
            begin(open_source(folder, owner_key=owner_key()))
        assert len(opened) == 2, "a run does not go on with images that are enlarged instead"
    assert begin(folder) is None
    about = {"steps": 2, "batch_size": 8, "learning_rate": 0.1, "public": True, "zoom": ZOOM}
    with monkeypatch.context() as patch:
        patch.setattr(run, "take_steps", stop)
        with pytest.raises(KeyboardInterrupt):
            pretrain("linear", folder, directory=tmp_path / "public", **about)
    assert opened[2].zoomed.shape == opened[0].zoomed.shape


def test_another_zoom_than_the_source_was_opened_for_is_refused(sources, plan):
    for other in (1.4, 2):
        with pytest.raises(SfumatoError, match=f"open it with zoom={other}"):
            prepare(None, sources[1], plan, replace(SETTINGS, zoom=other))
        with pytest.raises(SfumatoError, match=f"open it with zoom={other}"):
            pretraining.prepare(
                replace(sources[1], public=True),
                PublicTraining(settings=replace(SETTINGS, zoom=other), steps=2, batch_size=8),
            )
