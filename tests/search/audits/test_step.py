"""The white box: the software's own step at its promise, never above it, and the faults that it sees."""

import json
import math
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import Noise, PrivacyPlan, SfumatoError, audit_run
from sfumato.data import Images, Tokens
from sfumato.experiment.settings import Settings
from sfumato.gradients import ClippedGradient, ClippedSum
from sfumato.models.losses import answer_weights, multilabel_cross_entropy
from sfumato.privacy import FullBatch, QuantileClipping, User
from sfumato.randomness.noise.secure import SecureNoise
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.loaded import load
from sfumato.runs.published import AuditOutcome
from sfumato.search.audit_subject import Subject, from_run
from sfumato.search.step_audit import WhiteBox, audit_step, composed_epsilon
from sfumato.training.preparation.building import noise_named

FORM = Images(size=6, channels=1)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4))


def full(epsilon: float, steps: int = 30, **further) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        examples=50, batch_size=50, steps=steps, epsilon=epsilon, delta=1e-5, max_norm=0.5, **further
    )


def subject(plan: PrivacyPlan, **further) -> Subject:
    known = {"name": "it", "module": linear(), "form": FORM, "loss": "softmax", "views": 1, "classes": 4}
    return Subject(plan=plan, **known | further)


def test_full_batches_prove_at_least_70_percent_of_the_promise_and_never_more():
    found = audit_step(subject(full(8.0)), observations=700)
    gaussian, plain = found.bounds
    assert 0.7 * 8 < gaussian.epsilon <= found.nominal
    assert abs(gaussian.epsilon - 7.2) < 0.25 * 8, "what so many observations can show"
    assert plain.assumption is None
    assert plain.epsilon <= gaussian.epsilon
    assert not found.refuted
    assert found.details["merged_steps"] == 30
    assert 0.5 < gaussian.smallest_fault < 1 < gaussian.at_most


def test_poisson_steps_are_composed_from_the_mu_of_one_in_which_the_canary_takes_part():
    plan = PrivacyPlan.calibrate(examples=1000, batch_size=100, steps=200, noise_multiplier=1.2, delta=1e-5)
    found = audit_step(subject(plan), observations=500)
    assert found.details["merged_steps"] == round((3 * 1.2) ** 2)
    assert 0.8 / 1.2 < found.bounds[0].mu < 1 / 1.2
    assert 0.7 * plan.epsilon() < found.bounds[0].epsilon < plan.epsilon()
    assert "probability 0.1" in found.bounds[0].assumption
    assert composed_epsilon(plan, 1 / 1.2)[0] == pytest.approx(plan.epsilon(), rel=0.04)


def test_what_is_proven_of_steps_with_the_canary_alone_is_no_alarm_where_it_need_not_take_part():
    plan = PrivacyPlan.calibrate(examples=1000, batch_size=100, steps=200, epsilon=0.5, delta=1e-5)
    plan = replace(plan, adjacency="zero-out")
    found = audit_step(subject(plan), observations=300, confidence=1 - 1e-6)
    assert not found.refuted
    assert len(found.bounds) == 1


@pytest.mark.parametrize("of_users", [False, True])
def test_observations_are_standard_normal_with_and_without_the_canary(of_users):
    plan = full(3.0, unit=User()) if of_users else full(3.0)
    box = WhiteBox(subject=subject(plan, views=3), merged=plan.steps)
    seen = np.array([[box.observe(2 * i + side, canary=bool(side)) for i in range(600)] for side in (0, 1)])
    mu = math.sqrt(plan.steps) / plan.noise_multiplier
    assert box.reach == 1
    assert abs(seen[0].mean()) < 0.17, "the others are taken off"
    assert abs(seen[1].mean() - mu) < 0.17
    assert np.abs(seen.std(1) - 1).max() < 0.12


@pytest.mark.parametrize("views", [1, 3])
def test_without_noise_autograd_and_the_step_agree(views):
    plan = PrivacyPlan.calibrate(
        examples=50, batch_size=50, steps=1, noise_multiplier=1e-3, delta=1e-5, max_norm=0.5, participation=FullBatch()
    )
    box = WhiteBox(subject=subject(plan, views=views), merged=1)
    assert abs(box.others_component) > 0.03 * plan.max_norm, "the others have something in the canary's direction"
    assert box.observe(0, canary=False) * plan.noise_multiplier == pytest.approx(0, abs=6e-3)
    assert box.observe(1, canary=True) * plan.noise_multiplier == pytest.approx(1, abs=6e-3)


RIGHT = ClippedGradient.__call__


def halved(noise: Noise) -> float:
    return noise.mechanism.noise_multiplier * noise.max_norm / 2


def unclipped(gradient: ClippedGradient, *batch) -> ClippedSum:
    wide = ClippedGradient(gradient._model, gradient._objective.loss, max_norm=1e3, views=gradient.views)
    return RIGHT(wide, *batch)


def with_the_last_one_again(gradient: ClippedGradient, inputs, targets) -> ClippedSum:
    return RIGHT(gradient, torch.cat([inputs, inputs[3:]]), torch.cat([targets, targets[3:]]))


FAULTS = {
    "noise of half its scale": (Noise, "standard_deviation", property(halved)),
    "no clipping": (ClippedGradient, "__call__", unclipped),
    "an example twice": (ClippedGradient, "__call__", with_the_last_one_again),
}


def test_a_fault_in_the_step_is_seen(monkeypatch):
    it = subject(full(8.0))
    monkeypatch.setattr(ClippedGradient, "self_check", lambda gradient, *given, **named: None)
    for what, fault in FAULTS.items():
        with monkeypatch.context() as patch:
            patch.setattr(*fault)
            assert audit_step(it, observations=300).refuted, what


def test_what_single_steps_say_nothing_of_is_refused():
    with pytest.raises(SfumatoError, match="follows a quantile"):
        subject(replace(full(1.0), clipping=QuantileClipping(max_norm=1.0, quantile=0.5, count_noise=5.0)))


def test_texts_and_embeddings_of_words_are_audited_too():
    tokens = Tokens(tokenizer="numbers", length=5, vocabulary=20)
    module = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 3))
    found = audit_step(subject(full(3.0), module=module, form=tokens, classes=3), observations=300)
    assert not found.refuted
    assert found.bounds[0].epsilon > 0.5


def test_a_run_is_audited_by_its_own_files_and_reads_no_data(one_run, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(one_run.directory, path)
    found = audit_run(path, observations=30)
    assert found.nominal == one_run.statement.epsilon
    assert AuditOutcome.read(RunDirectory(path)).to_dict() == found.to_dict()
    assert "Bounds of the audit" in (path / "report.html").read_text()
    assert from_run(path).views == 2


def test_several_labels_are_weighted_as_in_the_run(one_run, tmp_path):
    shares = {"a": 0.02, "b": 0.5, "c": 0.9, "d": 0.3}
    one = subject(full(3.0, steps=1), loss="multilabel", prevalence=shares)
    outputs, labels = torch.tensor([[0.5, -1.0, 2.0, 0.0]]), torch.tensor([[1, 0, 0, 0]])
    weighted = multilabel_cross_entropy(outputs, labels, torch.tensor(answer_weights(shares, tuple(shares))))
    assert one.gradient()._objective.loss(outputs, labels) == weighted
    assert multilabel_cross_entropy(outputs, labels) != weighted
    place = tmp_path / "run"
    shutil.copytree(one_run.directory, place)
    record = json.loads((place / names.SETTINGS).read_text())
    classes = load(place).classes
    record["settings"]["class_prevalence"] = dict.fromkeys(reversed(classes), 1 / len(classes))
    (place / names.SETTINGS).write_text(json.dumps(record))
    assert tuple(from_run(place).prevalence or ()) == tuple(classes), "in the order of the outputs"


def test_secure_noise_is_audited_as_what_it_is(monkeypatch):
    settings, drawn = Settings(model="linear", learning_rate=0.1, noise="secure"), []
    inner = SecureNoise.prepare
    monkeypatch.setattr(SecureNoise, "prepare", lambda noise, *a, **k: drawn.append(noise) or inner(noise, *a, **k))
    found = audit_step(subject(full(3.0), noise=partial(noise_named, settings.noise)), observations=200)
    assert len(drawn) == 400
    assert not found.refuted
    assert found.bounds[0].epsilon > 1
