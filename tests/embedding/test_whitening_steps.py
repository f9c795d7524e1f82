"""Whitening through the real step, and from the data to the model file: sensitivity, noise, resumption, promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import RunKey, SfumatoError, Source, embed, load, open_source, verify
from sfumato.embedding import EmbeddingExperiment, whitening_steps
from sfumato.embedding.run import begin, job_of
from sfumato.embedding.whitening import MEAN, SCATTER
from sfumato.embedding.whitening_steps import WhiteningSteps
from sfumato.observers.progress import NoProgress
from sfumato.randomness import NoiseState
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.preparation.start import Start

USERS, WIDTH = 50, 8
HOW = {"device": "cpu", "threads": 1}
WHITEN = {"method": "whiten", "dimension": WIDTH, "epsilon": 8.0, "seed": 1}


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> str:
    """50 people to train on and 12 others to test on, each a class of six images, which differ by a common pattern."""
    generator = np.random.default_rng(0)
    common = generator.standard_normal((3, 8, 8))

    def part(first: int, count: int):
        rows = [
            (128 + 25 * own + 30 * np.tensordot(generator.standard_normal(3), common, 1), first + user)
            for user, own in enumerate(generator.standard_normal((count, 8, 8)))
            for _ in range(6)
        ]
        images, labels = (np.array(column) for column in zip(*rows, strict=True))
        return np.clip(images, 0, 255).astype(np.uint8), labels, np.char.add("p", np.char.zfill(labels.astype(str), 3))

    path = tmp_path_factory.mktemp("people") / "people.npz"
    names = ("x", "y", "users")
    train, test = part(0, USERS), part(USERS, 12)
    parts = {f"{name}_train": column for name, column in zip(names, train, strict=True)}
    np.savez(path, **parts, **{f"{name}_test": column for name, column in zip(names, test, strict=True)})
    return f"npz:{path}"


@pytest.fixture(scope="module")
def source(people) -> Source:
    return open_source(people, owner_key=bytes(32), open_set=True)


def released(source: Source, monkeypatch, *, without: str | None = None, **further) -> dict[str, torch.Tensor]:
    """The noisy sum over users times N, as it leaves the private step; N is declared, but stays."""
    if without is not None:
        source = replace(source, train=source.train.select(source.train.users != without))
    job, _ = job_of(EmbeddingExperiment(**{**WHITEN, **further}), source, start=Start(**HOW))
    seen = []
    monkeypatch.setattr(
        whitening_steps, "whitening", lambda found, **_: (seen.append(found), (torch.eye(8), torch.zeros(8)))[1]
    )
    WhiteningSteps(job, RunKey.from_seed(0))(0, NoiseState(step=0))
    return {name: value.double() * USERS for name, value in seen[0].items()}


def moved(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(sum(((one[name] - other[name]) ** 2).sum() for name in one).sqrt())


def test_removing_one_user_moves_the_sum_of_the_real_step_by_the_norm_and_no_more(source, monkeypatch):
    """The noise is the same in both, since it is of one key; each vector is longer than C, and is cut to that."""
    whole = released(source, monkeypatch, max_norm=0.001)
    for user in ("p000", "p017", f"p{USERS - 1:03}"):
        assert moved(whole, released(source, monkeypatch, without=user, max_norm=0.001)) == pytest.approx(
            1e-3, rel=1e-3
        )


def test_each_users_records_come_together_and_nobody_elses_with_them(source):
    job, _ = job_of(EmbeddingExperiment(**WHITEN), source, start=Start(**HOW))
    found = list(WhiteningSteps(job, RunKey.from_seed(0))._users(np.arange(USERS)))
    assert [(len(vectors), labels.tolist()) for vectors, labels in found] == [(6, [user] * 6) for user in range(USERS)]


def test_the_noise_is_that_of_the_plan(source, monkeypatch):
    job, _ = job_of(EmbeddingExperiment(**WHITEN), source, start=Start(**HOW))
    deviation = job.plan.noise_multiplier * job.plan.max_norm
    noisy = released(source, monkeypatch)
    hardly = released(source, monkeypatch, epsilon=None, noise_multiplier=2e-3)
    drawn = torch.cat([(noisy[name] - hardly[name]).flatten() for name in noisy])
    assert len(drawn) == WIDTH * (WIDTH + 1) // 2 + WIDTH
    assert 0.7 * deviation < float(drawn.std()) < 1.3 * deviation


def test_the_map_is_a_function_of_what_was_released_alone(source, monkeypatch):
    """Of other images, and of other users, the same release leads to the same map."""
    drawn = torch.Generator().manual_seed(0)
    fixed = {SCATTER: torch.rand(WIDTH * (WIDTH + 1) // 2, generator=drawn), MEAN: torch.rand(WIDTH, generator=drawn)}

    def moved_by(train) -> dict[str, torch.Tensor]:
        job, _ = job_of(EmbeddingExperiment(**WHITEN), replace(source, train=train), start=Start(**HOW))
        steps = WhiteningSteps(job, RunKey.from_seed(0))
        monkeypatch.setattr(steps, "_step", lambda step, users, state: (len(list(users)) and fixed, state))
        return steps(0, NoiseState(step=0))[0]

    own = moved_by(source.train)
    inverted = replace(source.train, images=255 - source.train.images)
    for other in (inverted, source.train.select(source.train.users != "p003")):
        assert all(torch.equal(value, own[name]) for name, value in moved_by(other).items())


def test_features_are_computed_with_as_many_others_whatever_their_number_is(source, monkeypatch):
    """Else their rounding, and so every user's vector, would tell how many records there are."""
    job, _ = job_of(EmbeddingExperiment(**WHITEN), source, start=Start(**HOW))
    seen, alone = [], whitening_steps.per_example_outputs
    monkeypatch.setattr(
        whitening_steps,
        "per_example_outputs",
        lambda module, images: (seen.append(len(images)), alone(module, images))[1],
    )
    WhiteningSteps(job, RunKey.from_seed(0))._vectors()
    assert len(source.train) % whitening_steps.BATCH, "the last ones are fewer"
    assert set(seen) == {whitening_steps.BATCH}


def test_the_plan_is_one_step_of_all_users_whose_sensitivity_is_the_norm(source):
    job, _ = job_of(EmbeddingExperiment(**WHITEN), source, start=Start(**HOW))
    assert (job.plan.steps, job.plan.population, job.plan.unit.drawn) == (1, USERS, "users")
    assert job.plan.theorem.sensitivity(job.plan) == 1
    assert job.gradient.sensitivity(job.plan.adjacency) == job.plan.max_norm
    assert 7.9 < job.plan.epsilon() <= 8


def test_it_keeps_what_it_promised_and_is_better_than_its_beginning(people, tmp_path):
    run = embed(people, directory=tmp_path / "run", **WHITEN, **HOW)
    assert "for each single person, with all of their images, under add-or-remove" in run.statement.sentence
    assert "counts for two" not in run.statement.sentence
    assert verify(run.directory).holds
    compared = run.figures["compared"]
    assert compared["gain"][0] > 0
    assert compared["pixels"] is not None
    found = load(run.directory)
    assert found.embed(np.zeros((3, 8, 8, 1), np.uint8)).shape == (3, WIDTH)
    assert not torch.equal(found.module.map.weight, torch.eye(WIDTH))
    page = (run.directory / "report.html").read_text("utf-8")
    assert "gained by training" in page
    assert "gained by training" not in load_public(run.directory)


def load_public(directory) -> str:
    from sfumato.training.conclusion.run_report import report

    return report(RunDirectory(directory), public=True)


class StopError(Exception):
    """In place of a kill."""


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_killed_run_goes_on_to_the_same_bytes_and_pays_once(people, source, tmp_path, monkeypatch, where):
    chosen = EmbeddingExperiment(**WHITEN)

    def run(place):
        return begin(chosen, source, RunDirectory(tmp_path / place), progress=NoProgress(), **HOW)

    whole, descend = run("whole"), loop.descend

    def stop(*given):
        if where == "after":
            descend(*given)
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", stop)
        with pytest.raises(StopError):
            run("killed")
    resumed = run("killed")
    one, other = ((found.directory / "model.safetensors").read_bytes() for found in (whole, resumed))
    assert one == other
    lines = (resumed.directory / "ledger.jsonl").read_text().splitlines()
    assert len(lines) == 3, "a beginning, one release, an end"
    assert verify(resumed.directory).holds


def test_untrained_it_is_the_same_whatever_the_data_hold_and_claims_nothing(people, source, tmp_path):
    asked = EmbeddingExperiment(method="untrained", dimension=WIDTH)
    run = begin(asked, source, RunDirectory(tmp_path / "a"), progress=NoProgress(), **HOW)
    other = replace(source, train=source.train.select(source.train.users != "p003"))
    again = begin(asked, other, RunDirectory(tmp_path / "b"), progress=NoProgress(), **HOW)
    weights, others = (load(one.directory).module.state_dict() for one in (run, again))
    assert all(torch.equal(value, others[name]) for name, value in weights.items())
    statement = run.statement.to_dict()
    assert statement["epsilon"] is None
    assert "has used no private data" in statement["sentence"]
    assert not (run.directory / "ledger.jsonl").exists()
    assert run.figures["compared"]["gain"] == [0, 0, 0]
    assert (run.directory / "evaluation.json").stat().st_mode & 0o077 == 0, "figures of private data are the owner's"
    with pytest.raises(SfumatoError, match="has used no private data"):
        verify(run.directory)
    assert "recall" not in repr(run)
    assert 'id="pairs"' in (run.directory / "report.html").read_text("utf-8")
    assert 'id="pairs"' not in load_public(run.directory)


def test_weights_that_have_seen_the_private_records_are_refused_without_training_too(source, tmp_path):
    public = replace(source, public=True)
    seen = EmbeddingExperiment(model="linear", dimension=WIDTH, method="central", steps=2)
    begin(seen, public, RunDirectory(tmp_path / "seen"), progress=NoProgress(), **HOW)
    for method in ("whiten", "untrained"):
        asked = EmbeddingExperiment(method=method, model="linear", dimension=WIDTH, pretrained=str(tmp_path / "seen"))
        with pytest.raises(SfumatoError, match="were trained without privacy on"):
            job_of(asked, source)


def test_the_statement_names_the_number_of_images_that_the_rule_read(source):
    """The rule looks at the number of images for each person: where nobody declared it, it is a fact of the data."""
    job, _ = job_of(EmbeddingExperiment(epsilon=200.0), source, start=Start(**HOW))
    assert type(job).__name__ == "WhiteningJob"
    assert {"examples", "users"} <= set(job.circumstances.read)
    assert "classes" not in job.circumstances.read
