"""Canaries that are directions: how long they are, by which coins they are in, and what their cosines show."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import Noise, PrivacyPlan, RunKey, SfumatoError, train, verify
from sfumato.gradients import GridSum
from sfumato.privacy import FullBatch, Gaussian, Poisson, User
from sfumato.runs import audit_outcomes
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.training.parts.canaries import flip_coins
from sfumato.training.parts.canary_audits import TURNS, Directions

CANARIES = 40


@pytest.fixture
def small_plan() -> PrivacyPlan:
    mechanism, rule = Gaussian(noise_multiplier=4.0), Poisson(batch_size=50)
    return PrivacyPlan(mechanism=mechanism, population=200, participation=rule, steps=6, delta=1e-3)


def part_of(plan: PrivacyPlan, count: int = CANARIES, width: int = 30) -> Directions:
    torch.manual_seed(0)
    return Directions(count=count, plan=plan).with_model(nn.Linear(width, 10), None)  # pyright: ignore[reportArgumentType]


def flat(tensors) -> np.ndarray:
    return torch.cat([value.double().flatten() for value in tensors.values()]).numpy()


def test_a_direction_is_the_formula_s_and_never_longer_than_what_one_unit_may_add(small_plan):
    part = part_of(small_plan)
    generators = [np.random.default_rng((0, 7, block)) for block in (0, 1)]
    drawn = np.concatenate(
        [generators[0].standard_normal((10, 30), np.float32).ravel(), generators[1].standard_normal(10, np.float32)]
    )
    unit = drawn.astype(float) / np.linalg.norm(drawn.astype(float))
    assert flat(part.part(7)) == pytest.approx(unit, rel=1e-6)
    for place in range(CANARIES):
        lengths = []
        for max_norm in (1.0, 0.3):
            total = GridSum(part.initial_weights, max_norm=max_norm)
            total.add({name: max_norm * value for name, value in part.part(place).items()})
            lengths.append(np.linalg.norm(flat(total.value())) / max_norm)
        assert all(1 - 1e-5 < length <= 1 for length in lengths)
    far = part_of(replace(small_plan, unit=User(clients=True)))
    assert np.linalg.norm(flat(far.part(0))) == pytest.approx(2, rel=1e-5), "as far as one person of a client moves it"


def test_those_that_are_in_take_part_with_the_plan_s_probability_by_coins_of_their_own(small_plan, monkeypatch):
    part, key, streams = part_of(small_plan, count=300), RunKey.from_seed(5), []
    derive = RunKey._derive
    monkeypatch.setattr(RunKey, "_derive", lambda key, stream, *at: streams.append(stream) or derive(key, stream, *at))
    added, coins = part.added_constant(key), flip_coins(key, 300)
    vectors = np.stack([flat(part.part(place)) for place in range(300)])
    taken = []
    for step in range(20):
        turns = coins & (key.generator(TURNS, step).random(300) < small_plan.sampling_probability)
        assert flat(added(step)) == pytest.approx(vectors[turns].sum(0), abs=1e-9)
        assert flat(added(step)).tolist() == flat(part.added_constant(key)(step)).tolist(), "a step that is taken again"
        taken.append(turns.sum())
    expected = coins.sum() * small_plan.sampling_probability * 20
    assert abs(sum(taken) - expected) < 5 * math.sqrt(expected)
    assert set(streams) == {"audit coins", "audit turns"}, "of which no other draw is made"


def test_cosines_are_those_with_how_far_the_weights_have_come_down(small_plan):
    part = part_of(small_plan)
    down = {name: part.initial_weights[name] - 0.1 * value.float() for name, value in part.part(3).items()}
    scores = part.scores(down)
    assert scores[3] == pytest.approx(1, abs=1e-4)
    vectors = np.stack([flat(part.part(place)) for place in range(CANARIES)])
    assert scores == pytest.approx(vectors @ vectors[3] / np.linalg.norm(vectors, axis=1), abs=1e-4)
    assert not part.scores(dict(part.initial_weights)).any(), "weights that have not moved"
    assert not part.scores({name: value * math.nan for name, value in down.items()}).any()


def test_a_run_s_audit_follows_from_its_model_and_is_verified(spots, small_plan, tmp_path):
    given = {"audit": CANARIES, "audit_source": "directions", "learning_rate": 0.1}
    run = train("linear", spots, small_plan, directory=tmp_path / "run", **given)
    found = audit_outcomes.read(RunDirectory(run.directory))
    assert [bound.confidence for bound in found.bounds] == [0.95, 0.95, None]
    assert "an estimate" in found.bounds[2].sentence
    assert found.bounds[2].observations["dimensions"] == found.details["dimensions"]
    assert any("random directions of the weights" in line for line in run.statement.plain)
    assert verify(run.directory).holds
    assert "cosine of a direction" in (run.directory / "report.html").read_text()
    path = run.directory / names.AUDIT
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"dimensions": 7}))
    assert not verify(run.directory).holds
    changed = data | {"dimensions": 7}
    assert audit_outcomes.problem(audit_outcomes.AuditOutcome.from_dict(changed), small_plan, CANARIES, changed)


def scored(plan: PrivacyPlan, seed: int, factor: float) -> audit_outcomes.AuditOutcome:
    """The audit of a run of full batches of nobody, one step of which is the whole run: noise of this factor."""
    part, key = part_of(plan, count=200, width=2000), RunKey.from_seed(seed)
    noise = np.random.default_rng(seed).normal(0, factor * plan.noise_multiplier, 20_010)
    moved = flat(part.added_constant(key)(0)) + noise
    ends = np.cumsum([value.numel() for value in part.initial_weights.values()])
    pieces = zip(part.initial_weights.items(), np.split(moved, ends[:-1]), strict=True)
    weights = {name: value.double() - torch.from_numpy(piece).view_as(value) for (name, value), piece in pieces}
    coins = flip_coins(key, 200).tolist()
    return audit_outcomes.audit_canaries(plan, part.scores(weights).tolist(), coins, dimensions=20_010)


def test_the_bounds_stay_beneath_the_promise_and_smaller_noise_is_found_out():
    plan = PrivacyPlan(
        mechanism=Gaussian(noise_multiplier=1.0), population=200, participation=FullBatch(), steps=1, delta=1e-5
    )
    right = [scored(plan, seed, 1.0) for seed in range(4)]
    assert sum(found.refuted for found in right) <= 1, "each bound may be wrong in one of twenty"
    shown = [found.bounds[2] for found in right]
    assert np.median([one.observations["mean"] for one in shown]) == pytest.approx(1, abs=0.15), "mu"
    estimates = [one.epsilon for one in shown]
    assert 0.8 < np.median(estimates) / plan.epsilon() < 1.6, "the fitted spread of few canaries makes it larger"
    wrong = scored(replace(plan, mechanism=Gaussian(noise_multiplier=4.0)), 0, 0.1)
    nominal = wrong.nominal
    assert wrong.refuted
    assert wrong.bounds[0].epsilon > nominal, "without any assumption"
    assert wrong.bounds[2].epsilon > nominal


def test_noise_of_a_tenth_is_found_out_in_a_run(spots, tmp_path, monkeypatch):
    plan = PrivacyPlan.calibrate(examples=200, batch_size=200, steps=4, epsilon=1.0, delta=1e-3)
    known = {"audit": 100, "audit_source": "directions", "seed": 1, "momentum": 0.0, "learning_rate": 0.1}
    right = train("cnn", spots, plan, directory=tmp_path / "right", **known)
    assert not audit_outcomes.read(RunDirectory(right.directory)).refuted
    deviation = Noise.standard_deviation.fget
    monkeypatch.setattr(Noise, "standard_deviation", property(lambda noise: 0.1 * deviation(noise)))
    run = train("cnn", spots, plan, directory=tmp_path / "wrong", **known)
    found = audit_outcomes.read(RunDirectory(run.directory))
    assert found.refuted or found.doubtful
    assert found.bounds[2].epsilon > plan.epsilon()


def test_more_canaries_than_weights_are_refused(small_plan):
    with pytest.raises(SfumatoError, match="audit is 60, but only 40 weights are trained and released"):
        part_of(small_plan, count=60, width=3)
