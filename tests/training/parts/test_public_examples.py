"""Runs that normalise by public examples: which they are, where statistics are taken, what the statement says."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import sfumato
from sfumato import PrivacyPlan, RunKey, SfumatoError, load, open_source, train, verify
from sfumato.data.subsets import MARK
from sfumato.experiment.settings import Settings
from sfumato.models import refresh
from sfumato.privacy import DriftingPoisson, FixedOrder, Gaussian, Poisson, TruncatedPoisson
from sfumato.randomness import owner_key
from sfumato.runs.checkpoint import read_safetensors
from sfumato.training import loop, steps
from sfumato.training.preparation import prepare
from sfumato.training.public_examples import PublicNormalisation
from sfumato.training.workers import ALONE

STEPS = 4


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A private set of 60 digits, and a public one of 90, of which the first 3 are private records too."""
    place = tmp_path_factory.mktemp("archives")
    digits = open_source("digits", owner_key=bytes(32), public=True)
    images, labels = digits.train.images, digits.train.labels
    test = {"x_test": digits.test.images[:40], "y_test": digits.test.labels[:40]}
    np.savez(place / "private.npz", x_train=images[:60], y_train=labels[:60], **test)
    np.savez(place / "public.npz", x_train=images[57:150], y_train=labels[57:150], **test)
    np.savez(place / "filtered.npz", x_train=images[60:150], y_train=labels[60:150], **test, **{MARK: np.array(True)})
    return place


@pytest.fixture
def source(archives):
    return open_source(f"npz:{archives / 'private.npz'}", owner_key=owner_key())


@pytest.fixture(scope="module")
def choices(archives) -> Settings:
    return Settings(
        model="lenet-300-100,norm=batch",
        learning_rate=0.5,
        ema=0.5,
        ema_form="constant",
        normalisation="public-batch",
        public_data=f"npz:{archives / 'public.npz'}",
        public_examples=93,
        seed=5,
    )


@pytest.fixture(scope="module")
def plan() -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=60, batch_size=16, steps=STEPS, noise_multiplier=4.0, delta=1e-5)


def trained(source, plan, choices, place, **others):
    return train(None, source, plan, directory=place, settings=choices, threads=1, device="cpu", **others)


@pytest.fixture(scope="module")
def finished(archives, plan, choices, tmp_path_factory):
    source = open_source(f"npz:{archives / 'private.npz'}", owner_key=owner_key())
    return trained(source, plan, choices, tmp_path_factory.mktemp("finished") / "run", keep=4)


def test_the_file_alone_gives_the_run_s_figures(source, finished):
    run = finished
    loaded = load(run.directory / "model.safetensors")
    right = loaded.predict(list(source.test.images)).argmax(1).numpy() == source.test.labels
    assert run.accuracy == pytest.approx(right.mean())
    assert verify(run.directory).holds
    before = loaded.module.norm1.mean.clone()
    refresh(loaded.module)
    torch.testing.assert_close(loaded.module.norm1.mean, before)
    weights, _ = read_safetensors(run.directory / "model.safetensors")
    assert len(weights["public_examples"]) == 93
    assert torch.equal(weights["norm1.mean"], before), "the file holds them, and none of other weights"


@pytest.mark.parametrize("method", ["upa", "opa"])
def test_aggregates_have_statistics_of_their_own_weights(finished, tmp_path, method):
    shutil.copytree(finished.directory, tmp_path / "run")
    made = sfumato.aggregate(tmp_path / "run", method, last=3)
    loaded = load(made.path)
    parts = [loaded.module] if method == "upa" else list(loaded.module.children())
    for part in parts:
        before = part.norm1.mean.clone()
        refresh(part)
        torch.testing.assert_close(part.norm1.mean, before)
    assert verify(tmp_path / "run").holds


class TakenApart:
    """A step that gives back its micro-batches."""

    workers = ALONE

    def __call__(self, step, batches, state):
        return batches, state


def test_statistics_are_taken_where_each_gradient_is(source, plan, choices, tmp_path, monkeypatch):
    """At the average, where a run trains over it: not at the last weights, and not once for all steps."""
    seen, means = [], []
    of_step = steps.PrivateTrainingSteps.__call__

    def looking(self, step, state):
        module = self.inputs._job.module
        own = {name: value.clone() for name, value in module.state_dict().items()}
        refresh(module)
        seen.append(all(torch.equal(value, own[name]) for name, value in module.state_dict().items()))
        means.append(own["norm1.mean"])
        return of_step(self, step, state)

    monkeypatch.setattr(steps.PrivateTrainingSteps, "__call__", looking)
    trained(source, plan, replace(choices, aggregate="ema"), tmp_path / "run", keep=0)
    assert seen == [True] * STEPS
    assert not torch.equal(means[0], means[-1])


def test_killed_and_resumed_it_has_the_same_bytes(source, plan, choices, tmp_path, killed_at):
    trained(source, plan, choices, tmp_path / "whole", keep=2)

    with killed_at(3) as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 1e-9)
        trained(source, plan, choices, tmp_path / "killed", keep=2)
    trained(source, plan, choices, tmp_path / "killed", keep=2)
    for name in ("model.safetensors", "statement.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_private_records_among_the_public_ones_are_left_out_and_no_statement_says_so(
    source, plan, choices, tmp_path, heard
):
    job = prepare.prepare(None, source, plan, choices, threads=1)
    assert job.sampler_inputs["excluded"].sum() == 3
    assert len(job.source.train) == 57
    assert {image.tobytes() for image in job.source.train.images}.isdisjoint(
        image.tobytes() for image in job.public_examples.public.images
    )
    elsewhere = prepare.prepare(
        None, source, plan, replace(choices, public_data=choices.norms.public_data, public_examples=20), threads=1
    )
    assert elsewhere.circumstances == replace(job.circumstances, public_examples=20)
    trained(source, plan, choices, tmp_path / "run", keep=0, progress=heard)
    assert any("3 of your private training records are among the public examples" in line for line in heard.lines)
    assert not any("test images are among" in line for line in heard.lines)
    statement = (tmp_path / "run" / "statement.json").read_text()
    assert not re.search(r"\b57\b", statement)
    assert "The 93 examples whose statistics normalise the model" in statement


def test_the_larger_images_of_records_that_are_left_out_are_left_out_too(plan, choices, archives):
    source = open_source(f"npz:{archives / 'private.npz'}", owner_key=owner_key(), size=6, zoom=1.3)
    part = PublicNormalisation.read(choices, source)
    assert part is not None
    kept = part.exclude_records(source)
    assert len(kept.zoomed) == len(kept.train) == 57 < len(source.zoomed)
    assert np.array_equal(kept.zoomed.labels, source.zoomed.labels[~part.excluded])


def test_test_images_among_the_public_ones_are_told_to_the_owner(source, plan, choices, tmp_path, heard):
    seen = replace(source, test=source.train.select(np.arange(60) >= 55))
    trained(seen, plan, choices, tmp_path / "run", keep=0, progress=heard)
    assert any(line.startswith("note: 3 of your test images are among the public examples") for line in heard.lines)


@pytest.mark.parametrize(("seed", "fewer"), [(5, False), (6, True)])
def test_which_public_examples_are_taken_hangs_on_nothing_private(source, plan, choices, archives, fewer, seed):
    """Neither on private records nor on a seed: a public draw among the public ones, prepared as a model takes them."""
    kept = np.arange(60) >= 20 * fewer
    some = replace(source, train=source.train.select(kept))
    settings = replace(choices, public_examples=20, seed=seed)
    module = prepare.prepare(None, some, plan, settings, threads=1).module
    drawn = np.sort(np.random.default_rng(0).permutation(93)[:20])
    public = np.load(archives / "public.npz")["x_train"][drawn]
    images = torch.from_numpy(public.reshape(20, 1, *public.shape[1:3]))
    torch.testing.assert_close(module.public_examples, images.float() / 127.5 - 1)


def test_the_same_pixels_are_known_again_however_they_are_stored(source, plan, choices, archives, tmp_path):
    arrays = dict(np.load(archives / "public.npz"))
    np.savez(tmp_path / "floats.npz", **{**arrays, "x_train": arrays["x_train"] / np.float32(255)})
    floats = replace(choices, public_data=f"npz:{tmp_path / 'floats.npz'}")
    assert prepare.prepare(None, source, plan, floats, threads=1).sampler_inputs["excluded"].sum() == 3


@pytest.mark.parametrize("rule", ["poisson", "position", "truncated", "drifting"])
def test_records_that_are_left_out_move_no_others(source, choices, archives, tmp_path, rule):
    """Others are drawn into the same steps as if none were left out: those after them in a file don't move up."""
    arrays = dict(np.load(archives / "filtered.npz"))
    arrays.pop(MARK)
    arrays["x_train"][:3] = source.train.images[[0, 10, 25]].reshape(3, *arrays["x_train"].shape[1:])
    np.savez(tmp_path / "others.npz", **arrays)
    second = int((source.train.labels >= 5).sum())
    participation = {
        "poisson": Poisson(batch_size=16),
        "position": FixedOrder(batch_size=15, assignment="position"),
        "truncated": TruncatedPoisson(batch_size=16, largest=16),
        "drifting": DriftingPoisson(batch_size=16, period=4, sizes=(60 - second, second), named=tuple("56789")),
    }[rule]
    plan = PrivacyPlan(
        mechanism=Gaussian(noise_multiplier=4.0),
        population=60,
        participation=participation,
        steps=4,
        delta=1e-3,
        adjacency="zero-out" if rule in ("position", "truncated") else "add-or-remove",
    )

    def seen(name, count):
        public = replace(choices, public_data=f"npz:{name}", public_examples=count)
        job = prepare.prepare(None, source, plan, public, threads=1, key=RunKey.from_seed(1, "test"))
        private, found = steps.private_training_steps(job, job.key), []

        def looking(key, step, participants, workers):
            found.append({job.source.train.images[row].tobytes() for row in participants})
            return []

        private.inputs.micro_batches = looking
        private.step = TakenApart()  # type: ignore[assignment]
        for step in range(plan.steps):
            private(step, None)
        return found

    whole, rest = seen(archives / "filtered.npz", 90), seen(tmp_path / "others.npz", 90)
    left_out = {source.train.images[row].tobytes() for row in (0, 10, 25)}
    assert any(step & left_out for step in whole)
    assert rest == [step - left_out for step in whole]


def test_which_records_are_left_out_depends_on_each_alone(source, plan, choices):
    whole = prepare.prepare(None, source, plan, choices, threads=1).source.train.images
    for removed in (0, 58):
        kept = np.arange(60) != removed
        fewer = replace(source, train=source.train.select(kept))
        left = prepare.prepare(None, fewer, plan, choices, threads=1).source.train.images
        expected = [image for place, image in enumerate(source.train.images[:57]) if place != removed]
        assert np.array_equal(left, np.stack(expected))
    assert len(whole) == 57


def test_examples_that_were_chosen_by_private_data_are_named(source, plan, choices, archives):
    marked = replace(choices, public_data=f"npz:{archives / 'filtered.npz'}", public_examples=20)
    job = prepare.prepare(None, source, plan, marked, threads=1)
    assert job.circumstances.public_filtered
    lines = sfumato.Statement(plan=plan, circumstances=job.circumstances).not_covered
    assert any("filtered by looking at private data" in line for line in lines)


def test_runs_with_other_public_examples_have_keys_of_their_own(source, plan, choices):
    one = prepare.prepare(None, source, plan, choices, threads=1).key
    other = prepare.prepare(None, source, plan, replace(choices, public_examples=20), threads=1).key
    assert one.seed("sampling", 0) != other.seed("sampling", 0)


def test_the_public_page_shows_no_path_of_the_public_data(finished):
    assert "public.npz" not in (finished.directory / "report.html").read_text()
    assert json.loads((finished.directory / "settings.json").read_text())["settings"]["public_data"].endswith(
        "public.npz"
    )


def test_a_run_does_not_go_on_with_other_public_examples(source, plan, choices, tmp_path, archives, monkeypatch):
    def failing(*given):
        raise KeyboardInterrupt

    changing = tmp_path / "public.npz"
    changing.write_bytes((archives / "public.npz").read_bytes())
    own = replace(choices, public_data=f"npz:{changing}", public_examples=20)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", failing)
        with pytest.raises(KeyboardInterrupt):
            trained(source, plan, own, tmp_path / "run")
    arrays = dict(np.load(changing))
    np.savez(changing, **{**arrays, "x_train": 255 - arrays["x_train"]})
    with pytest.raises(SfumatoError, match="differs in its public examples"):
        trained(source, plan, own, tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"public_data": None, "public_examples": 128},
            "statistics from public examples; give a public source",
        ),
        ({"public_examples": 1000}, "has 93 training examples, but 1000 images are needed"),
        ({"normalisation": "group"}, "normalisation group takes none; give a public source"),
        ({"normalisation": "batch"}, "normalisation must be one of"),
        ({"public_data": "csv:texts.csv"}, "texts.csv holds texts, but 93 images are needed; give a source of images"),
        ({"public_examples": 0}, "public_examples must be at least 1"),
        ({"model": "linear"}, "has no normalisation layer"),
        ({"public_data": "npz:none.npz"}, "none.npz"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(source, plan, choices, given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.csv").write_text("text,label\na goal,0\na bank,1\na match,0\na share,1\n")
    with pytest.raises(SfumatoError, match=words):
        prepare.prepare(None, source, plan, replace(choices, **given), threads=1)
