"""A run that is interrupted between any two steps goes on to the same bytes, whatever its state consists of."""

from functools import cache

import pytest

from sfumato import EMA, PrivacyPlan, optim, train
from sfumato._checks import SfumatoError
from sfumato.privacy import ledger
from sfumato.runs import verify
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import file_hash
from sfumato.training import loop
from sfumato.training.preparation import from_record
from sfumato.training.preparation.from_record import finish_early
from sfumato.training.step import PrivateStep

STEPS = 3
KINDS = {
    "momentum, averaged, views": {"model": "linear"},
    "adam, cosine": {"model": "linear", "optimizer": "adam", "learning_rate": 0.01, "schedule": "cosine", "warmup": 2},
    "lamb": {"model": "linear", "optimizer": "lamb", "learning_rate": 0.01, "averaging": EMA(0.5)},
    "small pieces": {"model": "linear", "micro_batch": 7, "views": 3},
    "half precision": {"model": "lenet-300-100", "precision": "bfloat16"},
    "features": {"model": "scattering", "views": 2, "shift": 0, "flip": True},
}


class StopError(BaseException):
    """Ends the process's work, as a kill would."""


@cache
def planned(batch_size: int) -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=200, batch_size=batch_size, steps=STEPS, noise_multiplier=8.0, delta=1e-3)


@pytest.fixture
def poisson() -> PrivacyPlan:
    return planned(20)


def begin(directory, source, plan, options, kind):
    return train(source=source, plan=plan, directory=directory, **{**options, **kind})


def stop_at(patch, place, step):
    """Stop before a step's ledger line, before its release, or before its checkpoint."""

    def stopping(original, number):
        def call(*given, **options):
            if number(*given) == step:
                raise StopError
            return original(*given, **options)

        return call

    if place == "ledger":
        which = stopping(loop.Ledger.append, lambda _, kind, body: body["step"] if kind == "release" else None)
        patch.setattr(loop.Ledger, "append", which)
    elif place == "release":
        patch.setattr(PrivateStep, "__call__", stopping(PrivateStep.__call__, lambda _, step, *__: step))
    elif place == "checkpoint":
        patch.setattr(Checkpoint, "save", stopping(Checkpoint.save, lambda self, _: self.step - 1))


@pytest.mark.parametrize(("batch", "name"), [*((20, name) for name in KINDS), (200, "small pieces")])
def test_interrupted_at_every_step_boundary(spots, options, batch, name, tmp_path, monkeypatch):
    """The run is stopped ahead of each step in turn; every attempt takes one step more."""
    plan, kind = planned(batch), KINDS[name]
    whole = begin(tmp_path / "whole", spots, plan, options, kind)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    for step in range(1, STEPS):
        with monkeypatch.context() as patch:
            stop_at(patch, "ledger", step)
            with pytest.raises(StopError):
                begin(tmp_path / "pieces", spots, plan, options, kind)
        assert Checkpoint.load(tmp_path / "pieces" / "checkpoint.safetensors").step == step
    pieces = begin(tmp_path / "pieces", spots, plan, options, kind)
    same(pieces.directory, whole.directory)
    assert pieces.accuracy == whole.accuracy


@pytest.mark.parametrize("place", ["ledger", "release", "checkpoint"])
@pytest.mark.parametrize("checkpoint_seconds", [-1.0, 1e9])
def test_interrupted_at_any_place_within_a_step(
    spots, options, poisson, place, checkpoint_seconds, tmp_path, monkeypatch
):
    """Also without a checkpoint since the beginning: then all steps are replayed, and none is paid again."""
    kind = KINDS["momentum, averaged, views"]
    whole = begin(tmp_path / "whole", spots, poisson, options, kind)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", checkpoint_seconds)
    for step in (STEPS - 2, STEPS - 1):
        if place == "checkpoint" and checkpoint_seconds > 0:
            step = STEPS - 1
        with monkeypatch.context() as patch:
            stop_at(patch, place, step)
            with pytest.raises(StopError):
                begin(tmp_path / "pieces", spots, poisson, options, kind)
    same(begin(tmp_path / "pieces", spots, poisson, options, kind).directory, whole.directory)


def test_another_key_gives_other_bytes(spots, options, poisson, tmp_path):
    """What the comparison of bytes is worth: without the same randomness they differ."""
    kind = KINDS["momentum, averaged, views"]
    one = begin(tmp_path / "one", spots, poisson, {**options, "seed": None}, kind)
    two = begin(tmp_path / "two", spots, poisson, {**options, "seed": None}, kind)
    with pytest.raises(AssertionError):
        same(one.directory, two.directory)


def same(one, two):
    for name in ("model.safetensors", "metrics.jsonl"):  # by hash: pytest would spend minutes on a diff of bytes
        assert file_hash(one / name) == file_hash(two / name), name
    kinds = [entry.kind for entry in ledger.read(one / "ledger.jsonl")]
    assert kinds == ["begin", *["release"] * STEPS, "end"]
    assert verify(one).holds


@pytest.mark.parametrize("name", ["always_adapt", "weight_decay", "betas"])
def test_a_run_does_not_go_on_with_other_constants_of_its_optimizer(
    arrays, options, poisson, name, tmp_path, monkeypatch, killed_at
):
    """As a run of `lamb` would that began while the ratio of norms was left out. Both versions would release the same
    noise on other gradients, whose difference has none."""
    place, kind = tmp_path / "run", KINDS["lamb"]
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with monkeypatch.context() as patch:
        earlier = {"always_adapt": False, "weight_decay": 0.5, "betas": (0.9, 0.98)}[name]
        patch.setattr(optim, "create", with_constants(optim.create, {name: earlier}))
        with killed_at(2):
            begin(place, arrays, poisson, options, kind)
    lines = (place / "ledger.jsonl").read_bytes()
    with pytest.raises(SfumatoError, match=rf"differs in its optimizer: group 0 {name} was .* and is ") as refused:
        begin(place, arrays, poisson, options, kind)
    assert "end the run at its checkpoint (sfumato finish), or start another run" in refused.value.remedy
    assert (place / "ledger.jsonl").read_bytes() == lines
    ended = finish_early(*from_record.job_from_record(place, trust_code=False))
    assert ended.steps == 1


def with_constants(create, constants):
    """`optim.create` of a version in which the names stand for others."""

    def earlier(*given, **choices):
        optimizer = create(*given, **choices)
        for group in optimizer.param_groups:
            group.update(constants)
        return optimizer

    return earlier
