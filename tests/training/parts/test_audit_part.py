"""Canaries within a run: where their coins come from, who sees them, what they cost nobody, and what they show."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import Noise, PrivacyPlan, RunKey, Sampler, SfumatoError, load, open_source, train, verify
from sfumato.privacy import FixedOrder, Gaussian, Poisson, TruncatedPoisson, User, ledger
from sfumato.randomness import owner_key
from sfumato.runs import audit_outcomes
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, file_hash
from sfumato.training import loop
from sfumato.training.parts import canary_audits as part_of_audit
from sfumato.training.parts.canaries import COINS, synthetic
from sfumato.training.parts.part import RunRequest
from sfumato.training.preparation import from_record
from sfumato.training.preparation.prepare import prepare
from sfumato.training.run import execute
from sfumato.training.step import PrivateStep
from tests.runs.test_verdict import rewrite

CANARIES = 40


@pytest.fixture
def small_plan() -> PrivacyPlan:
    return PrivacyPlan(
        mechanism=Gaussian(noise_multiplier=4.0),
        population=200,
        participation=Poisson(batch_size=50),
        steps=6,
        delta=1e-3,
    )


@pytest.fixture
def seen(monkeypatch):
    """Of each private step its labels, what it released, and the step itself; and every draw by stream."""
    known: dict = {"labels": [], "released": [], "steps": [], "streams": []}
    inner, derive = PrivateStep.__call__, RunKey._derive

    def outer(private_step, step, micro_batches, state):
        pieces = list(micro_batches)
        result, following = inner(private_step, step, pieces, state)
        known["labels"].append(np.concatenate([piece[1].numpy() for piece in pieces]) if pieces else np.zeros(0))
        known["released"].append(result)
        known["steps"].append(private_step)
        return result, following

    def drawn(key, stream, step, name):
        known["streams"].append(stream)
        return derive(key, stream, step, name)

    monkeypatch.setattr(PrivateStep, "__call__", outer)
    monkeypatch.setattr(RunKey, "_derive", drawn)
    return known


def test_the_coins_are_fair_and_of_a_stream_of_their_own(spots, seen, small_plan, tmp_path, monkeypatch):
    canaries, key = synthetic(4000, spots), RunKey.from_seed(3)
    assert 1850 < canaries.coins(key).sum() < 2150
    seen["streams"].clear()
    canaries.coins(key)
    own = set(seen["streams"])
    assert own == {COINS}
    with monkeypatch.context() as patch:
        patch.setattr(part_of_audit.Canaries, "coins", lambda canaries, key: np.ones(len(canaries), bool))
        seen["streams"].clear()
        train("linear", spots, small_plan, directory=tmp_path / "run", audit=CANARIES, seed=1, learning_rate=0.1)
    assert own.isdisjoint(seen["streams"]), "no other draw of a run is made from it"


def test_canaries_that_are_in_are_drawn_like_all_others_and_move_none_of_these(
    spots, seen, small_plan, tmp_path, monkeypatch
):
    found, real = [], RunKey.load.__func__
    monkeypatch.setattr(RunKey, "load", classmethod(lambda cls, path: found.append(real(cls, path)) or found[-1]))
    train("linear", spots, small_plan, directory=tmp_path / "run", audit=CANARIES, learning_rate=0.1)
    key, canaries = found[-1], synthetic(CANARIES, spots)
    coins = canaries.coins(key)
    key = key.with_salts(ledger.openings(ledger.read(tmp_path / "run" / "ledger.jsonl")))
    labels = np.concatenate([spots.train.labels, canaries.records.labels[coins]])
    sampler, alone = (Sampler(small_plan, key, records=count) for count in (len(labels), 200))
    taken = 0
    for step, drawn in enumerate(seen["labels"]):
        participants = sampler.draw(step)
        assert drawn.tolist() == labels[participants].tolist()
        assert participants[participants < 200].tolist() == alone.draw(step).tolist()
        taken += int((participants >= 200).sum())
    expected = small_plan.sampling_probability * coins.sum() * small_plan.steps
    assert abs(taken - expected) < 5 * expected**0.5, "with the plan's probability"


def test_the_divisor_and_the_promise_stay_the_plan_s(spots, seen, small_plan, tmp_path):
    run = train("linear", spots, small_plan, directory=tmp_path / "run", audit=CANARIES, learning_rate=0.1)
    assert run.statement.epsilon == small_plan.epsilon()
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == small_plan.to_dict()
    for step, released in zip(seen["steps"], seen["released"], strict=True):
        assert step.divisor is None
        size = torch.cat([value.flatten() for value in released.values()]).std() * small_plan.expected_batch_size
        assert 0.75 < size / small_plan.noise_multiplier < 1.35, "the noise over B C"


def test_nothing_is_measured_or_counted_on_canaries(spots, small_plan, tmp_path):
    run = train("linear", spots, small_plan, directory=tmp_path / "run", audit=CANARIES, learning_rate=0.1)
    assert sum(map(sum, run.figures["confusion"])) == len(spots.test)
    job = prepare(None, spots, small_plan, _settings(run), audit=CANARIES)
    assert job.source is spots
    assert (len(job.source.train), job.source.examples) == (200, 200)
    assert len(job.sampler_inputs) == 0


def test_scores_are_of_the_released_model_alone(spots, small_plan, tmp_path):
    run = train("linear", spots, small_plan, directory=tmp_path / "run", audit=CANARIES, learning_rate=0.1, ema=0.9)
    found, loaded, canaries = (
        audit_outcomes.read(RunDirectory(run.directory)),
        load(run.directory),
        synthetic(CANARIES, spots),
    )
    logits = loaded.module(loaded.transform(torch.from_numpy(canaries.records.images))).double()
    losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(canaries.records.labels), reduction="none")
    assert found.details["scores"] == pytest.approx((-losses).tolist(), rel=1e-4)
    assert [bound.assumption for bound in found.bounds] == [None, "a Gaussian trade-off curve"]
    assert found.nominal == small_plan.epsilon()


def test_the_statement_says_that_there_were_canaries_and_verify_derives_what_they_show(spots, small_plan, tmp_path):
    run = train("linear", spots, small_plan, directory=tmp_path / "run", audit=CANARIES, learning_rate=0.1)
    assert any(f"each of {CANARIES} canaries" in line for line in run.statement.plain)
    assert run.statement.circumstances.to_dict()["audit"] == CANARIES
    assert "scores and coins of the canaries, and the result of the audit" in run.statement.to_dict()["released"]
    verdict = verify(run.directory)
    assert verdict.holds
    assert any("audit of canaries" in check.what for check in verdict.checks)
    assert "Canaries within the run" in (run.directory / "report.html").read_text()
    path = run.directory / names.AUDIT
    whole = json.loads(path.read_text())
    data = json.loads(path.read_text())
    data["included"][0] = not data["included"][0]
    path.write_text(json.dumps(data))
    assert "audit.json is not the file that the ledger ends with" in verify(run.directory).line
    for name in ("nominal", "refuted"):
        path.write_text(json.dumps({**whole, name: 9.5 if name == "nominal" else True}))
        rewrite(run.directory, lambda events: [*events[:-1], ("end", {**events[-1][1], "audit": file_hash(path)})])
        assert "it does not follow from its scores and coins" in verify(run.directory).line
    path.unlink()
    assert not verify(run.directory).holds


def test_a_run_without_canaries_says_nothing_of_them(one_run):
    assert one_run.statement.circumstances.audit == 0
    assert "audit" not in json.loads((one_run.directory / "settings.json").read_text())
    assert not (one_run.directory / names.AUDIT).exists()


def test_the_number_of_canaries_is_pinned_and_a_seed_s_key_depends_on_it(spots, small_plan, tmp_path, monkeypatch):
    given = {"directory": tmp_path / "run", "learning_rate": 0.1, "seed": 2}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", _stop)
        with pytest.raises(StopError):
            train("linear", spots, small_plan, audit=CANARIES, **given)
    for other in ({"audit": 60}, {}):
        with pytest.raises(SfumatoError, match="audit"):
            train("linear", spots, small_plan, **given, **other)
    train("linear", spots, small_plan, audit=CANARIES, **given)
    found = [
        prepare(None, spots, small_plan, _settings(None), **asked).key.uint64_words("noise", 0).tolist()
        for asked in ({}, {"audit": 40}, {"audit": 41})
    ]
    assert len({tuple(words) for words in found}) == 3, "other sums have other noise"


def test_a_resumed_run_of_the_command_line_has_its_canaries_again(arrays, tmp_path, monkeypatch):
    given = {"directory": tmp_path / "run", "steps": 3, "noise_multiplier": 8.0, "batch_size": 20}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", _stop)
        with pytest.raises(StopError):
            train("linear", arrays, audit=CANARIES, **given)
    job, run = from_record.job_from_record(str(tmp_path / "run"), trust_code=False)
    assert job.circumstances.audit == CANARIES
    execute(job, run)
    assert (tmp_path / "run" / names.AUDIT).is_file()


def test_canaries_catch_noise_that_is_far_too_small(spots, tmp_path, monkeypatch):
    plan = PrivacyPlan.calibrate(examples=200, batch_size=200, steps=60, epsilon=1.0, delta=1e-3)
    right = Noise.standard_deviation.fget
    monkeypatch.setattr(Noise, "standard_deviation", property(lambda noise: 0.02 * right(noise)))
    run = train("linear", spots, plan, directory=tmp_path / "wrong", audit=100, learning_rate=2.0, seed=1, keep=0)
    found = audit_outcomes.read(RunDirectory(run.directory))
    assert found.refuted or found.doubtful
    assert found.bounds[0].epsilon > plan.epsilon(), "without any assumption"


def test_each_canary_is_a_user_of_its_own(tmp_path):
    digits = open_source("digits", owner_key=bytes(32), public=True)
    users = np.array([f"u{place % 50}" for place in range(len(digits.train))])
    source = replace(digits, train=replace(digits.train, users=users), users=50)
    key, canaries = RunKey.from_seed(1), synthetic(CANARIES, source)
    behind = canaries.appended_to(source, key)
    assert len(set(behind.train.users)) == 50 + canaries.coins(key).sum()
    assert sorted(set(behind.train.users))[:50] == sorted(set(users)), "the persons keep their places"
    plan = PrivacyPlan(
        mechanism=Gaussian(noise_multiplier=4.0),
        population=50,
        participation=Poisson(batch_size=10),
        steps=3,
        delta=1e-3,
        unit=User(),
    )
    run = train("linear", source, plan, directory=tmp_path / "run", audit=CANARIES, learning_rate=0.1)
    assert len(audit_outcomes.read(RunDirectory(run.directory)).details["scores"]) == CANARIES


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"audit": 0}, "audit must be"),
        ({"audit": 5}, "at least 10 canaries, got 5"),
        ({"audit_source": "digits"}, "but audit is not given"),
    ],
)
def test_what_shows_nothing_is_refused(arrays, tmp_path, given, words):
    with pytest.raises(SfumatoError, match=words):
        train("linear", arrays, directory=tmp_path / "run", **given)


def test_plans_that_canaries_would_move_others_in_are_refused(spots, small_plan):
    truncated = TruncatedPoisson(batch_size=50, largest=80)
    for plan in (
        replace(small_plan, participation=truncated, adjacency="zero-out"),
        replace(
            small_plan, participation=FixedOrder(batch_size=50, assignment="position"), steps=4, adjacency="zero-out"
        ),
    ):
        with pytest.raises(SfumatoError, match="Poisson sampling or full batches"):
            part_of_audit.Audit.from_request(_asked(spots, plan))


def test_canaries_that_are_private_records_are_refused(digits, tmp_path):
    images, labels = digits.train.images, digits.train.labels
    test = {"x_test": digits.test.images[:40], "y_test": digits.test.labels[:40]}
    np.savez(tmp_path / "private.npz", x_train=images[:60], y_train=labels[:60], **test)
    others = {"x_test": digits.test.images[40:80], "y_test": digits.test.labels[40:80]}
    np.savez(tmp_path / "public.npz", x_train=images[100:160], y_train=labels[100:160], **others)
    source = open_source(f"npz:{tmp_path / 'private.npz'}", owner_key=owner_key())
    plan = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=3, noise_multiplier=4.0, delta=1e-3)
    with pytest.raises(SfumatoError, match="records of the private source") as refused:
        part_of_audit.Audit.from_request(_asked(source, plan, audit=20, audit_source="digits"))
    assert "\n" not in str(refused.value)
    part = part_of_audit.Audit.from_request(
        _asked(source, plan, audit=20, audit_source=f"npz:{tmp_path / 'public.npz'}")
    )
    assert len(part.canaries) == 20
    assert part.key_facts["audit"]["source"].startswith("npz:")


class StopError(BaseException):
    pass


def _stop(*_):
    raise StopError


def _asked(source, plan, **options) -> RunRequest:
    options = options or {"audit": CANARIES}
    return RunRequest(source=source, plan=plan, settings=_settings(None), options=options)


def _settings(run):
    from sfumato.experiment.settings import Settings

    seed = None if run is not None else 4
    return Settings(model="linear", learning_rate=0.1, seed=seed)
