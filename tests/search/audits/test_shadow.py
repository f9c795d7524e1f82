"""A stranger with the model file: a planted leak is found out, and a private model stays beneath its promise."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sfumato import EMA, PrivacyPlan, SfumatoError, _devices, models, open_source, train
from sfumato.data.features import Cache
from sfumato.randomness.noise import Noise
from sfumato.runs.owner import uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.search import membership
from sfumato.training import caching, computing

RECORDS, SIDE, CLASSES, SHADOWS = 120, 16, 4, 8
RECIPE = {"learning_rate": 2.0, "averaging": EMA(0.0), "views": 1, "shift": 0, "threads": 1, "momentum": 0.0}


@pytest.fixture(scope="module")
def chance(tmp_path_factory):
    """Noise under labels by chance: whatever a model knows of its training records it has learnt by heart."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, RECORDS, SIDE, SIDE, 1), np.uint8)
    labels = rng.integers(0, CLASSES, (2, RECORDS))
    path = tmp_path_factory.mktemp("arrays") / "chance.npz"
    np.savez(path, x_train=images[0], y_train=labels[0], x_test=images[1], y_test=labels[1])
    return open_source(f"npz:{path}", owner_key=bytes(32))


def planned(epsilon, steps=100):
    return PrivacyPlan.calibrate(examples=RECORDS, batch_size=RECORDS, steps=steps, epsilon=epsilon, delta=1e-5)


def without_noise(monkeypatch):
    """The planted bug: of all noise a thousandth, in the run and in the shadow models that its code trains."""
    scale = Noise.standard_deviation
    monkeypatch.setattr(Noise, "standard_deviation", property(lambda self: 1e-3 * scale.fget(self)))


def test_a_model_without_its_noise_is_found_out(chance, tmp_path, monkeypatch):
    without_noise(monkeypatch)
    train("scattering", chance, planned(1.0, steps=20), directory=tmp_path / "run", **RECIPE)
    found = membership.shadow_attack(tmp_path / "run", SHADOWS, source=chance, seed=0)
    assert found.rates[1].true_positives > 0.3
    assert found.auc[0] > 0.9
    assert found.exceeds


def test_a_private_model_stays_beneath_its_promise(chance, tmp_path):
    before = uses.earlier_uses(DataIdentity.from_source(chance)).plans
    train("scattering", chance, planned(1.0, steps=20), directory=tmp_path / "run", **RECIPE)
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    found = membership.shadow_attack(tmp_path / "run", SHADOWS, source=chance, seed=0)
    assert not found.exceeds
    assert found.members == found.others == RECORDS
    assert found.rates[1].true_positives_at_least < found.rates[1].allowed_at_most
    json.dumps(found.to_dict())
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert (
        len(uses.earlier_uses(DataIdentity.from_source(chance)).plans) == len(before) + 1
    )  # the run, and no shadow model


def test_any_model_is_attacked(chance, spots, tmp_path):
    recipe = RECIPE | {"views": 2, "shift": 1, "averaging": EMA(0.9)}
    train("lenet-300-100", chance, planned(1.0, steps=2), directory=tmp_path / "run", **recipe)
    found = membership.shadow_attack(tmp_path / "run", 4, source=chance, seed=0)
    assert found.shadows == 4
    assert not found.exceeds
    with pytest.raises(SfumatoError, match="trained on other records"):
        membership.shadow_attack(tmp_path / "run", 4, source=spots)
    with pytest.raises(SfumatoError, match="shadows must be"):
        membership.shadow_attack(tmp_path / "run", 0, source=chance)


def test_a_head_on_stored_features_is_attacked_by_heads_on_them(chance, tmp_path):
    network = models.build_backbone(models.Architecture(name="lenet-300-100", size=SIDE, channels=1))
    expects = models.ExpectedInput(resolution=SIDE, enlarged=SIDE, interpolation="bicubic", mean=(0.5,), std=(0.5,))
    cache, contents = (
        Cache(tmp_path / "cache"),
        caching.contents_for(chance, network, expects, caching.StoredViews(), origins=["timm"]),
    )
    computing.compute(cache, replace(contents, rows=50), chance, network, owner_key=bytes(32))
    source = open_source(f"features:{cache.path}", owner_key=bytes(32))
    train("head", source, planned(1.0, steps=2), directory=tmp_path / "run", learning_rate=1.0, threads=1)
    assert membership.shadow_attack(tmp_path / "run", 4, source=source, seed=0).shadows == 4


def test_shadow_models_are_trained_in_the_precision_of_the_run(chance, tmp_path, monkeypatch):
    """On a device whose rule is the other one."""
    train("lenet-300-100", chance, planned(1.0, steps=1), directory=tmp_path / "run", **RECIPE, precision="bfloat16")
    met, right = [], membership.prepare
    monkeypatch.setattr(_devices, "has_bfloat16", lambda name: False)
    monkeypatch.setattr(membership, "prepare", lambda *given, **named: (met.append(right(*given, **named)), met[-1])[1])
    membership.shadow_attack(tmp_path / "run", 4, source=chance, seed=0)
    assert {job.performance.precision for job in met} == {"bfloat16"}


def test_each_record_is_in_half_of_the_models_and_each_model_has_half_of_the_records():
    halves = membership._halves(6, 10, np.random.default_rng(0))
    assert (halves.sum(axis=0) == 3).all()
    assert (halves.sum(axis=1) == 5).all()
    assert len(np.unique(halves, axis=0)) == 6
