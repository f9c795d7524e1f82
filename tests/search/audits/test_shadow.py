"""A stranger with the model file: a planted leak is found out, and a private model stays beneath its promise."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from sfumato import EMA, PrivacyPlan, SfumatoError, _devices, open_source, train
from sfumato.randomness.noise import Noise
from sfumato.runs.owner import uses
from sfumato.runs.owner.data_identity import DataIdentity
from sfumato.search.audits import many_models, shadow

RECORDS, SIDE, CLASSES, SHADOWS = 120, 16, 4, 16
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

    def released(total, plan, generator):
        noise = torch.empty_like(total).normal_(generator=generator)
        total = total + 1e-3 * plan.noise_multiplier * plan.max_norm * noise
        return total / (plan.expected_batch_size * plan.max_norm)

    monkeypatch.setattr(many_models, "noisy_mean", released)


def test_a_model_without_its_noise_is_found_out(chance, tmp_path, monkeypatch):
    without_noise(monkeypatch)
    train("scattering", chance, planned(1.0), directory=tmp_path / "run", **RECIPE)
    found = shadow.shadow_attack(tmp_path / "run", SHADOWS, source=chance, seed=0)
    assert found.rates[1].true_positives > 0.3
    assert found.auc[0] > 0.9
    assert found.exceeds
    offline = shadow.shadow_attack(tmp_path / "run", SHADOWS, source=chance, seed=0, variant="offline")
    assert offline.exceeds


def test_a_private_model_stays_beneath_its_promise(chance, tmp_path):
    before = uses.earlier_uses(DataIdentity.from_source(chance)).plans
    train("scattering", chance, planned(1.0), directory=tmp_path / "run", **RECIPE)
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    found = shadow.shadow_attack(tmp_path / "run", SHADOWS, source=chance, seed=0)
    assert not found.exceeds
    assert found.members == found.others == RECORDS
    assert found.rates[1].true_positives_at_least < found.rates[1].allowed_at_most
    json.dumps(found.to_dict())
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert (
        len(uses.earlier_uses(DataIdentity.from_source(chance)).plans) == len(before) + 1
    )  # the run, and no shadow model


def test_one_by_one_the_models_are_those_trained_at_once(chance, tmp_path, monkeypatch):
    """Without noise, since that is drawn by other generators: phi of both, by a momentum, a schedule and an average."""
    without_noise(monkeypatch)
    recipe = RECIPE | {"momentum": 0.9, "schedule": "linear", "averaging": EMA(0.5)}
    train("scattering", chance, planned(8.0, steps=5), directory=tmp_path / "run", **recipe)
    seen = []
    monkeypatch.setattr(shadow, "attack", lambda target, found, *_, **__: seen.append((target, found)))
    shadow.shadow_attack(tmp_path / "run", 4, source=chance, seed=0)
    monkeypatch.setattr(shadow, "batched_trainer", lambda job: None)
    shadow.shadow_attack(tmp_path / "run", 4, source=chance, seed=0)
    for at_once, one_by_one in zip(*seen, strict=True):
        assert at_once.std() > 0.1
        np.testing.assert_allclose(at_once, one_by_one, atol=0.05)


def test_any_model_is_attacked_by_models_trained_one_by_one(chance, spots, tmp_path):
    recipe = RECIPE | {"views": 2, "shift": 1, "averaging": EMA(0.9)}
    train("lenet-300-100", chance, planned(1.0, steps=2), directory=tmp_path / "run", **recipe)
    found = shadow.shadow_attack(tmp_path / "run", 4, source=chance, seed=0)
    assert found.shadows == 4
    assert not found.exceeds
    with pytest.raises(SfumatoError, match="trained on other records"):
        shadow.shadow_attack(tmp_path / "run", 4, source=spots)
    with pytest.raises(SfumatoError, match="shadows must be"):
        shadow.shadow_attack(tmp_path / "run", 0, source=chance)


def test_shadow_models_are_trained_in_the_precision_of_the_run(chance, tmp_path, monkeypatch):
    """On a device whose rule is the other one."""
    train("lenet-300-100", chance, planned(1.0, steps=1), directory=tmp_path / "run", **RECIPE, precision="bfloat16")
    met, right = [], shadow.prepare
    monkeypatch.setattr(_devices, "has_bfloat16", lambda name: False)
    monkeypatch.setattr(shadow, "prepare", lambda *given, **named: (met.append(right(*given, **named)), met[-1])[1])
    shadow.shadow_attack(tmp_path / "run", 4, source=chance, seed=0)
    assert {job.performance.precision for job in met} == {"bfloat16"}


def test_each_record_is_in_half_of_the_models_and_each_model_has_half_of_the_records():
    halves = shadow._halves(6, 10, np.random.default_rng(0))
    assert (halves.sum(axis=0) == 3).all()
    assert (halves.sum(axis=1) == 5).all()
    assert len(np.unique(halves, axis=0)) == 6
