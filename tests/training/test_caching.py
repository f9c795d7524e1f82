"""Features computed to disk: rows of their own images, resumable, and trained on as the whole model would be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import ClippedGradient, SfumatoError, models
from sfumato.data import (
    Cache,
    FeatureTransform,
    InceptionCrops,
    Records,
    Transform,
    cap_per_user,
    hold_out,
    image_generator,
    open_source,
    shared_users,
    user_codes,
)
from sfumato.data.subsets import assignment
from sfumato.evaluation import accuracy
from sfumato.experiment import Settings
from sfumato.gradients import is_batch_independent
from sfumato.models.losses import LOSSES, is_exclusive
from sfumato.privacy import Gaussian, PrivacyPlan, TruncatedPoisson
from sfumato.randomness import NoiseState, RunKey
from sfumato.runs import checkpoint
from sfumato.training import caching, computing, inputs, pretraining, train
from sfumato.training.job import PublicTraining
from sfumato.training.preparation.prepare import prepare
from sfumato.training.steps import PublicSteps

KEY = bytes(32)


def backbone_for(size: int = 16) -> tuple[models.Backbone, models.ExpectedInput]:
    torch.manual_seed(0)
    backbone = models.build_backbone(models.Architecture(name="lenet-300-100", size=size))
    return backbone, models.ExpectedInput(
        resolution=size, enlarged=size + 4, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3
    )


@pytest.fixture
def images(tmp_path):
    """A private archive of 30 coloured noise images, three classes."""
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (30, 12, 12, 3), dtype=np.uint8), np.arange(30) % 3
    np.savez(tmp_path / "p.npz", x_train=images[:24], y_train=labels[:24], x_test=images[24:], y_test=labels[24:])
    return open_source(f"npz:{tmp_path / 'p.npz'}", owner_key=KEY)


def computed(path, source, showing=None, backbone=None, rows=7, **options):
    network, expects = backbone_for()
    network = backbone or network
    showing = showing or caching.StoredViews()
    contents = replace(caching.contents_for(source, network, expects, showing, origins=["timm"]), rows=rows)
    cache = Cache(path)
    computing.compute(cache, contents, source, network, owner_key=KEY, batch=4, **options)
    return cache


SHOWINGS = {
    "middle": caching.StoredViews(),
    "mirrored": caching.StoredViews(views=2, flip=True),
    "windows": caching.StoredViews(crop="inception", views=3, flip=True),
}


@pytest.mark.parametrize("name", ["mirrored", "windows"])
def test_a_record_moves_its_own_row_alone(tmp_path, images, name):
    showing = SHOWINGS[name]
    whole = computed(tmp_path / "a", images, showing).records("train").take(slice(None))
    assert whole.shape == (24, showing.views + (showing.crop == "inception"), 100)
    kept = np.arange(24) != 5
    train = Records(images=images.train.images[kept], labels=images.train.labels[kept])
    fewer = computed(tmp_path / "b", replace(images, train=train), showing).records("train").take(slice(None))
    np.testing.assert_allclose(fewer, whole[kept], atol=1e-5)
    other = images.train.images.copy()
    other[5] = 255 - other[5]
    changed = replace(images, train=Records(images=other, labels=images.train.labels))
    moved = computed(tmp_path / "c", changed, showing).records("train").take(slice(None))
    assert np.array_equal(moved[kept], whole[kept])
    assert not np.allclose(moved[5], whole[5])


def test_a_cache_knows_where_its_images_were_and_is_the_same_wherever_that_is(tmp_path, images):
    """Features of images that were changed since, in a new cache, count with all uses of that place."""
    cache = computed(tmp_path / "a", images)
    source = open_source(f"features:{cache.path}", owner_key=KEY)
    assert source.places == (f"features:{cache.path.resolve()}", *images.places)
    assert images.places == (f"npz:{(tmp_path / 'p.npz').resolve()}",)
    moved = replace(images, places=("npz:/elsewhere.npz",))
    other = computed(tmp_path / "b", moved)
    assert other.contents.identity == cache.contents.identity
    assert open_source(f"features:{other.path}", owner_key=KEY).features == source.features
    computed(tmp_path / "a", moved)  # it goes on with the cache that is there


def test_rows_are_the_backbones_features_of_the_prepared_images(tmp_path, images):
    cache = computed(tmp_path / "a", images)
    transform = Transform.from_dict(cache.contents.transform)
    backbone = backbone_for()[0]
    for part, records in (("train", images.train), ("test", images.test)):
        shown = transform(records.images)
        assert shown.shape[1:] == (3, 16, 16)
        np.testing.assert_allclose(cache.records(part).take(slice(None))[:, 0], backbone(shown).numpy(), atol=1e-5)
    mirrored = computed(tmp_path / "b", images, SHOWINGS["mirrored"]).records("train").take(slice(None))
    np.testing.assert_allclose(mirrored[:, 1], backbone(transform(images.train.images).flip(-1)).numpy(), atol=1e-5)


@pytest.mark.parametrize("area", [None, 0.9])
def test_random_windows_are_as_large_as_asked_for(tmp_path, images, area):
    cache = computed(tmp_path / "a", images, caching.StoredViews(crop="inception", crop_area=area))
    assert cache.contents.crop.get("area") == area
    transform, shown = Transform.from_dict(cache.contents.transform), images.train.images
    crops = InceptionCrops(count=1, resolution=16, interpolation="bicubic", area=area or 0.08)
    pixels = torch.from_numpy(shown).permute(0, 3, 1, 2).float()
    windows = crops.apply(pixels, [image_generator(KEY, image) for image in shown]).flatten(0, 1)
    wanted = backbone_for()[0](transform.normalise(windows)).numpy()
    np.testing.assert_allclose(cache.records("train").take(slice(None))[:, 1], wanted, atol=1e-5)


def test_random_windows_are_trained_on_and_the_middle_is_scored(tmp_path, images, monkeypatch):
    cache = computed(tmp_path / "a", images, SHOWINGS["windows"])
    by_middle = computed(tmp_path / "b", images).records("train").take(slice(None))[:, 0]
    source = open_source(f"features:{cache.path}", owner_key=KEY, public=True)
    smaller, validation = hold_out(source, KEY, 0.4)
    held_out = np.isin(source.train.codes, validation.codes).all(1)
    transform = FeatureTransform(width=100)
    for records, middles in ((source.train, by_middle), (validation, by_middle[held_out])):
        shown = accuracy.logits(nn.Identity(), records, transform, torch.device("cpu"))
        np.testing.assert_allclose(shown, middles, atol=1e-5)
    assert cache.records("test").take(slice(None)).shape == (6, 1, 100)
    windows = torch.from_numpy(smaller.train.take(slice(None)))[:, 1:]
    plan = PrivacyPlan.calibrate(
        examples=smaller.examples, batch_size=smaller.examples, steps=2, noise_multiplier=8.0, delta=1e-3
    )
    settings = Settings(model="head", optimizer="sgd", learning_rate=1.0, views=3, ema=0.0)
    made = inputs.Inputs(prepare(None, smaller, plan, settings))
    ((found, *_),) = made.micro_batches(RunKey.from_seed(0), 0, np.arange(len(windows)))
    assert torch.equal(found, windows)
    seen, real = [], models.Head.forward
    monkeypatch.setattr(models.Head, "forward", lambda self, rows: (seen.append(rows), real(self, rows))[1])
    training = PublicTraining(settings=settings, steps=1, batch_size=len(windows))
    job = pretraining.prepare(smaller, training)
    seen.clear()
    steps = PublicSteps(job, RunKey.from_seed(0))
    steps(0, NoiseState(step=0))
    order = steps.batch(0)
    assert torch.equal(torch.cat(seen), windows[order].flatten(0, 1))


def test_a_pass_that_was_killed_goes_on_to_the_same_bytes(tmp_path, images, monkeypatch):
    whole = computed(tmp_path / "a", images, SHOWINGS["windows"])
    real, written = Cache.write, []

    def dies(self, name, *rest, **further):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(name)
        return real(self, name, *rest, **further)

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            computed(tmp_path / "b", images, SHOWINGS["windows"])
    assert len(Cache(tmp_path / "b").missing("train")) == 2
    again = computed(tmp_path / "b", images, SHOWINGS["windows"])
    names = sorted(path.name for path in whole.path.iterdir())
    assert names == sorted(path.name for path in again.path.iterdir())
    for name in names:
        assert (whole.path / name).read_bytes() == (again.path / name).read_bytes()


def test_users_are_known_by_their_codes_and_keep_their_records(tmp_path, images):
    """What is held out and what a cap leaves is the same of images and of their features; no name is on disk."""
    whose = np.array([f"Ann {number % 9}" for number in range(24)])
    train = replace(images.train, users=whose, groups=np.char.replace(whose, "Ann", "caf\u00e9"))
    test = replace(images.test, users=whose[:6])
    source = replace(images, train=train, test=test, users=9, users_read=True)
    cache = computed(tmp_path / "c", source)
    assert not [file for file in cache.path.iterdir() if b"Ann" in file.read_bytes()]
    known = open_source(f"features:{cache.path}", owner_key=KEY)
    assert known.train.users.tolist() == user_codes(source.train, KEY).tolist()
    assert known.assignment == assignment(KEY, source.train, source.test)
    assert known.train.groups.tolist() == source.train.groups.tolist()
    assert known.test.groups is None
    assert (known.users, known.facts_read) == (9, (*source.read, "users"))
    declared = open_source(f"features:{cache.path}", owner_key=KEY, users=30)
    assert (declared.users, declared.facts_read) == (30, source.read)
    assert shared_users(known, KEY) == shared_users(known, KEY, source) - 3 == 6
    for made in (lambda one: cap_per_user(one, KEY, 2), lambda one: hold_out(one, KEY, 0.3)[0]):
        ours, theirs = (made(one) for one in (source, known))
        assert len(ours.train) < 24
        assert np.array_equal(ours.train.codes, theirs.train.codes)
        assert user_codes(ours.train, KEY).tolist() == theirs.train.users.tolist()
        assert (ours.fingerprint, ours.examples) == (theirs.fingerprint, theirs.examples)


def test_a_cache_with_records_of_several_users_is_refused(tmp_path, images, monkeypatch):
    whose = np.array([f"p{number}" for number in range(24)])
    source = replace(images, train=replace(images.train, users=whose), test=replace(images.test, users=whose[:6]))
    monkeypatch.setattr(computing, "user_codes", lambda part, key: np.array([f"{'0' * 32};{'1' * 32}"] * len(part)))
    cache = computed(tmp_path / "c", replace(source, users=24))
    with pytest.raises(SfumatoError, match=r"a record of features:.* has several users: '0{32}', '1{32}'"):
        open_source(f"features:{cache.path}", owner_key=KEY)


def test_another_backbone_or_source_is_refused(tmp_path, images):
    computed(tmp_path / "a", images)
    torch.manual_seed(1)
    other = models.build_backbone(models.Architecture(name="lenet-300-100", size=16))
    with pytest.raises(SfumatoError, match="was started with other settings: digest was"):
        computed(tmp_path / "a", images, backbone=other)
    with pytest.raises(SfumatoError, match="was started with other settings: its images or labels have changed;"):
        computed(tmp_path / "a", replace(images, fingerprint="0" * 64))
    with pytest.raises(SfumatoError, match="views was 1 and is 2, flip was False and is True;"):
        computed(tmp_path / "a", images, SHOWINGS["mirrored"])


class Mixing(nn.Module):
    """Pools over the batch: no network for private images, one at a time or not."""

    def forward(self, images):
        return images.flatten(1)[:, :8] - images.flatten(1)[:, :8].mean(0)


def test_a_backbone_that_mixes_images_runs_on_one_at_a_time(tmp_path, images):
    backbone = models.Backbone(Mixing(), models.Architecture(name="lenet-300-100", size=16))
    assert not is_batch_independent(backbone, torch.randn(4, 3, 16, 16))
    cache = Cache(tmp_path / "a")
    contents = caching.contents_for(images, backbone, backbone_for()[1], caching.StoredViews())
    assert not computing.compute(cache, contents, images, backbone, owner_key=KEY, batch=4)
    assert not cache.records("train").take(slice(None)).any(), "each image minus the mean of itself alone"


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if is_exclusive(loss)])
@pytest.mark.parametrize("views", [1, 3])
def test_the_clipped_gradient_on_features_is_that_of_the_whole_model(loss, views):
    backbone = backbone_for()[0]
    head = models.create_head("head,norm=3", classes=3, width=100)
    whole = models.create_head("head,norm=3", classes=3, width=100, backbone=backbone)
    nn.init.normal_(head.head.weight)
    whole.head.load_state_dict(head.head.state_dict())
    images, targets = torch.randn(5, views, 3, 16, 16), torch.arange(5) % 3
    features = backbone(images.flatten(0, 1)).unflatten(0, (5, views))
    images, features = (tensor.squeeze(1) if views == 1 else tensor for tensor in (images, features))
    long = ClippedGradient(whole, LOSSES[loss], max_norm=0.5, views=views)(images, targets)
    short = ClippedGradient(head, LOSSES[loss], max_norm=0.5, views=views)(features, targets)
    torch.testing.assert_close(short.norms, long.norms, rtol=1e-4, atol=1e-5)
    assert set(short.gradients) == set(long.gradients) == {"head.weight", "head.bias"}
    for name, value in short.gradients.items():
        torch.testing.assert_close(value, long.gradients[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("showing", "words"),
    [
        ({"crop": "left"}, "crop must be one of central, inception"),
        ({"views": 3}, "views must be 1 with crop central without flip"),
        ({"views": 1, "flip": True}, "views must be 2 with crop central and flip"),
        ({"views": 0}, "views must be at least 1"),
        ({"crop_area": 0.05}, "crop_area is 0.05, but crop central has no random crops; give crop=inception"),
        ({"crop": "inception", "crop_area": 1.5}, "crop_area must be at most 1"),
    ],
)
def test_views_that_cannot_be_shown_are_refused(showing, words):
    with pytest.raises(SfumatoError, match=words):
        caching.StoredViews(**showing)


def test_every_pass_of_the_backbone_sees_as_many_images(tmp_path, images, monkeypatch):
    """How many records there are must not tell in the rounding of the last ones."""
    counts = set()
    for path in ("batched_outputs", "per_example_outputs"):
        real = getattr(computing, path)

        def counted(model, images, real=real):
            counts.add(len(images))
            return real(model, images)

        monkeypatch.setattr(computing, path, counted)
    computed(tmp_path / "a", images, rows=7)
    monkeypatch.setattr(computing, "is_batch_independent", lambda *_: False)
    computed(tmp_path / "b", images, rows=7)
    assert counts == {4}


def test_other_weights_beside_the_features_are_refused(tmp_path, images):
    cache = computed(tmp_path / "a", images)
    weights = {name: value.clone() for name, value in checkpoint.backbone_of(cache).items()}
    (cache.path / "backbone.safetensors").write_bytes(
        checkpoint.to_bytes({name: value + 1 for name, value in weights.items()}, {})
    )
    with pytest.raises(SfumatoError, match="holds other weights than the features were computed with; delete it"):
        checkpoint.backbone_of(cache)
    source = open_source(f"features:{cache.path}", owner_key=KEY)
    plan = PrivacyPlan.calibrate(examples=24, batch_size=24, steps=2, noise_multiplier=8.0, delta=1e-3)
    with pytest.raises(SfumatoError, match="holds other weights"):
        train("head", source, plan, directory=tmp_path / "run", learning_rate=1.0)
    assert not (tmp_path / "run").exists(), "before anything is spent"
    (cache.path / "backbone.safetensors").unlink()
    computed(tmp_path / "a", images)
    again = checkpoint.backbone_of(cache)
    assert all(torch.equal(again[name], weights[name]) for name in weights)


def test_damaged_pieces_are_computed_anew(tmp_path, images, heard):
    cache = computed(tmp_path / "a", images)
    pieces = [cache.path / f"train-0000{number}.safetensors" for number in (0, 2)]
    whole = [piece.read_bytes() for piece in pieces]
    pieces[0].write_bytes(whole[0][:-4])
    pieces[1].write_bytes(whole[1][:-90] + bytes([whole[1][-90] ^ 1]) + whole[1][-89:])
    assert caching.begin(cache, cache.contents, heard) == 14
    assert [Path(line.split(" ")[0]).name for line in heard.lines] == [piece.name for piece in pieces]
    computed(tmp_path / "a", images)
    assert [piece.read_bytes() for piece in pieces] == whole
    assert caching.begin(cache, cache.contents) == 0


@pytest.mark.parametrize("name", ["middle", "windows"])
def test_few_features_are_kept_in_memory_and_are_those_on_disk(tmp_path, images, name, monkeypatch):
    cache = computed(tmp_path / "a", images, SHOWINGS[name])
    source = open_source(f"features:{cache.path}", owner_key=KEY)
    plan = PrivacyPlan.calibrate(examples=24, batch_size=24, steps=2, noise_multiplier=8.0, delta=1e-3)
    settings = Settings(model="head", optimizer="sgd", learning_rate=1.0, views=SHOWINGS[name].views)
    job = prepare(None, source, plan, settings, micro_batch=5)
    key = RunKey.from_seed(0)
    for rows in (np.arange(24), np.array([3, 4, 9, 11, 12, 13]), np.arange(6, 17), np.array([7])):
        found = []
        for most in (1 << 30, 0):
            monkeypatch.setattr(inputs, "CPU_KEPT", most)
            made = inputs.Inputs(job)
            assert (made._features is None) == (most == 0)
            found.append([(one.clone(), labels) for one, labels, *_ in made.micro_batches(key, 0, rows)])
        assert [len(one) for one, _ in found[0]] == [len(rows[start : start + 5]) for start in range(0, len(rows), 5)]
        for kept, read in zip(*found, strict=True):
            assert torch.equal(kept[0], read[0])
            assert torch.equal(kept[1], read[1])


@pytest.mark.parametrize(("name", "most"), [("windows", 1 << 30), ("mirrored", 0)])
def test_features_are_padded_in_memory_and_from_disk(tmp_path, images, name, most, monkeypatch):
    source = open_source(f"features:{computed(tmp_path / 'a', images, SHOWINGS[name]).path}", owner_key=KEY)
    plan = PrivacyPlan(
        population=24,
        participation=TruncatedPoisson(batch_size=8, largest=12),
        mechanism=Gaussian(noise_multiplier=8.0),
        steps=2,
        delta=1e-3,
        adjacency="zero-out",
    )
    settings = Settings(model="head", optimizer="sgd", learning_rate=1.0, views=SHOWINGS[name].views)
    monkeypatch.setattr(inputs, "CPU_KEPT", most)
    made = inputs.Inputs(prepare(None, source, plan, settings, micro_batch=5))
    assert (made._features is None) == (most == 0)
    stored = source.train.take(slice(None))[:, -settings.augmentation.views :].reshape(24, -1)
    several = (np.arange(0), np.arange(4, 9), np.array([1, 2, 3, 7, 8, 11, 20]), np.arange(12))
    for rows in several * 2:  # twice, since what is kept must stay as it is
        pieces = [(x.clone(), y, weights) for x, y, _, weights in made.micro_batches(RunKey.from_seed(0), 1, rows)]
        assert [len(x) for x, *_ in pieces] == [5, 5, 5]
        x, y, weights = map(torch.cat, zip(*pieces, strict=True))
        assert np.array_equal(x[weights].flatten(1), stored[rows])
        assert np.array_equal(y[weights], source.train.labels[rows])
        assert not x[~weights].any()
        assert not y[~weights].any()
