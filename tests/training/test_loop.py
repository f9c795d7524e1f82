"""The order of things in a run's steps, seen from inside: what is recorded, drawn, added and kept, and when."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import DiceKey, Noise, PrivacyPlan, train
from sfumato.privacy import Ledger, ledger
from sfumato.randomness import Sampler
from sfumato.runs.checkpoint import Checkpoint
from sfumato.training import loop
from sfumato.training.step import PrivateStep

PLAIN = {"learning_rate": 0.5, "averaging": None, "threads": 1, "seed": 3, "device": "cpu"}


@pytest.fixture
def plan() -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=200, batch_size=20, steps=5, noise_multiplier=8.0, delta=1e-3)


def test_an_empty_batch_is_a_step_like_any_other(spots, plan, tmp_path, monkeypatch):
    """It is recorded, it gets the noise of its step, and the model moves by it."""
    draw, descended = Sampler.draw, []
    monkeypatch.setattr(Sampler, "draw", lambda self, step: draw(self, step)[: 0 if step == 2 else None])
    descend = loop.descend
    monkeypatch.setattr(loop, "descend", lambda *given: (descended.append(given[2]), descend(*given)))
    keys = []
    load = DiceKey.load.__func__
    monkeypatch.setattr(DiceKey, "load", classmethod(lambda cls, path: keys.append(load(cls, path)) or keys[-1]))
    run = train("linear", spots, plan, directory=tmp_path / "run", **PLAIN)
    assert len(descended) == plan.steps
    zeros = {name: torch.zeros_like(value) for name, value in descended[2].items()}
    noise = Noise(plan.mechanism, sensitivity=1.0, key=keys[-1]).add(zeros, 2)
    for name, value in descended[2].items():
        assert torch.equal(value, noise[name] / 20)
    releases = [entry.body["step"] for entry in ledger.read(run.directory / "ledger.jsonl") if entry.kind == "release"]
    assert releases == list(range(plan.steps))


def test_a_release_is_recorded_before_it_is_computed(spots, plan, tmp_path, monkeypatch):
    compute, seen = PrivateStep.__call__, []

    def computing(self, step, micro_batches, state):
        seen.append((step, ledger.read(tmp_path / "run" / "ledger.jsonl")[-1].body.get("step")))
        return compute(self, step, micro_batches, state)

    monkeypatch.setattr(PrivateStep, "__call__", computing)
    train("linear", spots, plan, directory=tmp_path / "run", **PLAIN)
    assert seen == [(step, step) for step in range(plan.steps)]


def test_the_ledger_is_safe_on_disk_before_anything_that_rests_on_it(spots, plan, tmp_path, monkeypatch):
    """After a power cut a checkpoint must not know of steps that the ledger does not."""
    events: list[str] = []

    def watched(owner, name, event):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **more: (events.append(event), real(*given, **more))[1])

    watched(Ledger, "append", "append")
    watched(Checkpoint, "save", "checkpoint")
    real = os.fsync

    def fsync(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("ledger.jsonl"):
            events.append("sync")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    train("linear", spots, plan, directory=tmp_path / "run", **PLAIN)
    assert events.count("checkpoint") == 1 + plan.steps
    for place, event in enumerate(events):
        if event == "checkpoint":
            before = events[:place]
            assert before[-1] == "sync", f"{before[-3:]} before checkpoint {place}"
    assert events[-2:] == ["append", "sync"], "the end"


def test_records_take_part_with_the_declared_probability(spots, tmp_path, monkeypatch):
    """q is batch size over the declared N, whatever number of records there really is."""
    declared = replace(spots, examples=2000)
    plan = PrivacyPlan.calibrate(examples=2000, batch_size=500, steps=60, noise_multiplier=8.0, delta=1e-5)
    draw, sizes = Sampler.draw, []
    monkeypatch.setattr(Sampler, "draw", lambda self, step: (sizes.append(draw(self, step)), sizes[-1])[1])
    train("linear", declared, plan, directory=tmp_path / "run", **PLAIN)
    drawn = np.array([len(participants) for participants in sizes])
    trials = len(spots.train) * plan.steps
    assert abs(drawn.sum() - 0.25 * trials) < 5.5 * (trials * 0.25 * 0.75) ** 0.5
    assert len(drawn) == plan.steps
