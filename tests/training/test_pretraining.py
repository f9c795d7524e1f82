"""Training without privacy: refused on private data, resumed to the bit, and the start of private fine-tuning."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import EMA, PrivacyPlan, load, open_source, owner_key, pretrain, train
from sfumato._checks import SfumatoError
from sfumato.experiment import Settings
from sfumato.models import METADATA, read_description
from sfumato.randomness import NoiseState, RunKey
from sfumato.runs import verify
from sfumato.runs.checkpoint import read_safetensors, to_bytes
from sfumato.runs.directory import RunDirectory
from sfumato.training import launch, loop, pretraining
from sfumato.training import run as running
from sfumato.training.job import PublicTraining
from sfumato.training.preparation import resume
from sfumato.training.preparation.building import origins, origins_of, pretraining_digests, transform_for
from sfumato.training.preparation.start import Start
from sfumato.training.steps import PublicSteps
from sfumato.training.workers import Workers

NETWORK = "lenet-300-100,norm=group"
SETTINGS = Settings(model=NETWORK, optimizer="momentum", learning_rate=0.05, shift=1, ema=0.9, seed=1)


@pytest.fixture(scope="module")
def shown(spots):
    """Public data; the same images as the private ones, but nobody knows."""
    train, test = (replace(part, codes=foreign(len(part))) for part in (spots.train, spots.test))
    return replace(spots, public=True, stored_digest="f" * 64, pixels="e" * 64, train=train, test=test)


def foreign(records: int) -> np.ndarray:
    """Codes of records that nobody has seen."""
    return np.random.default_rng(records).integers(256, size=(records, 32), dtype=np.uint8)


@pytest.fixture(scope="module")
def training():
    return PublicTraining(settings=SETTINGS, steps=24, batch_size=50)


def tuned(source, plan, place, **choices):
    return train(NETWORK, source, plan, directory=place, **choices)


def job_for(source, training, place=None):
    start = Start.for_run(RunDirectory(place), threads=1) if place else Start(threads=1)
    return pretraining.prepare(source, training, start=start)


@pytest.fixture(scope="module")
def finished(shown, training, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
        return running.execute(job_for(shown, training), RunDirectory(tmp_path_factory.mktemp("finished") / "pre"))


@pytest.fixture
def pretrained(finished, tmp_path):
    """A copy, to do things to."""
    return replace(finished, directory=Path(shutil.copytree(finished.directory, tmp_path / "pre")))


def test_it_learns_and_promises_nothing(pretrained):
    assert pretrained.accuracy > 0.9
    statement = json.loads((pretrained.directory / "statement.json").read_text())
    assert statement["epsilon"] is None
    assert "no privacy guarantee" in statement["sentence"]
    assert load(pretrained.directory).statement.to_dict() == statement
    page = (pretrained.directory / "report.html").read_text()
    assert "no privacy guarantee" in page
    assert not [word for word in ("sfumato verify", "Private training", "epsilon spent") if word in page]
    assert not (pretrained.directory / "ledger.jsonl").exists()
    with pytest.raises(SfumatoError, match="has no guarantee; there is nothing to verify"):
        verify(pretrained.directory)


def test_private_data_are_refused(spots, training):
    with pytest.raises(SfumatoError, match="needs public data"):
        pretraining.prepare(spots, training)


def test_a_killed_run_goes_on_to_the_same_bytes(shown, training, pretrained, tmp_path, monkeypatch):
    real, taken = PublicSteps.__call__, []

    def dies(self, step, state):
        if step == 13:
            raise KeyboardInterrupt
        taken.append(step)
        return real(self, step, state)

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(PublicSteps, "__call__", dies)
    with pytest.raises(KeyboardInterrupt):
        running.execute(job_for(shown, training), RunDirectory(tmp_path / "cut"))
    monkeypatch.setattr(PublicSteps, "__call__", real)
    again = running.execute(job_for(shown, training, tmp_path / "cut"), RunDirectory(tmp_path / "cut"))
    assert taken == list(range(13))
    for name in ("model.safetensors", "metrics.jsonl", "evaluation.json"):
        assert (again.directory / name).read_bytes() == (pretrained.directory / name).read_bytes()


def test_it_goes_on_only_as_what_it_was(shown, training, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "take_steps", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        running.execute(job_for(shown, training), RunDirectory(tmp_path / "cut"))
    with pytest.raises(SfumatoError, match="differs in its settings: steps was 24 and is 25"):
        running.execute(job_for(shown, replace(training, steps=25), tmp_path / "cut"), RunDirectory(tmp_path / "cut"))
    with pytest.raises(SfumatoError, match="differs in its settings: clipping norm was absent and is 1"):
        running.execute(
            job_for(shown, replace(training, max_norm=1.0), tmp_path / "cut"), RunDirectory(tmp_path / "cut")
        )
    other = replace(job_for(shown, training, tmp_path / "cut"), origins=("private run",))
    words = "differs in its origin: of the initial weights was [] and is ['private run']"
    with pytest.raises(SfumatoError, match=words):
        running.execute(other, RunDirectory(tmp_path / "cut"))
    marked = job_for(replace(shown, filtered=True), training, tmp_path / "cut")
    with pytest.raises(SfumatoError, match="differs in its data: filtered was False and is True"):
        running.execute(marked, RunDirectory(tmp_path / "cut"))


def test_it_goes_on_from_no_other_run_s_checkpoint(shown, training, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "take_steps", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    for name in ("one", "other"):
        with pytest.raises(KeyboardInterrupt):
            running.execute(job_for(shown, training), RunDirectory(tmp_path / name))
    monkeypatch.undo()
    (tmp_path / "other" / "checkpoint.safetensors").replace(tmp_path / "one" / "checkpoint.safetensors")
    with pytest.raises(SfumatoError, match="the checkpoint belongs to another run"):
        running.execute(job_for(shown, training, tmp_path / "one"), RunDirectory(tmp_path / "one"))


def test_an_epoch_shows_every_example_once(shown, training):
    job = job_for(shown, training)
    steps = PublicSteps(job, RunKey.from_seed(3))
    first = np.concatenate([steps.batch(step) for step in range(4)])
    second = np.concatenate([steps.batch(step) for step in range(4, 8)])
    assert sorted(first) == sorted(second) == list(range(200))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("max_norm", [None, 1e-3, 1e3])
def test_a_steps_mean_gradient_is_clipped_as_a_whole(shown, training, max_norm):
    def gradient(training):
        steps = PublicSteps(job_for(shown, training), RunKey.from_seed(0))
        found, _ = steps(0, NoiseState(step=0))
        return torch.cat([value.flatten() for value in found.values()]).double().numpy()

    plain, found = gradient(training), gradient(replace(training, max_norm=max_norm))
    norm = np.linalg.norm(plain)
    wanted = plain if max_norm is None else plain * min(1, max_norm / norm)
    assert 1e-3 < norm < 1e3
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-12)


def test_the_clipping_norm_is_recorded(shown, training, tmp_path):
    job = job_for(shown, replace(training, max_norm=0.5))
    record = job.record("")
    assert record["max_norm"] == 0.5
    assert PublicTraining.from_dict(record) == replace(training, max_norm=0.5)
    assert job_for(shown, training).record("")["max_norm"] is None
    run = running.execute(replace(job, steps=2), RunDirectory(tmp_path / "clipped"))
    assert "clipping norm" in (run.directory / "report.html").read_text()
    with pytest.raises(SfumatoError, match="max_norm must be positive, got 0"):
        replace(training, max_norm=0.0)


def test_adaptive_clipping_bounds_each_unit_except_the_classifier_s(shown, training):
    """Brock et al. 2021, equation 3: g_i <- r max(|w_i|, 1e-3) g_i / |g_i| where |g_i| is above that. And whole vectors
    of biases, in the authors' code."""
    network = replace(training, settings=replace(training.settings, model="cnn", head_deviation=0.1))

    def gradients(training):
        job = job_for(shown, training)
        found, _ = PublicSteps(job, RunKey.from_seed(0))(0, NoiseState(step=0))
        return dict(job.module.named_parameters()), {name: value.clone() for name, value in found.items()}

    def units(value):
        return value.detach().reshape(len(value) if value.dim() > 1 else 1, -1)

    weights, plain = gradients(network)
    ratios = {
        name: units(plain[name]).norm(dim=1) / units(weight).norm(dim=1).clamp_min(1e-3)
        for name, weight in weights.items()
    }
    middle = torch.cat([ratio for name, ratio in ratios.items() if not name.startswith("head.")]).median().item()
    _, clipped = gradients(replace(network, agc=middle))
    for name, ratio in ratios.items():
        factor = torch.ones_like(ratio) if name.startswith("head.") else (middle / ratio).clamp(max=1)
        torch.testing.assert_close(units(clipped[name]), units(plain[name]) * factor[:, None], rtol=1e-4, atol=1e-8)
    assert {name.partition(".")[0] for name in weights} > {"head"}


def test_adaptive_clipping_is_recorded_and_refused_where_it_does_nothing(shown, training):
    with pytest.raises(SfumatoError, match="agc must be positive, got 0"):
        replace(training, agc=0.0)
    with pytest.raises(SfumatoError, match=r"agc is 0\.01, but the classifier alone is trained"):
        PublicSteps(
            job_for(shown, replace(training, settings=replace(training.settings, model="linear"), agc=0.01)),
            RunKey.from_seed(0),
        )
    network = replace(training, settings=replace(training.settings, model="cnn"), agc=0.01)
    assert PublicTraining.from_dict(job_for(shown, network).record("")) == network
    assert job_for(shown, training).record("")["agc"] is None


def test_divergence_is_said(shown, training, tmp_path):
    wild = replace(training, settings=replace(SETTINGS, learning_rate=1e30))
    with pytest.raises(SfumatoError, match="training has diverged"):
        running.execute(job_for(shown, wild), RunDirectory(tmp_path / "wild"))


def test_the_same_from_one_call(shown, pretrained, tmp_path):
    options = {"steps": 24, "batch_size": 50, "learning_rate": 0.05, "shift": 1, "averaging": EMA(0.9), "seed": 1}
    run = pretrain(NETWORK, shown, directory=tmp_path / "one", threads=1, **options)
    for name in ("model.safetensors", "statement.json"):
        assert (run.directory / name).read_bytes() == (pretrained.directory / name).read_bytes()


@pytest.mark.parametrize("trainable", [(), ("classifier",)])
def test_private_fine_tuning_starts_from_its_averaged_weights(pretrained, spots, plan, tmp_path, trainable):
    choices = {"learning_rate": 1e-9, "averaging": None, "threads": 1}
    run = tuned(spots, plan, tmp_path / "fine", pretrained=str(pretrained.directory), trainable=trainable, **choices)
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


@pytest.fixture
def keyed(arrays):
    """The private records, with the owner's own codes."""
    return open_source(arrays, owner_key=owner_key())


def without_one(source):
    """All records but the first of those to train on."""
    rest = source.train.select(np.arange(len(source.train)) > 0)
    return replace(source, train=rest, examples=len(rest), stored_digest="0" * 64, pixels="1" * 64)


def test_weights_that_have_seen_the_private_records_are_refused(shown, keyed, plan, tmp_path):
    choices = {"steps": 2, "batch_size": 50, "learning_rate": 0.1, "threads": 1}
    same = replace(keyed, public=True)
    first = pretrain(NETWORK, same, directory=tmp_path / "a", **choices)
    second = pretrain(NETWORK, shown, directory=tmp_path / "b", pretrained=str(first.directory), **choices)
    tuned(same, plan, tmp_path / "d", pretrained=str(first.directory), learning_rate=0.1, threads=1)
    for weights in (first.directory, second.directory / "model.safetensors", tmp_path / "d"):
        with pytest.raises(SfumatoError, match="without privacy on 200 of these 240 private records"):
            tuned(keyed, plan, tmp_path / "c", pretrained=str(weights), learning_rate=0.1)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("seen", [1, 199])
def test_a_single_record_that_the_weights_have_seen_is_enough(shown, keyed, tmp_path, seen):
    """A set with one record more or less is another set, and its records are the same."""
    plan = PrivacyPlan.calibrate(examples=200, batch_size=50, steps=2, noise_multiplier=4.0, delta=1e-3)
    choices = {"steps": 2, "batch_size": 50, "learning_rate": 0.1, "threads": 1}
    codes = np.concatenate([keyed.train.codes[:seen], foreign(200 - seen)])
    public_set = replace(shown, train=replace(shown.train, codes=codes))
    weights = str(pretrain(NETWORK, public_set, directory=tmp_path / "a", **choices).directory)
    known = {"pretrained": weights, "learning_rate": 0.1, "threads": 1}
    with pytest.raises(SfumatoError, match=f"without privacy on {seen} of these 240 private records") as refused:
        tuned(keyed, plan, tmp_path / "c", **known)
    assert "sfumato dedup" in refused.value.remedy
    assert not (tmp_path / "c").exists()
    tested = replace(keyed, train=replace(keyed.train, codes=foreign(200)), test=keyed.train)
    with pytest.raises(SfumatoError, match=f"on {seen} of these 400 private records"):
        tuned(tested, plan, tmp_path / "d", **known)
    unseen = replace(keyed, train=replace(keyed.train, codes=foreign(200)))
    run = tuned(unseen, plan, tmp_path / "e", **known)
    assert run.statement.circumstances.origins == ("public run",)


def test_all_records_but_one_are_refused_where_the_list_is_there_and_told_of_where_it_is_not(
    keyed, home, tmp_path, heard
):
    plan = PrivacyPlan.calibrate(examples=199, batch_size=50, steps=2, noise_multiplier=4.0, delta=1e-3)
    choices = {"steps": 2, "batch_size": 50, "learning_rate": 0.1, "threads": 1}
    weights = str(pretrain(NETWORK, replace(keyed, public=True), directory=tmp_path / "a", **choices).directory)
    known = {"pretrained": weights, "learning_rate": 0.1, "threads": 1}
    with pytest.raises(SfumatoError, match="on 199 of these 239 private records"):
        tuned(without_one(keyed), plan, tmp_path / "b", **known)
    (listed,) = (home / "trained-on").glob("*.npy")
    assert listed.stat().st_mode & 0o777 == 0o600
    listed.write_bytes(b"")
    with pytest.raises(SfumatoError, match="is damaged"):
        tuned(without_one(keyed), plan, tmp_path / "b", **known)
    listed.unlink()
    tuned(without_one(keyed), plan, tmp_path / "b", progress=heard, **known)
    assert any("are not listed next to your key" in line for line in heard.lines)


def test_a_model_of_one_s_own_behind_public_training_is_not_forgotten(shown, tmp_path):
    torch.manual_seed(0)
    own, choices = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), {"learning_rate": 0.1, "threads": 1}
    first = pretrain(own, shown, directory=tmp_path / "a", steps=2, batch_size=50, **choices)
    assert origins_of(str(first.directory)) == ("own model", "public run")


def test_a_private_run_behind_public_training_is_not_forgotten(spots, shown, plan, tmp_path):
    choices = {"learning_rate": 0.1, "threads": 1}
    first = tuned(spots, plan, tmp_path / "a", **choices)
    second = pretrain(
        NETWORK, shown, directory=tmp_path / "b", steps=2, batch_size=50, pretrained=str(first.directory), **choices
    )
    assert second.statement.to_dict()["origins"] == ["private run"]
    assert "The initial weights. They come from another private run" in second.statement.to_dict()["not_covered"][1]
    third = pretrain(
        NETWORK, shown, directory=tmp_path / "c", steps=2, batch_size=50, pretrained=str(second.directory), **choices
    )
    last = tuned(spots, plan, tmp_path / "d", pretrained=str(third.directory), **choices)
    assert last.statement.circumstances.origins == ("private run", "public run")
    assert "epsilons add up" in last.statement.not_covered[0]


def test_a_private_run_is_not_resumed_as_a_public_one(spots, shown, plan, training, tmp_path):
    tuned(spots, plan, tmp_path / "a", learning_rate=0.1, threads=1)
    for name in ("done", "ledger.jsonl"):
        (tmp_path / "a" / name).unlink()
    with pytest.raises(SfumatoError, match="was made with train, not with pretrain"):
        running.execute(job_for(shown, training), RunDirectory(tmp_path / "a"))


def test_a_head_that_starts_at_zero_must_be_trained(pretrained, spots, plan, tmp_path):
    with pytest.raises(SfumatoError, match="trainable norm leaves out the classifier, whose weights start at zero"):
        tuned(
            spots, plan, tmp_path / "fine", learning_rate=1.0, pretrained=str(pretrained.directory), trainable=("norm",)
        )


def test_both_weights_are_written_and_each_file_says_which_it_holds(shown, training, pretrained, tmp_path):
    averaged, last = (pretrained.directory / name for name in ("model.safetensors", "model-last.safetensors"))
    assert [read_description(file)["weights"] for file in (averaged, last)] == ["ema", "last"]
    assert {**read_description(last), "weights": "ema"} == read_description(averaged), "and all else alike"
    plain = replace(training, settings=replace(SETTINGS, ema=0.0))
    alone = running.execute(job_for(shown, plain), RunDirectory(tmp_path / "plain")).directory
    assert not (alone / "model-last.safetensors").exists()
    assert read_description(alone / "model.safetensors")["weights"] == "last"
    before, after = (load(file).module.state_dict() for file in (last, alone))
    for name, value in after.items():
        assert torch.equal(value, before[name]), "the average changes nothing of what is averaged"
        assert not torch.equal(value, load(averaged).module.state_dict()[name])


@pytest.mark.parametrize(("which", "file"), [(None, "model"), ("last", "model-last")], ids=["default", "last"])
def test_private_fine_tuning_starts_from_the_weights_that_are_named(
    pretrained, spots, plan, tmp_path, which, file, monkeypatch
):
    """The run's other file is not even looked at."""
    copied = pretrained.directory
    other = {"model": "model-last", "model-last": "model"}[file]
    (copied / f"{other}.safetensors").write_bytes(b"")
    choices = {"learning_rate": 1e-9, "averaging": None, "threads": 1, "head": "pretrained", "seed": 1}
    run = tuned(spots, plan, tmp_path / "a", pretrained=str(copied), pretrained_weights=which, **choices)
    before, after = (load(one).module.state_dict() for one in (copied / f"{file}.safetensors", run.directory))
    for name, value in after.items():
        torch.testing.assert_close(value, before[name], atol=1e-5, rtol=0)
    assert run.statement.circumstances.origins == ("public run",)


def rewritten(place, **changes):
    """The file with something else said of it."""
    tensors, metadata = read_safetensors(place)
    about = {**json.loads(metadata[METADATA]), **changes}
    place.write_bytes(to_bytes(tensors, {METADATA: json.dumps(about)}))


def test_all_that_is_known_of_the_weights_is_read_from_the_file_that_is_used(pretrained, spots, plan, tmp_path):
    """What they were trained on, what stands behind them, the pixels that they expect."""
    copied = pretrained.directory
    last = copied / "model-last.safetensors"
    about = read_description(last)
    rewritten(
        last,
        trained_on=[spots.stored_digest],
        statement={**about["statement"], "origins": ["timm"]},
        transform={**about["transform"], "mean": [0.25]},
    )
    choices = {"learning_rate": 0.1, "threads": 1, "seed": 1, "pretrained": str(copied)}
    of_last = Settings(model=NETWORK, learning_rate=0.1, pretrained=str(copied), pretrained_weights="last")
    assert origins(spots, of_last) == ("public run", "timm")
    assert origins(spots, replace(of_last, pretrained_weights="ema")) == ("public run",)
    assert transform_for(nn.Identity(), spots, of_last).mean == (0.25,)
    assert transform_for(nn.Identity(), spots, replace(of_last, pretrained_weights=None)).mean == (0.5,)
    assert pretraining_digests(spots, of_last) == (spots.stored_digest,)
    tuned(spots, plan, tmp_path / "a", pretrained_weights="ema", **choices)
    with pytest.raises(SfumatoError, match="without privacy on"):
        tuned(spots, plan, tmp_path / "b", pretrained_weights="last", **choices)
    assert not (tmp_path / "b").exists()


def test_weights_that_are_not_there_are_refused(pretrained, spots, plan, tmp_path):
    copied = pretrained.directory
    (copied / "model-last.safetensors").unlink()
    for given, words in [
        ({"pretrained": str(copied)}, "pretrained_weights is last, and .* is no run directory with such weights"),
        ({"pretrained": str(copied / "model.safetensors")}, "is no run directory"),
        ({"pretrained": "timm"}, "pretrained_weights is last, but pretrained is timm"),
        ({}, "pretrained_weights is last, but pretrained is not given"),
    ]:
        with pytest.raises(SfumatoError, match=words):
            tuned(spots, plan, tmp_path / "a", pretrained_weights="last", learning_rate=0.1, **given)
    with pytest.raises(SfumatoError, match="pretrained_weights must be"):
        tuned(spots, plan, tmp_path / "a", pretrained=str(copied), pretrained_weights="first", learning_rate=0.1)
    assert not (tmp_path / "a").exists()


def test_batch_norm_is_trained_and_its_statistics_travel_with_the_weights(shown, tmp_path, monkeypatch):
    """Pieces of 49 would leave one of a single example, of which batch norm can make nothing."""
    monkeypatch.setattr(pretraining, "MICRO_BATCH", 49)
    model = "lenet-300-100,norm=batch"
    run = pretrain(
        model, shown, directory=tmp_path / "pre", steps=12, batch_size=50, learning_rate=0.1, averaging=None, threads=1
    )
    loaded = load(run.directory)
    assert loaded.module.norm1.running_mean.abs().max() > 0.1
    assert int(loaded.module.norm1.num_batches_tracked) == 2 * 12
    found = loaded.module(loaded.transform(shown.test.images)).argmax(1)
    assert (found.numpy() == shown.test.labels).mean() == run.accuracy > 0.9
    plan = PrivacyPlan.calibrate(examples=200, batch_size=50, steps=3, noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(SfumatoError, match="is batch norm that normalises by the private batch"):
        train(model, shown, plan, directory=tmp_path / "fine", pretrained=str(run.directory), learning_rate=0.1)


def test_several_processes_are_refused_a_model_that_follows_its_batches(shown, training, monkeypatch):
    monkeypatch.setattr(launch, "_own", Workers(rank=0, count=3))
    follows = replace(training, settings=replace(SETTINGS, model="lenet-300-100,norm=batch"))
    with pytest.raises(SfumatoError, match="has running batch statistics") as refused:
        job_for(shown, follows)
    assert "one process" in refused.value.remedy
    assert job_for(shown, training).performance.micro_batch == 17  # of 50, a third each


def test_the_micro_batch_is_as_given_else_as_recorded(shown, training, tmp_path):
    given = pretraining.prepare(shown, training, threads=1, micro_batch=20)
    assert given.performance.micro_batch == 20
    resume.begin(given, RunDirectory(tmp_path / "run"))
    assert job_for(shown, training, tmp_path / "run").performance.micro_batch == 20
    assert job_for(shown, training).performance.micro_batch == 50
