"""The order of things in a run's steps, seen from inside: what is recorded, drawn, added and kept, and when."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import Noise, PrivacyPlan, RunKey, SfumatoError, open_source, train
from sfumato.privacy import Ledger, ledger
from sfumato.randomness import NoiseState, Sampler
from sfumato.runs import releases, verify
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.conclusion.finish import conclude
from sfumato.training.preparation import resume
from sfumato.training.preparation.from_record import finish_early
from sfumato.training.run import take_remaining_steps
from tests.killed import killed

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
    load = RunKey.load.__func__
    monkeypatch.setattr(RunKey, "load", classmethod(lambda cls, path: keys.append(load(cls, path)) or keys[-1]))
    run = train("linear", spots, plan, directory=tmp_path / "run", **PLAIN)
    assert len(descended) == plan.steps
    zeros = {name: torch.zeros_like(value) for name, value in descended[2].items()}
    noise = Noise(plan.mechanism, max_norm=1.0, key=keys[-1]).add(zeros, 2)
    for name, value in descended[2].items():
        assert torch.equal(value, noise[name] / 20)
    releases = [entry.body["step"] for entry in ledger.read(run.directory / "ledger.jsonl") if entry.kind == "release"]
    assert releases == list(range(plan.steps))


def test_without_a_ledger_no_step_is_taken_and_nothing_is_concluded(stopped):
    path, job = stopped()
    with pytest.raises(TypeError, match="a private run needs a ledger"):
        take_remaining_steps(job, RunDirectory(path), None)
    with pytest.raises(TypeError, match="cannot be concluded without a ledger"):
        conclude(job, RunDirectory(path), None, loop.Outcome(step=0, weights={}))
    assert not (path / "model.safetensors").exists()


@pytest.fixture
def stopped(spots, plan, tmp_path, monkeypatch):
    """A function that begins a run, stops it in its first step, and returns its directory and its job."""

    def stopped(model="linear"):
        jobs, begin = [], resume.begin
        with killed(loop, "descend") as patch:
            patch.setattr(resume, "begin", lambda job, *given: (jobs.append(job), begin(job, *given))[1])
            train(model, spots, plan, directory=tmp_path / "run", **PLAIN)
        return tmp_path / "run", jobs[0]

    return stopped


@pytest.mark.parametrize("part", ["data", "settings", "transform", "performance", "circumstances"])
def test_a_run_goes_on_only_where_each_part_of_its_record_is_what_it_was(stopped, part):
    path, job = stopped()
    whole = json.loads((path / "settings.json").read_text())
    lacking = {name: value for name, value in whole.items() if name != part}
    for record, words in (
        (whole | {part: {**whole[part], "function": "another"}}, f"differs in its {part}: function was another"),
        (lacking, f"lacks {part}"),
    ):
        (path / "settings.json").write_text(json.dumps(record))
        with pytest.raises(SfumatoError, match=words):
            resume.compare(job, RunDirectory(path))


def test_a_run_goes_on_with_no_other_data_though_its_settings_say_so(stopped, arrays, plan, tmp_path):
    """The sums of both would get the same noise, and their difference would have none."""
    run, job = stopped()
    content = dict(np.load(arrays.removeprefix("npz:")))
    content["x_train"] = content["x_train"][:, ::-1]
    np.savez(tmp_path / "other.npz", **content)
    other = open_source(f"npz:{tmp_path / 'other.npz'}", owner_key=bytes(32))
    assert (len(other.train), other.shape) == (len(job.source.train), job.source.shape)
    with pytest.raises(SfumatoError, match="differs in its data"):
        train("linear", other, plan, directory=run, **PLAIN)
    record = json.loads((run / "settings.json").read_text())
    record["data"] = replace(job, source=other).record(record["run"])["data"]
    (run / "settings.json").write_text(json.dumps(record))
    with pytest.raises(SfumatoError, match="does not match this run, in: data commitment"):
        train("linear", other, plan, directory=run, **PLAIN)


class Doubling(nn.Module):
    """What it computes in training is a multiple of what it computes in evaluation."""

    def __init__(self, factor):
        super().__init__()
        self.layer, self.factor = nn.Linear(64, 4), factor

    def forward(self, x):
        return self.layer(x.flatten(1)) * (self.factor if self.training else 1)


def test_a_model_that_is_another_in_training_releases_no_paid_step_a_second_time(stopped, spots, plan):
    model = Doubling(2)
    run, _ = stopped(model)
    other = Doubling(3)
    other.load_state_dict(model.state_dict())
    train(other, spots, plan, directory=run, **PLAIN)
    lines = ledger.read(run / "ledger.jsonl")
    assert [dict(one.body) for one in lines if one.kind == "lost"] == [{"first": 0, "last": 0}]
    assert json.loads((run / "statement.json").read_text())["circumstances"]["steps_lost"] == 1
    assert verify(run).holds


def test_a_model_of_other_shapes_is_refused(stopped, spots, plan):
    run, _ = stopped(Doubling(2))
    before = [one.line() for one in ledger.read(run / "ledger.jsonl") if one.kind != "opening"]
    with pytest.raises(SfumatoError, match=r"does not fit the model or the optimizer: .*layer"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), spots, plan, directory=run, **PLAIN)
    assert [one.line() for one in ledger.read(run / "ledger.jsonl") if one.kind != "opening"] == before


def test_the_ledger_begins_with_all_that_the_sums_depend_on(stopped):
    run, job = stopped()
    began = ledger.read(run / "ledger.jsonl")[0].body
    identity = json.loads((run / "settings.json").read_text())["run"]
    opening = resume._opening(job, identity)
    assert {name: began[name] for name in opening} == opening
    source, settings = job.source, job.settings

    def differs_in(other):
        return [name for name in opening if other[name] != opening[name]]

    for part, change in [
        ("data_commitment", {"source": replace(source, fingerprint="0" * 64)}),
        ("settings_commitment", {"source": replace(source, features="0" * 64)}),
        ("settings_commitment", {"settings": replace(settings, learning_rate=0.25)}),
        ("settings_commitment", {"transform": replace(job.transform, mean=(0.25,))}),
        ("settings_commitment", {"budget": "faces"}),
    ]:
        assert differs_in(resume._opening(replace(job, **change), identity)) == [part], change
    assert differs_in(resume._opening(replace(job, plan=replace(job.plan, steps=6)), identity)) == [
        "plan",
        "plan_fingerprint",
    ]
    assert differs_in(resume._opening(job, "0" * 64)) == ["data_commitment", "settings_commitment"], "not to be linked"


def test_a_release_is_committed_to_before_it_is_used(spots, plan, tmp_path, monkeypatch):
    move, seen = loop.descend, []

    def moving(optimizer, trained, gradient):
        line = ledger.read(tmp_path / "run" / "ledger.jsonl")[-1].body
        seen.append((line["step"], line["release"] == releases.digest_of(gradient, NoiseState(step=0))))
        move(optimizer, trained, gradient)

    monkeypatch.setattr(loop, "descend", moving)
    train("linear", spots, plan, directory=tmp_path / "run", **PLAIN)
    assert seen == [(step, True) for step in range(plan.steps)]


def test_the_ledger_is_safe_on_disk_before_anything_that_rests_on_it(spots, plan, tmp_path, monkeypatch):
    """After a power cut a checkpoint must not know of steps that the ledger does not."""
    events: list[str] = []

    def watched(owner, name, event):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **more: (events.append(event), real(*given, **more))[1])

    watched(Ledger, "append", "append")
    watched(Checkpoint, "save", "checkpoint")
    watched(loop, "descend", "moved")
    real = os.fsync

    def fsync(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("ledger.jsonl"):
            events.append("sync")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    train("linear", spots, plan, directory=tmp_path / "run", **PLAIN)
    assert events.count("checkpoint") == 1 + plan.steps
    assert events.count("moved") == plan.steps
    for place, event in enumerate(events):
        if event in ("checkpoint", "moved"):
            before = [one for one in events[:place] if one in ("append", "sync")]
            assert before[-1] == "sync", f"{before[-3:]} before {event} at {place}"
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


def test_what_the_noise_remembers_goes_from_step_to_step_and_through_a_checkpoint(spots, plan, tmp_path, monkeypatch):
    ahead, told = Noise.prepare, []

    def coming(self, like, step, state, share):
        told.append((step, {name: value.tolist() for name, value in state.tensors.items()}))
        found = ahead(self, like, step, replace(state, tensors={}))
        return replace(found, next_state=replace(found.next_state, tensors={"carried": torch.tensor([float(step)])}))

    monkeypatch.setattr(Noise, "prepare", coming)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed(loop, "descend", call=3):
        train("linear", spots, plan, directory=tmp_path / "run", **PLAIN)
    train("linear", spots, plan, directory=tmp_path / "run", **PLAIN)
    carried = [(0, {}), *[(step, {"carried": [step - 1]}) for step in range(1, plan.steps)]]
    assert told == carried[:3] + carried[2:]


@pytest.mark.parametrize("wrong", [{"step": 1}, {"plan": "0" * 64}, {"more": 1}])
def test_a_ledger_of_other_releases_is_refused_though_its_chain_holds(stopped, spots, plan, wrong):
    run, _ = stopped()
    entries = ledger.read(run / "ledger.jsonl")
    (run / "ledger.jsonl").unlink()
    with Ledger(run / "ledger.jsonl") as written:
        for entry in entries:
            written.append(entry.kind, {**entry.body, **(wrong if entry.kind == "release" else {})})
    place = f"line 2 of the ledger, release, cannot stand there with its {next(iter(wrong))}"
    with pytest.raises(SfumatoError, match=place):
        train("linear", spots, plan, directory=run, **PLAIN)


@pytest.mark.parametrize(("kind", "number"), [("release", 5), ("note", 1)])
def test_a_ledger_with_more_than_the_plan_s_steps_is_refused(stopped, spots, plan, kind, number):
    """Verify would refuse the run when all of it is spent."""
    run, _ = stopped()
    with Ledger(run / "ledger.jsonl") as written:
        for step in range(1, number + 1):
            written.append(kind, {"step": step, "plan": plan.fingerprint, "release": "0" * 64})
    with pytest.raises(SfumatoError, match=f"line {number + 2} of the ledger, {kind}, cannot stand there"):
        train("linear", spots, plan, directory=run, **PLAIN)


def test_a_run_is_not_ended_under_other_circumstances(stopped):
    """The statement would leave out what it must say, and the ledger knows nothing of it."""
    run, job = stopped()
    said = replace(job, circumstances=replace(job.circumstances, test_public=True))
    with pytest.raises(SfumatoError, match="differs in its circumstances: test_public was False and is True"):
        finish_early(said, RunDirectory(run))
    assert (run / "dice.key").exists()
