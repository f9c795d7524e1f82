"""The audit of a step checks the noise of each parameter: faults that the projection on one direction passes."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import Noise, PrivacyPlan, RunKey, audit_run, train
from sfumato.data import Images
from sfumato.experiment.settings import Settings
from sfumato.privacy import User
from sfumato.privacy.planning.by_name import request_by_names
from sfumato.randomness.noise import blocks
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.published import AuditOutcome
from sfumato.search.audit_subject import Residuals, Subject
from sfumato.search.step_audit import audit_step
from sfumato.training.conclusion import run_report
from sfumato.training.preparation.building import noise_named


def subject(**further) -> Subject:
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(36, 30), nn.Tanh(), further.pop("layer", nn.Identity()), nn.Linear(30, 4)
    plan = further.pop("plan", None) or PrivacyPlan.calibrate(
        examples=50, batch_size=50, steps=30, epsilon=8.0, delta=1e-5, max_norm=0.5
    )
    known = {"name": "it", "module": nn.Sequential(*layers), "form": Images(size=6, channels=1), "loss": "softmax"}
    return Subject(plan=plan, views=1, classes=4, **known | further)


def found(it: Subject | None = None, observations: int = 300) -> AuditOutcome:
    return audit_step(it or subject(), observations=observations)


def test_right_noise_has_no_fault_and_what_would_have_been_noticed_is_said():
    right = found()
    assert not right.refuted
    assert not right.noise.faults
    assert (right.noise.parameters, right.noise.steps) == (4, 600)
    assert right.noise.numbers == 600 * (37 * 30 + 31 * 4)
    assert right.noise.weakest == "4.bias"
    assert right.noise.scale[1] > 0.99
    assert right.noise.cut[1] > 4
    printed = " ".join(run_report.terminal_lines(right))
    assert "The noise of each of the 4 parameters was checked in 600 steps of two runs" in printed
    assert "with probability at most 1e-06" in printed
    assert "ALARM" not in printed
    assert AuditOutcome.from_dict(json.loads(json.dumps(right.to_dict()))).noise == right.noise


@pytest.mark.parametrize("mechanism", ["tree", "banded"])
def test_correlated_noise_is_checked_in_first_steps(mechanism, monkeypatch):
    """Where it is like independent noise; no epsilon is proven."""
    more = {"bands": 3, "order": "position"} if mechanism == "banded" else {}
    request = request_by_names(examples=60, momentum=0.0, mechanism=mechanism, **more)._asdict()
    plan = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=6, noise_multiplier=2.0, delta=1e-4, **request)
    right = found(subject(plan=plan), 60)
    assert not right.refuted
    assert right.bounds == right.sure == ()
    assert AuditOutcome.from_dict(json.loads(json.dumps(right.to_dict()))) == right
    told = " ".join(run_report.terminal_lines(right))
    assert "the first step of its own run: noise is correlated between steps" in told
    assert "was checked in the first steps of 120 runs: its scale, its largest values, and repeats between runs" in told
    monkeypatch.setattr(RunKey, "generator", one_for_all)
    assert any(
        "4.weight: the noise of two runs has a correlation of 1.00" in one
        for one in found(subject(plan=plan), 60).noise.faults
    )
    monkeypatch.setattr(RunKey, "generator", GENERATOR)
    monkeypatch.setattr(*FAULTS["a parameter without noise"][0])
    assert found(subject(plan=plan), 60).refuted


@pytest.mark.parametrize("choice", ["secure", "dropout", "users"])
def test_secure_noise_users_and_models_that_draw_are_audited_as_what_they_are(choice):
    secure = Settings(model="linear", learning_rate=0.1, noise="secure")
    people = PrivacyPlan.calibrate(
        examples=50, batch_size=10, steps=30, epsilon=8.0, delta=1e-5, max_norm=0.5, unit=User()
    )
    its = {
        "secure": {"noise": partial(noise_named, secure.noise)},
        "dropout": {"layer": nn.Dropout(0.5)},
        "users": {"plan": people},
    }
    assert not found(subject(**its[choice]), 60).noise.has_fault


DRAW = blocks.draw


def changed(change):
    """Noise that is drawn, and then changed: by the parameter's name and the numbers in standard deviations."""

    def draw(rule, shapes, kept, step, key, deviation, share, take):
        def altered(name, columns, drawn):
            take(name, columns, deviation * change(name, drawn / deviation))

        DRAW(rule, shapes, kept, step, key, deviation, share, altered)

    return blocks, "draw", draw


def at_step(step_of):
    """Noise of another step."""
    return blocks, "draw", lambda rule, shapes, kept, step, *rest: DRAW(rule, shapes, kept, step_of(step), *rest)


def one_for_all(key, stream, step, name=""):
    return GENERATOR(RunKey.from_seed(7), stream, step, name)


GENERATOR = RunKey.generator
STANDARD = Noise.standard_deviation.fget

FAULTS = {  # what is wrong, what is said of it, and how many observations show it
    "a parameter without noise": (
        changed(lambda name, z: 0 * z if name == "4.bias" else z),
        "4.bias: the noise has 0.00%",
        60,
    ),
    "a hundredth less noise": (
        (Noise, "standard_deviation", property(lambda noise: 0.99 * STANDARD(noise))),
        "all parameters together: the noise has 9",
        300,
    ),
    "noise cut at 4 standard deviations": (
        changed(lambda name, z: np.clip(z, -4, 4)),
        "all parameters together: the largest of 740,400 values is 4.00",
        300,
    ),
    "noise of two steps in a row": (
        at_step(lambda step: step // 2),
        "of two steps in a row has a correlation of 1.00",
        60,
    ),
    "noise that comes again after forty steps": (at_step(lambda step: step % 40), "repeats in another", 60),
    "noise of two runs": (
        (RunKey, "generator", one_for_all),
        "of the same step of two runs has a correlation of 1.00",
        60,
    ),
    "noise of two parameters": (
        (RunKey, "generator", lambda key, stream, step, name="": GENERATOR(key, stream, step)),
        "1.weight and 1.bias: their noise has a correlation of 1.00",
        60,
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_of_the_noise_is_an_alarm(what, monkeypatch):
    fault, words, observations = FAULTS[what]
    monkeypatch.setattr(*fault)
    wrong = found(observations=observations)
    assert wrong.refuted
    assert any(words in one for one in wrong.noise.faults), wrong.noise.faults
    assert "ALARM: the noise is not the plan's. Do not rely on the guarantee." in run_report.terminal_lines(wrong)


def test_the_page_and_the_record_of_a_run_have_it(one_run, tmp_path, monkeypatch):
    path = tmp_path / "copy"
    shutil.copytree(one_run.directory, path)
    audit_run(path, observations=30)
    right = (path / names.REPORT).read_text()
    assert "parameters was checked in 60 steps of two runs" in right
    assert "Warning: the noise is not the plan" not in right
    bias = next(name for name in one_run.load().module.state_dict() if name.endswith("bias"))
    monkeypatch.setattr(*changed(lambda name, z: 0 * z if name == bias else z))
    wrong = audit_run(path, observations=30)
    assert AuditOutcome.read(RunDirectory(path)).to_dict() == wrong.to_dict()
    page = (path / names.REPORT).read_text()
    assert "Warning: the noise is not the plan" in page
    assert f"{bias}: the noise has 0.00% of its scale" in page


def test_the_page_of_a_run_with_correlated_noise_has_no_bounds(spots, tmp_path):
    request = request_by_names(examples=200, momentum=0.0, mechanism="banded")._asdict()
    plan = PrivacyPlan.calibrate(examples=200, batch_size=50, steps=4, noise_multiplier=2.0, delta=1e-4, **request)
    run = train("linear", spots, plan, directory=tmp_path / "run", learning_rate=0.5, threads=1)
    assert audit_run(run.directory, observations=30).bounds == ()
    page = (run.directory / names.REPORT).read_text()
    assert "as the first step of its own run" in page
    assert "Bounds of the audit" not in page
    assert "Warning" not in page[page.index('id="audit"') : page.index("as the first step of its own run")]


def test_what_is_collected_is_what_was_released_less_the_sum():
    generator, steps = torch.Generator().manual_seed(0), 5
    like = {"a": torch.zeros(3, 4), "none": torch.zeros(0), "b": torch.zeros(1)}
    residuals, noise = Residuals(like, steps), {"a": [], "b": []}
    for run in (0, 1):
        for step in range(steps):
            total = {name: torch.randn(value.shape, generator=generator) for name, value in like.items()}
            drawn = {name: torch.randn(value.shape, generator=generator) for name, value in like.items()}
            private = {name: (total[name] + 3 * drawn[name]) / 10 for name in like}
            residuals.add(run, step, private, total, scale=10, unit=3)
            for name, values in noise.items():
                values.append(drawn[name].flatten().double())
    for one in residuals.parameter_noise:
        values = torch.stack(noise[one.name])
        assert (one.coordinates, one.steps) == (values.shape[1], 2 * steps)
        assert one.squares == pytest.approx(float(values.square().sum()), rel=1e-5)
        assert one.least == pytest.approx(float(values.square().sum(0).min()), rel=1e-5)
        assert one.largest == pytest.approx(float(values.abs().max()), rel=1e-5)
        assert one.kept[:, :, 0].ravel() == pytest.approx(values[:, 0].numpy(), abs=1e-5)
