"""Embeddings from the data to the model file: what is promised, kept, resumed and refused; isolation through the real
round."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sfumato import RunKey, SfumatoError, Source, embed, load, open_source, verify
from sfumato.embedding import EmbeddingExperiment, experiment
from sfumato.embedding.experiment import EmbeddingDecision
from sfumato.embedding.prepare import prepare
from sfumato.embedding.run import begin, job_of
from sfumato.embedding.steps import EmbeddingSteps, RoundClients
from sfumato.observers.progress import NoProgress
from sfumato.randomness import NoiseState, Sampler
from sfumato.runs.checkpoint import read_safetensors
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.preparation import resume
from sfumato.training.preparation.start import Start
from sfumato.training.step import PrivateStep
from tests.killed import killed

USERS = 24
QUICK = {"steps": 3, "batch_size": 8, "clients": 3, "noise_multiplier": 2.0, "threads": 1, "device": "cpu"}
ALONE = {name: value for name, value in QUICK.items() if name not in ("threads", "device")}


class Small(nn.Module):
    """8 x 8 grey images to embeddings of 8 numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 8))

    def forward(self, images):
        return self.body(images)


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> str:
    """24 people to train on, of two classes each, in four groups; 10 others, of other classes, to test on."""
    generator = np.random.default_rng(0)
    faces = generator.random((18, 8, 8))

    def part(users, classes, first):
        rows = [
            (np.clip(faces[c] + 0.1 * generator.standard_normal((8, 8)), 0, 1), c, f"p{first + u:02}", f"g{u % 4}")
            for u in range(users)
            for c in generator.choice(classes, 2, replace=False)
            for _ in range(3)
        ]
        images, labels, names, groups = (np.array(column) for column in zip(*rows, strict=True))
        return (255 * images).astype(np.uint8), labels, names, groups

    names = ("x", "y", "users", "groups")
    train, test = part(USERS, np.arange(10), 0), part(10, np.arange(10, 18), USERS)
    path = tmp_path_factory.mktemp("people") / "people.npz"
    np.savez(
        path,
        **{f"{name}_train": column for name, column in zip(names, train, strict=True)},
        **{f"{name}_test": column for name, column in zip(names, test, strict=True)},
    )
    return f"npz:{path}"


@pytest.fixture(scope="module")
def source(people) -> Source:
    return open_source(people, owner_key=bytes(32), open_set=True)


def test_a_run_keeps_what_it_promised_and_gives_embeddings(people, tmp_path):
    run = embed(people, directory=tmp_path / "run", model="linear", dimension=16, seed=1, **QUICK)
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
    asked = {"seed": 3, **ALONE, **further}
    chosen = EmbeddingExperiment(model="linear", dimension=8, **asked)

    def run(place):
        return begin(chosen, source, RunDirectory(tmp_path / place), device="cpu", threads=1, progress=NoProgress())

    whole = run("whole")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed(loop, "descend", call=2):
        run("killed")
    resumed = run("killed")
    models = [(one.directory / "model.safetensors").read_bytes() for one in (whole, resumed)]
    assert models[0] == models[1]
    assert resumed.figures["compared"] == whole.figures["compared"], "with the same initial weights"


def test_a_run_goes_on_from_its_own_record_and_with_other_clients_not_at_all(people, tmp_path):
    with killed(loop, "descend"):
        embed(people, directory=tmp_path / "run", model="linear", dimension=8, client_epochs=2, **QUICK)
    with pytest.raises(SfumatoError, match="differs in its embedding: local"):
        embed(people, directory=tmp_path / "run", model="linear", dimension=8, client_epochs=3, **QUICK)


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
    asked = EmbeddingExperiment(
        **{**ALONE, "steps": 1, "batch_size": further.pop("batch_size", 20), "noise_multiplier": 0.5, **further}
    )
    job, _ = job_of(asked, smaller, model=Small(), start=Start(device="cpu", threads=1))
    steps = EmbeddingSteps(job, RunKey.from_seed(key))
    gradient, _ = steps(0, NoiseState(step=0))
    return {name: value.double() * job.clients.count for name, value in gradient.items()}


def moved(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(sum(((one[name] - other[name]) ** 2).sum() for name in one).sqrt())


def test_removing_one_user_moves_the_sum_of_the_real_round_by_up_to_twice_the_norm(source):
    """The last by name, so that all others keep their numbers, coins and clients."""
    asked = {"max_norm": 0.05, "client_rate": 0.5}
    distances = [
        moved(round_of(source, key=key, **asked), round_of(source, key=key, without=f"p{USERS - 1:02}", **asked))
        for key in range(4)
    ]
    assert max(distances) <= 2 * 0.05 * (1 + 1e-5)
    assert max(distances) > 0.3 * 0.05, "in none of them did the user take part"


def test_removing_a_whole_fixed_group_moves_it_by_the_norm_at_most(source, monkeypatch):
    """The last by name; the number of groups is a public fact, and stays."""
    monkeypatch.setattr(experiment, "groups_of", lambda source: 4)
    asked = {"grouping": "fixed", "batch_size": 3, "clients": None, "max_norm": 0.05, "client_rate": 0.5}
    rounds = [round_of(source, key=key, **asked) for key in range(3)]
    distances = [moved(whole, round_of(source, key=key, group="g3", **asked)) for key, whole in enumerate(rounds)]
    assert max(distances) == pytest.approx(0.05, rel=1e-3), "in none of them did the group take part"
    assert max(distances) <= 0.05 * (1 + 1e-5)
    one_person = moved(rounds[0], round_of(source, without=f"p{USERS - 1:02}", **asked))
    assert one_person <= 2 * 0.05 * (1 + 1e-5)


def test_the_head_over_all_classes_is_summed_and_not_released(source, tmp_path):
    asked = EmbeddingExperiment(model="linear", dimension=8, method="fedavg", **ALONE)
    run = begin(asked, source, RunDirectory(tmp_path / "run"), device="cpu", threads=1, progress=NoProgress())
    job, _ = job_of(asked, source, start=Start(device="cpu", threads=1))
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
    known = {"owner_key": bytes(32), "user_from": "class", "open_set": True}
    few = {name: value for name, value in ALONE.items() if name != "clients"}
    asked = EmbeddingExperiment(model="linear", dimension=8, method=method, **few)
    source = open_source(f"npz:{tmp_path}/people.npz", **known)
    with pytest.raises(SfumatoError, match="read from the data would reveal who took part; declare the classes"):
        job_of(asked, source)
    job_of(replace(asked, method="fedemb"), source)
    names = [f"p{number}" for number in range(USERS)]
    job_of(asked, open_source(f"npz:{tmp_path}/people.npz", classes=names, **known))


def test_a_fixed_group_has_a_figure_of_its_own_beside_that_of_each_person(source):
    job, _ = job_of(EmbeddingExperiment(**{**ALONE, "grouping": "fixed", "clients": None, "batch_size": 2}), source)
    assert (job.plan.population, job.plan.users, job.clients.count) == (4, USERS, 2)
    assert "groups" in job.circumstances.read
    assert job.plan.theorem.sensitivity(job.plan) == 2


def test_central_training_is_for_public_data_alone(source, tmp_path):
    asked = EmbeddingExperiment(model="linear", dimension=8, method="central", steps=4)
    with pytest.raises(SfumatoError, match="method central trains without privacy, but this npz source is private"):
        begin(asked, source, RunDirectory(tmp_path / "a"), progress=NoProgress())
    public = replace(source, public=True)
    run = begin(asked, public, RunDirectory(tmp_path / "b"), device="cpu", threads=1, progress=NoProgress())
    assert run.figures["recall"] >= 0
    assert load(run.directory).embed(np.zeros((8, 8, 1), np.uint8)).shape == (1, 8)
    for budget in ({"epsilon": 3.0}, {"accountant": "rdp"}):
        with pytest.raises(SfumatoError, match="has no guarantee, but a budget is given"):
            begin(replace(asked, **budget), public, RunDirectory(tmp_path / "c"), progress=NoProgress())


def test_what_cannot_be_is_refused_before_anything_is_spent(source, arrays, tmp_path):
    with pytest.raises(SfumatoError, match="the source does not name the user of each record"):
        embed(arrays, directory=tmp_path / "run", **QUICK)
    shared = replace(source, test=source.train)
    with pytest.raises(SfumatoError, match="24 of the 24 training users also have records in the test part"):
        job_of(EmbeddingExperiment(**ALONE), shared)
    nobody = replace(source, train=replace(source.train, groups=None))
    with pytest.raises(SfumatoError, match="does not name the group of each user"):
        job_of(EmbeddingExperiment(**{**ALONE, "grouping": "fixed", "clients": None}), nobody)
    with pytest.raises(
        SfumatoError, match="the plan keeps at most 2 records of each user, but a user of the source has 6"
    ):
        job_of(EmbeddingExperiment(**ALONE, per_user=2), source)
    assert not (tmp_path / "run").exists()


def test_public_weights_that_have_seen_the_private_records_are_refused_whatever_the_method(source, tmp_path):
    asked = EmbeddingExperiment(model="linear", dimension=8, method="central", steps=2)
    public = replace(source, public=True)
    begin(asked, public, RunDirectory(tmp_path / "seen"), device="cpu", threads=1, progress=NoProgress())
    for method in ("fedemb", "fedavg", "dpsgd"):
        clients = {} if method != "dpsgd" else {"clients": None}
        private = EmbeddingExperiment(
            **{
                **ALONE,
                **clients,
                "method": method,
                "model": "linear",
                "dimension": 8,
                "pretrained": str(tmp_path / "seen"),
            }
        )
        with pytest.raises(SfumatoError, match="were trained without privacy on"):
            job_of(private, source)


def test_runs_with_one_seed_that_differ_in_anything_have_keys_of_their_own(source):
    def key(source=source, **further):
        asked = {**ALONE, "model": "linear", "dimension": 8, "seed": 7, **further}
        return job_of(EmbeddingExperiment(**asked), source)[0].key.uint64_words("x", 0).tolist()

    other = replace(source, fingerprint="0" * 64)
    keys = [key(), key(client_epochs=2), key(far=0.1), key(grouping="group"), key(learning_rate=0.3), key(other)]
    keys += [key(client_head="random"), key(client_temperature=0.5)]
    assert key() == keys[0]
    assert len({tuple(words) for words in keys}) == len(keys)


def test_a_plan_must_be_its_datas_and_its_clients(source):
    job, _ = job_of(EmbeddingExperiment(**ALONE), source)
    fixed, _ = job_of(EmbeddingExperiment(**{**ALONE, "grouping": "fixed", "clients": None, "batch_size": 2}), source)
    assert fixed.plan.delta == job.plan.delta
    even = replace(job.clients, grouping="even")
    for plan, clients, settings in (
        (job.plan, even, "grouping is even, but under add-or-remove adjacency one user more or less moves others"),
        (replace(job.plan, population=25), job.clients, "the plan is for 25 users, the source has 24"),
        (fixed.plan, job.clients, "the plan's groups are fixed, but the clients' grouping is random"),
        (job.plan, fixed.clients, "the plan's groups are not fixed, but the clients' grouping is fixed"),
    ):
        with pytest.raises(SfumatoError, match=settings):
            prepare(source, EmbeddingDecision(plan, job.settings, clients, []))


def test_clients_of_one_size_are_trained_under_zero_out_adjacency(source):
    even = {"grouping": "even", "adjacency": "zero-out", "batch_size": 12, "clients": 3}
    asked = EmbeddingExperiment(**{**ALONE, **even})
    job, _ = job_of(asked, source)
    assert job.plan.adjacency == "zero-out"
    assert job.plan.unit.sensitivity == 2
    rounds = RoundClients(job, RunKey.from_seed(0))._rounds
    for step in range(3):
        drawn = Sampler(job.plan, RunKey.from_seed(0), records=USERS).draw(step)
        sizes = [len(np.unique(rounds.users[found])) for found in rounds.clients(step, drawn).values()]
        assert max(sizes) - min(sizes) <= 1


def test_a_test_part_that_nothing_can_be_measured_on_is_refused_before_anything_is_spent(source, tmp_path):
    one = replace(source, test=source.test.select(source.test.labels == source.test.labels[0]))
    with pytest.raises(SfumatoError, match="of 1 classes, but recall needs two images of one class and two classes"):
        begin(EmbeddingExperiment(**ALONE), one, RunDirectory(tmp_path / "run"), progress=NoProgress())
    assert not (tmp_path / "run").exists()


def test_a_ledger_binds_how_clients_train(source):
    job, _ = job_of(EmbeddingExperiment(**ALONE), source)
    other = replace(job, clients=replace(job.clients, count=job.clients.count + 1))
    one, two = (resume._opening(each, "00" * 32)["settings_commitment"] for each in (job, other))
    assert one != two


def test_runs_for_users_who_were_told_apart_otherwise_are_composed_and_named(people, source, tmp_path):
    """With two names each person of this run is half of one of that run: the total is for one who has one name."""
    told = []

    class Told(NoProgress):
        def report(self, line):
            told.append(line)

    halves = np.char.add(source.train.users, np.where(np.arange(len(source.train)) % 2, "a", "b"))
    with np.load(people.removeprefix("npz:")) as arrays:
        np.savez(tmp_path / "halves.npz", **{**arrays, "users_train": halves})
    first = embed(people, directory=tmp_path / "a", model="linear", dimension=8, **QUICK)
    second = embed(
        f"npz:{tmp_path}/halves.npz", directory=tmp_path / "b", model="linear", dimension=8, progress=Told(), **QUICK
    )
    assert (first.uses, second.uses) == (1, 2)
    assert second.joint_cost is not None
    assert any("assigned these records to other users" in line for line in told)
    third = embed(people, directory=tmp_path / "c", model="linear", dimension=8, **QUICK)
    assert third.uses == 3
    assert third.joint_cost is not None


@pytest.mark.parametrize("method", ["fedemb", "dpsgd"])
def test_clients_begin_at_the_aggregate_and_the_mean_is_released(source, tmp_path, monkeypatch, method):
    """An update is taken from where the module stands, which is the mean of the last weights; these are what moves."""
    asked = {"seed": 3, **ALONE, "method": method}
    if method == "dpsgd":
        del asked["clients"]
    over = {
        "aggregate": "uta",
        "aggregate_last": 2,
        "aggregate_from": 1,
        "aggregate_restart": False,
        "optimizer": "sgd",
    }
    chosen = EmbeddingExperiment(model="linear", dimension=8, learning_rate=1.0, **asked, **over)
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
    monkeypatch.setattr(resume, "begin", lambda job, run: (modules.append(job.module), begin_run(job, run)))
    monkeypatch.setattr(PrivateStep, "__call__", computing)
    monkeypatch.setattr(loop, "descend", descending)
    run = begin(chosen, source, RunDirectory(tmp_path / "run"), device="cpu", threads=1, progress=NoProgress())
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
