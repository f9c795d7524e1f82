"""Weights that a run keeps beside its model: which, bound to what, after a kill too."""

import json
from dataclasses import replace

import pytest
import torch

from sfumato import PrivacyPlan, load, open_source, train, verify
from sfumato.experiment.settings import Settings
from sfumato.privacy import Ledger
from sfumato.privacy import ledger as ledgers
from sfumato.privacy.planning.by_name import request_by_names
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import (
    METADATA,
    hashes_of_kept,
    kept_files,
    kept_path,
    load_kept,
    read_safetensors,
    recorded_hashes,
    save_kept,
)
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.conclusion import releases
from sfumato.training.preparation.from_record import finish_early
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.start import Start
from tests.killed import killed

SETTINGS = Settings(model="linear", learning_rate=0.5, optimizer="sgd", momentum=0.0, ema=0.0, seed=3)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_source("digits", owner_key=bytes(32), public=True)


@pytest.fixture
def plan(source) -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=source.examples, batch_size=32, steps=12, noise_multiplier=4.0, delta=1e-5)


def trained(source, plan, place, **others):
    settings = others.pop("settings", SETTINGS)
    return train(None, source, plan, directory=place, settings=settings, threads=1, device="cpu", **others)


def bytes_of(place) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((place / "kept").iterdir())}


def test_they_are_the_weights_after_their_steps_and_the_record_names_them(source, plan, tmp_path):
    run = trained(source, plan, tmp_path / "run", keep=6, settings=replace(SETTINGS, seed=None))
    directory = RunDirectory(tmp_path / "run")
    end = ledgers.read(directory / names.LEDGER)[-1].body
    steps = tuple(recorded_hashes(end))
    assert steps == run.statement.circumstances.kept == (6, 7, 8, 10, 11, 12)
    last = load_kept(directory, 12, recorded_hashes(end)[12])
    model, _ = read_safetensors(directory / names.MODEL)
    assert last.keys() == model.keys()
    assert all(torch.equal(last[name], model[name]) for name in last), "without an average these are the model's"
    shorter = trained(source, replace(plan, steps=10), tmp_path / "shorter", keep=0)
    assert not (tmp_path / "shorter" / "kept").exists()
    assert shorter.statement.circumstances.kept == ()
    assert verify(tmp_path / "run").holds
    kept = len(run.statement.circumstances.kept)
    assert f"The {kept} saved checkpoints are covered too" in " ".join(run.statement.plain)
    assert load(tmp_path / "run").classes == source.classes


def test_by_rule_small_models_keep_twenty(source, plan, tmp_path):
    run = trained(source, replace(plan, steps=30), tmp_path / "run")
    assert len(run.statement.circumstances.kept) == 20


def test_after_a_kill_they_are_the_same_bytes(source, plan, tmp_path, killed_at):
    trained(source, plan, tmp_path / "whole", keep=8)

    with killed_at(9):
        trained(source, plan, tmp_path / "killed", keep=8)
    assert (tmp_path / "killed" / "kept" / "step-00000008.safetensors").exists()
    trained(source, plan, tmp_path / "killed", keep=8)
    assert bytes_of(tmp_path / "killed") == bytes_of(tmp_path / "whole")
    assert verify(tmp_path / "killed").holds


def test_a_run_that_is_ended_early_keeps_none_of_later_steps(source, plan, tmp_path):
    """Its last checkpoint is the one before the first step; what was kept after it belongs to no recorded end."""

    with killed(loop, "weights_to_release"):
        trained(source, plan, tmp_path / "run", keep=12)
    run = RunDirectory(tmp_path / "run")
    assert kept_files(run)
    job = prepare(None, source, plan, SETTINGS, Start.for_run(run), keep=12)
    ended = finish_early(job, run)
    assert all(step <= ended.steps for step in kept_files(run))
    assert ended.statement.circumstances.kept == tuple(kept_files(run))
    assert verify(tmp_path / "run").holds


def test_what_lies_among_them_and_is_not_the_run_s_own_is_not_bound(source, plan, tmp_path, killed_at):
    with killed_at(12):
        trained(source, plan, tmp_path / "run", keep=4)
    run = RunDirectory(tmp_path / "run")
    kept_path(run, 3).write_bytes(kept_path(run, 6).read_bytes())
    trained(source, plan, tmp_path / "run", keep=4)
    assert tuple(kept_files(run)) == (6, 8, 11, 12)
    assert verify(run.path).holds


def test_another_keep_is_another_run(source, plan, tmp_path, killed_at):
    with killed_at(1):
        trained(source, plan, tmp_path / "run", keep=4)
    with pytest.raises(Exception, match="differs in its circumstances"):
        trained(source, plan, tmp_path / "run", keep=6)


@pytest.mark.parametrize("damage", ["other bytes", "another step", "no longer told"])
def test_verify_looks_at_them(source, plan, tmp_path, damage):
    trained(source, plan, tmp_path / "run", keep=4)
    run = RunDirectory(tmp_path / "run")
    if damage == "other bytes":
        path = kept_path(run, 12)
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    elif damage == "another step":
        kept_path(run, 12).rename(kept_path(run, 3))
    else:
        written = json.loads((run / names.STATEMENT).read_text())
        del written["circumstances"]["kept"]
        (run / names.STATEMENT).write_text(json.dumps(written))
    assert not verify(run.path).holds


def test_the_ledger_is_safe_on_disk_before_weights_are_kept(source, plan, tmp_path, monkeypatch):
    """Whatever lies there was paid for."""
    saved, synced = [], []
    sync, save = Ledger.sync, save_kept
    monkeypatch.setattr(Ledger, "sync", lambda self: (synced.append(len(self.entries) - 1), sync(self))[1])
    monkeypatch.setattr(
        loop, "save_kept", lambda run, step, weights: (saved.append((step, synced[-1])), save(run, step, weights))[1]
    )
    trained(source, plan, tmp_path / "run", keep=4)
    assert [step for step, _ in saved] == [6, 8, 11, 12]
    assert all(paid >= step for step, paid in saved)


@pytest.mark.parametrize("mechanism", ["gaussian", "banded"])
def test_they_are_the_trained_parameters_and_nothing_else(source, tmp_path, monkeypatch, mechanism):
    """Neither the average that is released, nor what the noise and the optimizer remember: with the noise's memory
    whoever has these files could take noise out of later steps."""
    pair = request_by_names(examples=source.examples, mechanism=mechanism, participation="full-batch", momentum=0.9)
    plan = PrivacyPlan.calibrate(examples=source.examples, steps=6, epsilon=8.0, delta=1e-5, **pair._asdict())
    moved, descend = [], loop.descend

    def moving(optimizer, parameters, gradient):
        descend(optimizer, parameters, gradient)
        moved.append({name: value.detach().clone() for name, value in parameters.items()})

    monkeypatch.setattr(loop, "descend", moving)
    settings = replace(SETTINGS, optimizer="momentum", momentum=0.9, ema=0.9)
    train(None, source, plan, directory=tmp_path / "run", settings=settings, threads=1, device="cpu", keep=4)
    for step, path in kept_files(RunDirectory(tmp_path / "run")).items():
        tensors, metadata = read_safetensors(path)
        assert tensors.keys() == moved[step - 1].keys()
        assert all(torch.equal(value, moved[step - 1][name]) for name, value in tensors.items())
        assert json.loads(metadata.pop(METADATA)) == {"step": step}
        assert not metadata


def test_verify_compares_the_steps_of_statement_and_ledger(source, plan, tmp_path, monkeypatch):
    hashes = hashes_of_kept
    monkeypatch.setattr(releases, "hashes_of_kept", lambda run, steps: hashes(run, sorted(steps)[:-1]))
    trained(source, plan, tmp_path / "run", keep=4)
    kept_path(RunDirectory(tmp_path / "run"), 12).unlink()
    assert "the statement names steps 6, 8, 11, 12, the ledger 6, 8, 11" in verify(tmp_path / "run").line


@pytest.mark.parametrize("keep", [-1, 2.5, True])
def test_what_is_no_number_is_refused(source, plan, tmp_path, keep):
    with pytest.raises(Exception, match="keep must be"):
        trained(source, plan, tmp_path / "run", keep=keep)
