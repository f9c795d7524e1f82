"""Embeddings from the data to the model file: what is promised, kept, resumed and refused; isolation through the real
round."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import RunKey, SfumatoError, Source, embed, load, open_source, verify
from sfumato.averaging import denoising
from sfumato.experiment import users
from sfumato.experiment.clients import EmbeddingDecision
from sfumato.observers.progress import NoProgress
from sfumato.randomness import NoiseState, Sampler
from sfumato.runs.aggregated import kept_hashes
from sfumato.runs.checkpoint import read_safetensors
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.clients import Rounds
from sfumato.training.conclusion import aggregating
from sfumato.training.preparation import resume
from sfumato.training.preparation.clients import check, prepare
from sfumato.training.step import PrivateStep
from sfumato.training.steps import private_training_steps
from tests.killed import killed
from tests.training.clients.jobs import LINEAR, QUICK, job_of, trained, without_clients

USERS = 24
FIXED = {"steps": 3, "batch_size": 2, "noise_multiplier": 2.0, "grouping": "fixed"}


class Small(nn.Module):
    """8 x 8 grey images to embeddings of 8 numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 8))

    def forward(self, images):
        return self.body(images)


def test_a_run_keeps_what_it_promised_and_gives_embeddings(people, tmp_path):
    run = trained(people, tmp_path / "run", model="linear", dimension=16, seed=1, **QUICK)
    assert "for each single person, with all of their images, under add-or-remove" in run.statement.sentence
    assert "one person counts for two" in run.statement.sentence
    assert run.statement.plan.users == USERS
    assert set(run.statement.circumstances.read) == {"users", "size", "channels"}
    assert verify(run.directory).holds
    loaded = load(run.directory)
    assert loaded.classes == (), "they may be the names of people"
    found = loaded.embed(np.zeros((3, 8, 8, 1), np.uint8))
    assert found.shape == (3, 16)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    with pytest.raises(SfumatoError, match="the model returns embeddings"):
        loaded.predict(np.zeros((8, 8, 1), np.uint8))
    assert {"recall", "far", "threshold", "curve", "neighbours"} <= run.figures.keys()
    page = (run.directory / "report.html").read_text("utf-8")
    assert "Which images show the same" in page
    assert "each single person" in page


@pytest.mark.parametrize("further", [{}, {"mechanism": "banded", "quantile": 0.5}], ids=str)
def test_a_killed_and_resumed_run_ends_with_the_same_bytes(source, tmp_path, monkeypatch, further):
    choices = {**LINEAR, **QUICK, "seed": 3, **further}
    whole = trained(source, tmp_path / "whole", **choices)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed(loop, "descend", call=2):
        trained(source, tmp_path / "killed", **choices)
    resumed = trained(source, tmp_path / "killed", **choices)
    models = [(run.directory / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert models[0] == models[1]
    assert resumed.figures["compared"] == whole.figures["compared"], "with the same initial weights"


def test_a_run_goes_on_from_its_own_record_and_with_other_clients_not_at_all(people, tmp_path):
    with killed(loop, "descend"):
        trained(people, tmp_path / "run", client_epochs=2, **LINEAR, **QUICK)
    with pytest.raises(SfumatoError, match="differs in its embedding: local"):
        trained(people, tmp_path / "run", client_epochs=3, **LINEAR, **QUICK)


def round_of(
    source: Source, *, key: int = 0, without: str | None = None, group: str | None = None, **further
) -> dict[str, torch.Tensor]:
    """The noisy sum of a round times m, with a noise that is next to nothing and the same in all of them."""
    kept = np.ones(len(source.train), bool)
    if without is not None:
        kept = source.train.users != without
    if group is not None:
        kept = source.train.groups != group
    smaller = replace(source, train=source.train.select(kept))  # N is declared, but stays
    choices = {**QUICK, "steps": 1, "batch_size": 20, "noise_multiplier": 0.5, **further}
    job = job_of(smaller, module=Small(), **choices)
    gradient, _ = private_training_steps(job, RunKey.from_seed(key))(0, NoiseState(step=0))
    return {name: value.double() * job.client_count for name, value in gradient.items()}


def moved(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(sum(((one[name] - other[name]) ** 2).sum() for name in one).sqrt())


def test_removing_one_user_moves_the_sum_of_the_real_round_by_up_to_twice_the_norm(source):
    """The last by name, so that all others keep their numbers, coins and clients."""
    choices = {"max_norm": 0.05, "client_rate": 0.5}
    distances = [
        moved(round_of(source, key=key, **choices), round_of(source, key=key, without=f"p{USERS - 1:02}", **choices))
        for key in range(4)
    ]
    assert max(distances) <= 2 * 0.05 * (1 + 1e-5)
    assert max(distances) > 0.3 * 0.05, "in none of them did the user take part"


def test_removing_a_whole_fixed_group_moves_it_by_the_norm_at_most(source, monkeypatch):
    """The last by name; the number of groups is a public fact, and stays."""
    monkeypatch.setattr(users, "groups_of", lambda source: 4)
    choices = {"grouping": "fixed", "batch_size": 3, "clients": None, "max_norm": 0.05, "client_rate": 0.5}
    rounds = [round_of(source, key=key, **choices) for key in range(3)]
    distances = [moved(whole, round_of(source, key=key, group="g3", **choices)) for key, whole in enumerate(rounds)]
    assert max(distances) == pytest.approx(0.05, rel=1e-3), "in none of them did the group take part"
    assert max(distances) <= 0.05 * (1 + 1e-5)
    one_person = moved(rounds[0], round_of(source, without=f"p{USERS - 1:02}", **choices))
    assert one_person <= 2 * 0.05 * (1 + 1e-5)


def test_the_head_over_all_classes_is_summed_and_not_released(source, tmp_path):
    choices = {**LINEAR, **QUICK, "method": "fedavg"}
    run, job = trained(source, tmp_path / "run", **choices), job_of(source, **choices)
    assert any(name.startswith("head.") for name, _ in job.module.named_parameters())
    assert set(load(run.directory).module.state_dict()) == {
        name.removeprefix("backbone.") for name in job.module.state_dict() if name.startswith("backbone.")
    }


@pytest.mark.parametrize("method", ["fedavg", "dpsgd"])
def test_a_head_over_classes_who_are_users_is_made_for_declared_ones(tmp_path, method):
    """Read from the data, one person more were a row more of the head, through which everybody's gradient goes."""
    labels = np.repeat(np.arange(USERS), 4)
    images = 8 * labels[:, None, None] + np.random.default_rng(0).integers(0, 50, (len(labels), 8, 8))
    np.savez(tmp_path / "people.npz", x=images.astype(np.uint8), y=labels)
    declared = {"owner_key": bytes(32), "user_from": "class", "open_set": True}
    source = open_source(f"npz:{tmp_path}/people.npz", **declared)
    with pytest.raises(SfumatoError, match="read from the data would reveal who took part; declare the classes"):
        job_of(source, **LINEAR, **without_clients(QUICK, method))
    job_of(source, **LINEAR, **QUICK)
    names = [f"p{number}" for number in range(USERS)]
    source = open_source(f"npz:{tmp_path}/people.npz", classes=names, **declared)
    job_of(source, **LINEAR, **without_clients(QUICK, method))


def test_a_fixed_group_has_a_figure_of_its_own_beside_that_of_each_person(source):
    job = job_of(source, **FIXED)
    assert (job.plan.population, job.plan.users, job.client_count) == (4, USERS, 2)
    assert "groups" in job.circumstances.read
    assert job.plan.theorem.sensitivity(job.plan) == 2


def test_what_cannot_be_is_refused_before_anything_is_spent(source, arrays, tmp_path):
    with pytest.raises(SfumatoError, match="the source does not name the user of each record"):
        trained(arrays, tmp_path / "run", **QUICK)
    with pytest.raises(SfumatoError, match="24 of the 24 training users also have test records"):
        job_of(replace(source, test=source.train), **QUICK)
    with pytest.raises(SfumatoError, match="does not name the group of each user"):
        job_of(replace(source, train=replace(source.train, groups=None)), **FIXED)
    with pytest.raises(
        SfumatoError, match="the plan keeps at most 2 records of each user, but a user of the source has 6"
    ):
        job_of(source, **QUICK, per_user=2)
    one = replace(source, test=source.test.select(source.test.labels == source.test.labels[0]))
    with pytest.raises(SfumatoError, match="of 1 classes, but recall needs two images of one class and two classes"):
        trained(one, tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_runs_with_one_seed_that_differ_in_anything_have_keys_of_their_own(source):
    def key(source=source, **further):
        return job_of(source, **{**QUICK, **LINEAR, "seed": 7, **further}).key.uint64_words("x", 0).tolist()

    other = replace(source, fingerprint="0" * 64)
    keys = [key(), key(client_epochs=2), key(far=0.1), key(grouping="group"), key(learning_rate=0.3), key(other)]
    keys += [key(client_head="random"), key(client_temperature=0.5)]
    assert key() == keys[0]
    assert len({tuple(words) for words in keys}) == len(keys)


def test_a_plan_must_be_its_datas_and_its_clients(source):
    job, fixed = job_of(source, **QUICK), job_of(source, **FIXED)
    assert fixed.plan.delta == job.plan.delta
    random, groups = job.embedding.clients, fixed.embedding.clients
    for plan, clients, words in (
        (job.plan, replace(random, grouping="even"), "grouping is even, but under add-or-remove adjacency one user"),
        (replace(job.plan, population=25), random, "the plan is for 25 users, the source has 24"),
        (fixed.plan, random, "the plan's groups are fixed, but the clients' grouping is random"),
        (job.plan, groups, "the plan's groups are not fixed, but the clients' grouping is fixed"),
        (job.plan, replace(random, method="fedemb-noiseless"), "has no rounds with noise, but a plan is given"),
    ):
        with pytest.raises(SfumatoError, match=words):
            prepare(source, EmbeddingDecision(plan, job.settings, clients, []))


def test_clients_of_one_size_are_trained_under_zero_out_adjacency(source):
    job = job_of(source, **{**QUICK, "grouping": "even", "adjacency": "zero-out", "batch_size": 12})
    assert job.plan.adjacency == "zero-out"
    assert job.plan.unit.sensitivity == 2
    rounds, key = Rounds.from_job(job), RunKey.from_seed(0)
    for step in range(3):
        drawn = Sampler(job.plan, key, records=USERS).draw(step)
        users = [source.train.users[rows] for rows in rounds.clients(key, step, drawn).values()]
        sizes = [len(np.unique(names)) for names in users]
        assert max(sizes) - min(sizes) <= 1


def test_a_ledger_binds_how_clients_train(source):
    job = job_of(source, **QUICK)
    clients = replace(job.embedding.clients, count=job.client_count + 1)
    other = replace(job, embedding=replace(job.embedding, clients=clients))
    one, two = (resume._opening(each, "00" * 32)["settings_commitment"] for each in (job, other))
    assert one != two


def test_runs_for_users_who_were_told_apart_otherwise_are_composed_and_named(people, source, tmp_path):
    """With two names each person of this run is half of one of that run: the total is for one who has one name."""
    lines = []

    class Reported(NoProgress):
        def report(self, line):
            lines.append(line)

    halves = np.char.add(source.train.users, np.where(np.arange(len(source.train)) % 2, "a", "b"))
    with np.load(people.removeprefix("npz:")) as arrays:
        np.savez(tmp_path / "halves.npz", **{**arrays, "users_train": halves})
    first = trained(people, tmp_path / "a", **LINEAR, **QUICK)
    second = trained(f"npz:{tmp_path}/halves.npz", tmp_path / "b", progress=Reported(), **LINEAR, **QUICK)
    assert (first.uses, second.uses) == (1, 2)
    assert second.joint_cost is not None
    assert any("assigned these records to other users" in line for line in lines)
    third = trained(people, tmp_path / "c", **LINEAR, **QUICK)
    assert third.uses == 3
    assert third.joint_cost is not None


@pytest.mark.parametrize("method", ["fedemb", "dpsgd"])
def test_clients_begin_at_the_aggregate_and_the_mean_is_released(source, tmp_path, monkeypatch, method):
    """An update is taken from where the module stands, which is the mean of the last weights; these are what moves."""
    over = {
        "aggregate": "uta",
        "aggregate_last": 2,
        "aggregate_from": 1,
        "aggregate_restart": False,
        "optimizer": "sgd",
    }
    choices = {**LINEAR, **without_clients(QUICK, method), "learning_rate": 1.0, "seed": 3, **over}
    starts, thetas, compute, descend = [], [], PrivateStep.__call__, loop.descend

    def computing(self, step, micro_batches, state):
        held = self.gradient.zeros().keys()
        starts.append({name: value.clone() for name, value in modules[-1].named_parameters() if name in held})
        return compute(self, step, micro_batches, state)

    def descending(optimizer, parameters, gradient):
        thetas.append({name: value.detach().clone() for name, value in parameters.items()})
        descend(optimizer, parameters, gradient)
        last.update({name: value.detach().clone() for name, value in parameters.items()})

    begin_run, modules, last = resume.begin, [], {}
    monkeypatch.setattr(resume, "begin", lambda job, *given: (modules.append(job.module), begin_run(job, *given))[1])
    monkeypatch.setattr(PrivateStep, "__call__", computing)
    monkeypatch.setattr(loop, "descend", descending)
    run = trained(source, tmp_path / "run", **choices)
    assert len(starts) == len(thetas) == QUICK["steps"]
    for step in range(1, len(starts)):
        for name, value in starts[step].items():
            torch.testing.assert_close(value, (thetas[step - 1][name] + thetas[step][name]) / 2)
            assert not torch.equal(value, thetas[step][name])
    released = read_safetensors(run.directory / "model.safetensors")[0]
    for name, value in released.items():
        inside = name if method == "fedemb" else f"backbone.{name}"
        torch.testing.assert_close(value, (thetas[-1][inside] + last[inside]) / 2)
    assert verify(run.directory).holds


def test_the_rule_of_kept_weights_goes_by_the_noise_that_a_round_has(source, tmp_path, monkeypatch):
    """Clients that hardly move leave a round its noise alone: sigma C over their number."""
    still = {"max_norm": 0.8, "delta": 1e-3, "seed": 1, "client_rate": 1e-9, "client_examples": 1}
    choices = {**QUICK, "steps": 4, **LINEAR, **still}
    gradient, _ = private_training_steps(job_of(source, **choices), RunKey.from_seed(2))(0, NoiseState(step=0))
    measured = torch.cat([value.flatten() for value in gradient.values()]).double().std()
    passed = {}

    def last_k(distances, steps, **run):
        passed.update(run)
        return 1

    monkeypatch.setattr(denoising, "last_k", last_k)
    run = RunDirectory(embed(source, directory=tmp_path / "run", device="cpu", threads=1, keep=3, **choices).directory)
    aggregating.default_last(run, tuple(kept_hashes(run)))
    assert passed["noise"] ** 0.5 == pytest.approx(2.0 * 0.8 / 3)
    assert measured == pytest.approx(2.0 * 0.8 / 3, rel=0.15)


def test_methods_without_rounds_of_a_plan_keep_none():
    check({"keep": None}, "central")
    check({"keep": 0}, "untrained")
    check({"keep": 3}, "dpsgd")
    with pytest.raises(SfumatoError, match="keep is 3, but method untrained has no rounds by a plan"):
        check({"keep": 3}, "untrained")
    with pytest.raises(SfumatoError, match="keep must be at least 1, got -3"):
        check({"keep": -3}, "fedemb")
