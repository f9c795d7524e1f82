"""Features under a fixed trunk: the same gradients and logits as through the whole model, computed once."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato import ClippedGradient, PrivacyPlan, RunKey, SfumatoError, models, train
from sfumato.experiment.settings import Performance, Settings
from sfumato.observers.progress import NoProgress
from sfumato.training.inputs import Inputs, features, head_on_features, pad_micro_batch, read_ahead
from sfumato.training.preparation.prepare import prepare
from sfumato.training.scorers import Scorer


@pytest.fixture
def job(spots, plan):
    return prepare(None, spots, plan, Settings(model="scattering", optimizer="momentum", learning_rate=1.0, seed=0))


def test_the_trunk_is_used_and_its_features_are_the_model_s(job, spots):
    assert job.trunk is not None
    found = features(job, spots.train, NoProgress())
    whole = job.trunk(job.transform(spots.train.images))
    assert found.shape == (200, *job.input_shape)
    assert torch.allclose(found, whole, atol=1e-5)


def test_the_clipped_gradient_is_that_of_the_whole_model(job, spots):
    torch.nn.init.normal_(job.module.head.weight)
    participants = np.array([3, 5, 8, 150])
    ((inputs, targets, *_),) = Inputs(job).micro_batches(RunKey.from_seed(0), 0, participants)
    found = job.gradient(inputs, targets)
    images = job.transform(spots.train.images[participants])
    whole = ClippedGradient(job.module, functional.cross_entropy, max_norm=job.plan.max_norm)(images, targets)
    assert found.gradients.keys() == whole.gradients.keys()
    for name, value in whole.gradients.items():
        assert torch.allclose(found.gradients[name], value, atol=1e-6)
    assert torch.allclose(found.norms, whole.norms, rtol=1e-5)


def test_the_score_on_features_is_the_score_on_images(job, spots):
    torch.nn.init.normal_(job.module.head.weight)
    scorer = Scorer(job)
    on_features = scorer.score(scorer.outputs(job.module.state_dict()))
    job_without = prepare(None, spots, job.plan, job.settings)
    object.__setattr__(job_without, "trunk", None)
    on_images = scorer.score(Scorer(job_without).outputs(job.module.state_dict()))
    assert on_features["accuracy"] == pytest.approx(on_images["accuracy"])
    assert on_features["loss"] == pytest.approx(on_images["loss"], rel=1e-5)


@pytest.mark.parametrize("rows", [np.arange(1, 7), np.array([3, 5, 8, 9, 150, 151])])
@pytest.mark.parametrize(
    ("count", "flip", "known"), [(1, False, True), (1, True, True), (5, True, True), (5, True, False)]
)
def test_mirrored_views_are_looked_up(spots, plan, rows, count, flip, known, monkeypatch):
    if not known:
        monkeypatch.setattr(models.Trunk, "mirror_order", None)
    settings = Settings(model="scattering", optimizer="sgd", learning_rate=1.0, views=count, flip=flip)
    job = prepare(None, spots, plan, settings)
    assert job.trunk is not None
    inputs = Inputs(job)
    assert inputs._features.shape[1] == (1 if known else 2)
    ((found, *_),) = inputs.micro_batches(RunKey.from_seed(0), 2, rows)
    draws = job.views.draw(RunKey.from_seed(0).generator("views", 2), 6, size=8)
    views = job.views.apply(job.transform(spots.train.images[rows]), draws)
    assert draws.mirrored.any() == flip
    expected = job.trunk(views.flatten(0, 1)).unflatten(0, (6, count))
    assert torch.allclose(found, expected if count > 1 else expected.squeeze(1), atol=1e-5)


def test_views_that_are_all_alike_are_refused(spots, plan):
    alike = Settings(model="linear", optimizer="sgd", learning_rate=1.0, views=8)
    with pytest.raises(
        SfumatoError, match="views is 8, but all views of an image would be identical; give shift, flip"
    ):
        prepare(None, spots, plan, alike)
    for different in ({"shift": 1}, {"flip": True}, {"zoom": 1.5}, {"crop_area": 0.5}, {"views": 1}):
        prepare(None, spots, plan, replace(alike, **different))
    dropping = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
    prepare(dropping, spots, plan, replace(alike, model="module"))


def test_views_and_models_without_a_trunk_take_images(spots, plan):
    viewed = Settings(model="scattering", optimizer="sgd", learning_rate=1.0, views=2, shift=1)
    plain = Settings(model="cnn", optimizer="sgd", learning_rate=1.0)
    for settings, shape in ((viewed, (4, 2, 1, 8, 8)), (plain, (4, 1, 8, 8))):
        job = prepare(None, spots, plan, settings)
        assert job.trunk is None
        ((inputs, *_),) = Inputs(job).micro_batches(RunKey.from_seed(0), 0, np.arange(4))
        assert inputs.shape == shape


def test_micro_batches_cut_the_same_views(spots, plan):
    settings = Settings(model="cnn", optimizer="sgd", learning_rate=1.0, views=3, shift=2, flip=True)
    pieces = []
    for size in (200, 7):
        job = prepare(None, spots, plan, settings, micro_batch=size)
        parts = list(Inputs(job).micro_batches(RunKey.from_seed(0), 4, np.arange(0, 200, 3)))
        pieces.append(torch.cat([inputs for inputs, *_ in parts]))
    assert torch.equal(*pieces)


def test_dropout_follows_the_record_and_the_step_however_the_batch_is_cut(spots, plan):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
    key, norms = RunKey.from_seed(0), []
    for size, step in ((200, 4), (7, 4), (200, 5)):
        job = prepare(
            module, spots, plan, Settings(model="module", optimizer="sgd", learning_rate=1.0), micro_batch=size
        )
        parts = Inputs(job).micro_batches(key, step, np.arange(0, 200, 3))
        norms.append(torch.cat([job.gradient(*part).norms for part in parts]))
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-5, atol=0)
    assert (norms[0] != norms[2]).double().mean() > 0.9


def test_keys_are_made_for_models_that_draw_alone(spots, plan):
    job = prepare(None, spots, plan, Settings(model="linear", optimizer="sgd", learning_rate=1.0))
    ((*_, keys, weights),) = Inputs(job).micro_batches(RunKey.from_seed(0), 0, np.arange(4))
    assert keys is None
    assert weights is None


def test_a_run_keeps_its_ways(spots, plan):
    settings = Settings(model="cnn", optimizer="sgd", learning_rate=1.0)
    job = prepare(None, spots, plan, settings)
    assert job.performance.methods == job.gradient.methods
    assert len(job.performance.methods) == 2
    other = dict.fromkeys(job.performance.methods, "drop loop")
    recorded = Performance(device="cpu", threads=1, micro_batch=8, methods=other)
    assert Performance.from_dict(recorded.to_dict()) == recorded
    assert prepare(None, spots, plan, settings, recorded=recorded).gradient.methods == other


def test_a_classifier_keeps_its_name_however_deep_it_lies():
    model = models.create("timm:test_nfnet", classes=2, channels=3, size=32)
    assert {name for name, _ in head_on_features(model, "head.fc").named_parameters()} == {
        "head.fc.weight",
        "head.fc.bias",
    }


def test_too_many_features_are_not_kept(spots, plan, monkeypatch):
    from sfumato.training.preparation import prepare as module

    monkeypatch.setattr(module, "FEATURE_MEMORY", 1000)
    settings = Settings(model="scattering", optimizer="sgd", learning_rate=1.0)
    job = prepare(None, spots, PrivacyPlan.from_dict(plan.to_dict()), settings)
    assert job.trunk is None
    assert job.input_shape == (1, 8, 8)


class Showing(nn.Module):
    """Keeps what it was shown, in a part that is fixed."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 4)

    def forward(self, images):
        self.shown = self.body(images.flatten(1))
        return self.head(self.shown)


def test_a_trunk_that_keeps_something_is_refused_before_the_run_begins(spots, plan, tmp_path):
    model = Showing()
    for parameter in model.body.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(SfumatoError, match="shown"):
        train(model, spots, plan, directory=tmp_path / "run", learning_rate=0.1, threads=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_device_s_last_micro_batch_is_filled_up_to_an_eighth_and_means_the_same(weighted):
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    gradient = ClippedGradient(model, functional.cross_entropy, max_norm=0.1)
    lengths = set()
    for present in range(1, 33):
        inputs, targets = torch.randn(present, 6), torch.arange(present) % 3
        weights = torch.rand(present) if weighted else None
        piece = pad_micro_batch(inputs, targets, None, weights, size=32)
        lengths.add(len(piece[1]))
        found, expected = gradient(*piece), gradient(inputs, targets, None, weights)
        for name, value in expected.gradients.items():
            torch.testing.assert_close(found.gradients[name], value, rtol=1e-5, atol=1e-6)
        assert torch.equal(found.norms[present:].isnan(), torch.ones(len(piece[1]) - present, dtype=torch.bool))
    assert lengths == {4, 8, 12, 16, 20, 24, 28, 32}
    assert pad_micro_batch(inputs, targets, None, None, size=32)[3] is None


def test_a_step_without_participants_reads_nothing():
    assert list(read_ahead(SimpleNamespace(take=None), [])) == []  # type: ignore[arg-type]
