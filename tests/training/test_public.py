"""Training without privacy: refused on private data, resumed to the bit, and the start of private fine-tuning."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import EMA, load, pretrain, train
from sfumato._checks import SfumatoError
from sfumato.randomness import DiceKey
from sfumato.training import Settings, public, verify
from sfumato.training.directory import RunDirectory
from sfumato.training.prepare import origins_of
from sfumato.training.run import recorded_key, recorded_performance

SETTINGS = Settings(model="cnn", optimizer="momentum", learning_rate=0.05, shift=1, ema=0.9, seed=1)


@pytest.fixture(scope="module")
def shown(spots):
    """Public data; the same pictures as the private ones, but nobody knows."""
    return replace(spots, public=True, material="f" * 64)


@pytest.fixture
def training():
    return public.PublicTraining(settings=SETTINGS, steps=24, batch_size=50)


def job_for(source, training, place=None):
    run = RunDirectory(place) if place else None
    recorded = recorded_performance(run) if run and run.exists else None
    key = recorded_key(run) if run and run.exists else None
    return public.prepare(source, training, threads=1, recorded=recorded, key=key)


@pytest.fixture
def pretrained(shown, training, tmp_path):
    return public.execute(job_for(shown, training), tmp_path / "pre")


def test_it_learns_and_promises_nothing(pretrained):
    assert pretrained.accuracy > 0.9
    statement = json.loads((pretrained.directory / "statement.json").read_text())
    assert statement["epsilon"] is None
    assert "promises nothing" in statement["sentence"]
    assert load(pretrained.directory).statement == statement
    page = (pretrained.directory / "report.html").read_text()
    assert "promises nothing" in page
    assert not [word for word in ("sfumato verify", "Private training", "epsilon spent") if word in page]
    assert not (pretrained.directory / "ledger.jsonl").exists()
    with pytest.raises(SfumatoError, match="promises nothing; there is nothing to verify"):
        verify(pretrained.directory)


def test_private_data_are_refused(spots, training):
    with pytest.raises(SfumatoError, match="needs public data"):
        public.prepare(spots, training)


def test_a_killed_run_goes_on_to_the_same_bytes(shown, training, pretrained, tmp_path, monkeypatch):
    real, taken = public._descend, []

    def dies(job, optimizer, key, step):
        if step == 13:
            raise KeyboardInterrupt
        taken.append(step)
        return real(job, optimizer, key, step)

    monkeypatch.setattr(public, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(public, "_descend", dies)
    with pytest.raises(KeyboardInterrupt):
        public.execute(job_for(shown, training), tmp_path / "cut")
    monkeypatch.setattr(public, "_descend", real)
    again = public.execute(job_for(shown, training, tmp_path / "cut"), tmp_path / "cut")
    assert taken == list(range(13))
    for name in ("model.safetensors", "metrics.jsonl", "evaluation.json"):
        assert (again.directory / name).read_bytes() == (pretrained.directory / name).read_bytes()


def test_it_goes_on_only_as_what_it_was(shown, training, tmp_path, monkeypatch):
    monkeypatch.setattr(public, "_take_steps", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        public.execute(job_for(shown, training), tmp_path / "cut")
    with pytest.raises(SfumatoError, match="differs in its settings: steps was 24 and is 25"):
        public.execute(job_for(shown, replace(training, steps=25), tmp_path / "cut"), tmp_path / "cut")
    other = replace(job_for(shown, training, tmp_path / "cut"), origins=("private run",))
    words = "differs in its origin: of the initial weights was [] and is ['private run']"
    with pytest.raises(SfumatoError, match=words):
        public.execute(other, tmp_path / "cut")
    marked = job_for(replace(shown, filtered=True), training, tmp_path / "cut")
    with pytest.raises(SfumatoError, match="differs in its data: filtered was False and is True"):
        public.execute(marked, tmp_path / "cut")


def test_an_epoch_shows_every_example_once(shown, training):
    job = job_for(shown, training)
    key = DiceKey.from_seed(3)
    first = np.concatenate([public._batch(job, key, step) for step in range(4)])
    second = np.concatenate([public._batch(job, key, step) for step in range(4, 8)])
    assert sorted(first) == sorted(second) == list(range(200))
    assert first.tolist() != second.tolist()


def test_divergence_is_said(shown, training, tmp_path):
    wild = replace(training, settings=replace(SETTINGS, learning_rate=1e30))
    with pytest.raises(SfumatoError, match="training has diverged"):
        public.execute(job_for(shown, wild), tmp_path / "wild")


def test_the_same_from_one_call(shown, pretrained, tmp_path):
    options = {"steps": 24, "batch_size": 50, "learning_rate": 0.05, "shift": 1, "averaging": EMA(0.9), "seed": 1}
    run = pretrain("cnn", shown, directory=tmp_path / "one", threads=1, **options)
    for name in ("model.safetensors", "statement.json"):
        assert (run.directory / name).read_bytes() == (pretrained.directory / name).read_bytes()


@pytest.mark.parametrize("trainable", [(), ("classifier",), ("norm", "classifier")])
def test_private_fine_tuning_starts_from_its_averaged_weights(pretrained, spots, plan, tmp_path, trainable):
    choices = {"learning_rate": 1e-9, "averaging": None, "threads": 1}
    run = train(
        "cnn",
        spots,
        plan,
        directory=tmp_path / "fine",
        pretrained=str(pretrained.directory),
        trainable=trainable,
        **choices,
    )
    before, after = (load(place).module.state_dict() for place in (pretrained.directory, run.directory))
    for name, value in after.items():
        if name.startswith("head."):
            assert value.abs().max() < 1e-6
        elif trainable == ("classifier",):
            assert torch.equal(value, before[name])
        else:
            torch.testing.assert_close(value, before[name], atol=1e-5, rtol=0)
    assert run.statement.circumstances.origins == ("public run",)
    assert "from training without privacy" in run.statement.not_covered[0]


def test_weights_that_have_seen_the_private_records_are_refused(shown, spots, plan, tmp_path):
    choices = {"steps": 2, "batch_size": 50, "learning_rate": 0.1, "threads": 1}
    same = replace(shown, material=spots.material)
    first = pretrain("cnn", same, directory=tmp_path / "a", **choices)
    second = pretrain("cnn", shown, directory=tmp_path / "b", pretrained=str(first.directory), **choices)
    for weights in (first.directory, second.directory / "model.safetensors"):
        with pytest.raises(SfumatoError, match="trained without privacy on these very records"):
            train("cnn", spots, plan, directory=tmp_path / "c", pretrained=str(weights), learning_rate=0.1)
    train("cnn", same, plan, directory=tmp_path / "d", pretrained=str(first.directory), learning_rate=0.1, threads=1)
    with pytest.raises(SfumatoError, match="trained without privacy on these very records"):
        train("cnn", spots, plan, directory=tmp_path / "c", pretrained=str(tmp_path / "d"), learning_rate=0.1)
    assert not (tmp_path / "c").exists()


def test_a_model_of_one_s_own_behind_public_training_is_not_forgotten(spots, shown, plan, tmp_path):
    torch.manual_seed(0)
    own, choices = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), {"learning_rate": 0.1, "threads": 1}
    first = pretrain(own, shown, directory=tmp_path / "a", steps=2, batch_size=50, **choices)
    assert origins_of(str(first.directory)) == ("own model", "public run")


def test_a_private_run_behind_public_training_is_not_forgotten(spots, shown, plan, tmp_path):
    choices = {"learning_rate": 0.1, "threads": 1}
    first = train("cnn", spots, plan, directory=tmp_path / "a", **choices)
    second = pretrain(
        "cnn", shown, directory=tmp_path / "b", steps=2, batch_size=50, pretrained=str(first.directory), **choices
    )
    assert second.statement.to_dict()["origins"] == ["private run"]
    assert "A private run stands behind the weights" in second.statement.to_dict()["not_covered"][1]
    third = pretrain(
        "cnn", shown, directory=tmp_path / "c", steps=2, batch_size=50, pretrained=str(second.directory), **choices
    )
    last = train("cnn", spots, plan, directory=tmp_path / "d", pretrained=str(third.directory), **choices)
    assert last.statement.circumstances.origins == ("private run", "public run")
    assert "epsilons add up" in last.statement.not_covered[0]


def test_a_private_run_is_not_resumed_as_a_public_one(spots, shown, plan, training, tmp_path):
    train("cnn", spots, plan, directory=tmp_path / "a", learning_rate=0.1, threads=1)
    for name in ("done", "ledger.jsonl"):
        (tmp_path / "a" / name).unlink()
    with pytest.raises(SfumatoError, match="holds a private run"):
        public.execute(job_for(shown, training), tmp_path / "a")


def test_a_head_that_starts_at_zero_must_be_trained(pretrained, spots, plan, tmp_path):
    with pytest.raises(SfumatoError, match="trainable norm leaves the classifier out, which starts at zero"):
        train(
            "cnn",
            spots,
            plan,
            directory=tmp_path / "fine",
            learning_rate=1.0,
            pretrained=str(pretrained.directory),
            trainable=("norm",),
        )


def test_fine_tuning_keeps_the_pixels_that_the_weights_know(pretrained, spots, plan, tmp_path):
    about = load(pretrained.directory).transform
    run = train(
        "cnn", spots, plan, directory=tmp_path / "fine", learning_rate=1.0, pretrained=str(pretrained.directory)
    )
    assert load(run.directory).transform == about
