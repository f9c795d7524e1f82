"""Canary users in the rounds of a training of embeddings: what they add, what they leave alone, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sfumato import RunKey, SfumatoError, verify
from sfumato.embedding import EmbeddingExperiment
from sfumato.embedding.run import begin, job_of
from sfumato.embedding.steps import EmbeddingSteps
from sfumato.observers.progress import NoProgress
from sfumato.randomness import NoiseState, Sampler
from sfumato.runs import audit_outcomes
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.parts.canary_audits import Directions
from sfumato.training.preparation.start import Start
from sfumato.training.workers import Workers

CANARIES, USERS = 40, 12
ALONE = {
    "steps": 2,
    "batch_size": 6,
    "clients": 2,
    "noise_multiplier": 2.0,
    "max_norm": 0.5,
    "delta": 1e-3,
    "model": "linear",
    "dimension": 8,
}


def job(source, audit: int | None = CANARIES, **further):
    asked = EmbeddingExperiment(**{**ALONE, "seed": 1, **further})
    return job_of(asked, source, start=Start(device="cpu", threads=1), audit=audit)[0]


def run_of(source, place, **further):
    asked = EmbeddingExperiment(**{**ALONE, "seed": 1, **further})
    how = {"device": "cpu", "threads": 1, "progress": NoProgress(), "audit": CANARIES}
    return begin(asked, source, RunDirectory(place), **how)


def flat(tensors) -> torch.Tensor:
    return torch.cat([value.double().flatten() for value in tensors.values()])


@pytest.mark.parametrize("further", [{}, {"noise": "secure"}, {"quantile": 0.5}, {"method": "fedavg"}], ids=str)
def test_a_round_s_sum_moves_by_exactly_what_the_canaries_add(source, further):
    with_them = job(source, **further)
    without = replace(with_them, parts=())
    key, m = RunKey.from_seed(2), with_them.clients.count
    part = next(one for one in with_them.parts if isinstance(one, Directions))
    sums = [
        {name: value.double() * m for name, value in EmbeddingSteps(one, key)(0, NoiseState(step=0))[0].items()}
        for one in (with_them, without)
    ]
    added = part.added_constant(key)(0)
    assert flat(added).norm() > 1
    for name, value in sums[0].items():
        expected = added.get(name, torch.zeros(value.shape)).double() * with_them.plan.max_norm
        torch.testing.assert_close(value - sums[1][name], expected, rtol=0, atol=1e-5)
    assert all(name.startswith(part.prefix) for name in added), "the head is not released"


def test_real_users_are_drawn_as_they_were_and_the_promise_stays(source):
    jobs = job(source), job(source, None)
    assert jobs[0].plan == jobs[1].plan
    key = RunKey.from_seed(2)
    drawn = [EmbeddingSteps(one, key)._sampler.draw(1).tolist() for one in jobs]
    assert drawn[0] == drawn[1] == Sampler(jobs[0].plan, key, records=USERS).draw(1).tolist()
    assert jobs[0].circumstances.audit_directions
    assert jobs[1].circumstances.audit == 0
    assert jobs[0].key.uint64_words("noise", 0).tolist() != jobs[1].key.uint64_words("noise", 0).tolist(), (
        "other sums, other noise"
    )


def test_of_several_workers_the_leader_adds_them(source):
    whole, key = job(source), RunKey.from_seed(2)
    step = EmbeddingSteps(whole, key)._step
    zeros = whole.gradient.zeros()
    sums = [replace(step, workers=Workers(rank=rank, count=2))._empty_sum(zeros, 0, 1.0).value() for rank in (0, 1)]
    assert flat(sums[0]).norm() > 1
    assert not flat(sums[1]).any()


@pytest.mark.parametrize("method", ["fedavg", "dpsgd"])
def test_what_a_run_shows_is_written_down_and_verified(source, tmp_path, method):
    few = {"clients": None} if method == "dpsgd" else {}
    run = run_of(source, tmp_path / "run", method=method, seed=None, **few)
    found = audit_outcomes.read(RunDirectory(run.directory))
    assert len(found.details["scores"]) == CANARIES
    assert found.details["dimensions"] == 8 * 64 + 8
    assert any(f"each of {CANARIES} canaries (random directions" in line for line in run.statement.plain)
    assert verify(run.directory).holds
    assert "Canaries within the run" in (run.directory / "report.html").read_text()


class StopError(Exception):
    """In place of a kill."""


def test_a_resumed_run_has_its_canaries_again_and_ends_with_the_same_bytes(source, tmp_path, monkeypatch):
    whole = run_of(source, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", lambda *given: (_ for _ in ()).throw(StopError()))
        with pytest.raises(StopError):
            run_of(source, tmp_path / "killed")
    asked = EmbeddingExperiment(**ALONE, seed=1)
    with pytest.raises(SfumatoError, match="audit"):
        begin(asked, source, RunDirectory(tmp_path / "killed"), device="cpu", threads=1, progress=NoProgress())
    run_of(source, tmp_path / "killed")
    for name in (names.AUDIT, names.MODEL):
        assert (tmp_path / "killed" / name).read_bytes() == (whole.directory / name).read_bytes()


def test_canary_users_catch_noise_that_is_far_too_small(source, tmp_path, monkeypatch):
    from sfumato import Noise

    known = {"batch_size": USERS, "participation": "full-batch", "noise_multiplier": 8.0}
    right = run_of(source, tmp_path / "right", **known)
    assert not audit_outcomes.read(RunDirectory(right.directory)).refuted
    deviation = Noise.standard_deviation.fget
    monkeypatch.setattr(Noise, "standard_deviation", property(lambda noise: 0.05 * deviation(noise)))
    found = audit_outcomes.read(RunDirectory(run_of(source, tmp_path / "wrong", **known).directory))
    assert found.refuted or found.doubtful
    assert found.bounds[2].epsilon > found.nominal


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ({"audit": 5}, "at least 10 canaries, got 5"),
        ({"method": "whiten"}, "method whiten has no steps that canary users could be in"),
        ({"method": "central"}, "method central has no steps"),
        ({"participation": "fixed-order"}, "fixed-order participation"),
        ({"audit": 600}, "only 520 weights are trained and released"),
    ],
)
def test_what_shows_nothing_is_refused(source, further, words):
    kept = {"method", "participation", "audit"} & further.keys()
    own = {name: further[name] for name in kept}
    asked = {**ALONE, "epsilon": None} if own.get("method") not in ("whiten", "central") else {"dimension": 8}
    audit = own.pop("audit", CANARIES)
    source = replace(source, public=True)
    with pytest.raises(SfumatoError, match=words) as refused:
        job_of(EmbeddingExperiment(**{**asked, **own}), source, audit=audit)
    assert "\n" not in str(refused.value)
