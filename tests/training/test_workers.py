"""Workers that take a step together have the bits of one, or refuse."""

import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato import PrivacyPlan, RunKey, SfumatoError
from sfumato.experiment.settings import Settings
from sfumato.gradients import GridSum
from sfumato.privacy import User
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory
from sfumato.training import launch
from sfumato.training.clients import Rounds, assign_randomly
from sfumato.training.inputs import Inputs
from sfumato.training.preparation import resume
from sfumato.training.preparation.prepare import prepare
from sfumato.training.preparation.resume import take_part
from sfumato.training.preparation.start import Start
from sfumato.training.steps import UserInputs
from sfumato.training.user_records import UserRecords
from sfumato.training.workers import Workers

SCRIPT = Path(__file__).with_name("rank.py")


@given(st.integers(1, 9), st.lists(st.integers(1, 1000), max_size=40))
def test_each_piece_is_dealt_to_one_and_loads_are_alike(count, sizes):
    dealt = [Workers(rank=rank, count=count).deal(0, np.arange(3), sizes) for rank in range(count)]
    assert sorted(place for own in dealt for place in own) == list(range(len(sizes)))
    loads = [sum(sizes[place] for place in own) for own in dealt]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_one_alone_has_all_and_needs_nobody():
    workers, total = Workers(), GridSum({"a": torch.zeros(3)}, max_norm=1.0)
    assert workers.deal(0, np.arange(3), [1, 2]) == [0, 1]
    total.add({"a": torch.ones(3)})
    workers.reduce_scatter(total, 5, 1)
    assert workers.all_gather(total.value())["a"].tolist() == pytest.approx([1, 1, 1])
    assert workers.broadcast_bool(True)
    assert workers.all_reduce(2.5) == 2.5


@pytest.fixture(scope="module")
def three(tmp_path_factory, ranks):
    """Where the machine has another network, they are told to use it, and must not."""
    networks = [
        name for name, known in psutil.net_if_addrs().items() if socket.AF_INET in {one.family for one in known}
    ]
    known = dict.fromkeys(launch.SOCKETS, next((name for name in networks if name not in launch.LOOPBACK), "lo"))
    done = ranks(3, [str(SCRIPT), str(tmp_path_factory.mktemp("place"))], **known)
    assert all(one.returncode == 0 for one in done), [one.stderr for one in done]
    return [json.loads(one.stdout.splitlines()[-1]) for one in done]


def test_three_workers_have_the_bits_of_one(three):
    for found, _ in three:
        assert len(found) == 17
        assert all(found.values()), found


def test_what_does_not_fit_together_is_refused_by_all(three):
    for rank, (_, found) in enumerate(three):
        assert found["fewer"] == f"worker {rank} added 0 micro-batches in step 0, but was dealt 1 in step 0"
        assert found["undealt"] == f"worker {rank} added 1 micro-batches in step 1, but was dealt none"
        assert found["others"] == "the workers differ in step 1, in: participants"
        assert found["sizes"] == "the workers differ in step 1, in: participants"
        assert found["width"] == "the workers differ in step 1, in: number of parameters"
        assert found["share"] == "the workers differ in step 1, in: micro-batches dealt"
        assert found["other"] == ("this worker differs from the leader in: data" if rank == 2 else "")
        assert found["step"] == f"the workers differ in step {rank}, in: step"
        assert found["apart"] == "the workers' weights differ after step 3: their processors round differently"


def test_a_worker_that_sees_another_directory_is_refused(three):
    for _, found in three[1:]:
        assert Path(found["seen"]).is_dir()
        assert found["unseen"].startswith("this worker cannot read the leader's run directory")


def test_a_worker_with_another_owner_s_key_is_refused(three):
    for rank, (_, found) in enumerate(three[1:], start=1):
        assert re.match(f"the owner's key in .*home of {rank} differs from the leader's", found["owner"])


def pieces_of(inputs, participants, workers):
    """What the micro-batches of a step hold, in some order."""
    found = inputs.micro_batches(RunKey.from_seed(0), 0, participants, workers)
    return [tuple(None if one is None else one.numpy().tobytes() for one in piece) for piece in found]


@pytest.mark.parametrize("unit", ["example", "user"])
@pytest.mark.parametrize("views", [1, 3])
def test_the_workers_have_the_micro_batches_of_one(spots, unit, views):
    people = np.array([f"person {number % 23}" for number in range(200)])
    of_people = replace(spots, train=replace(spots.train, users=people), users=23)
    source = of_people if unit == "user" else spots
    known = {"examples": 23, "unit": User()} if unit == "user" else {"examples": 200}
    plan = PrivacyPlan.calibrate(batch_size=20, steps=2, noise_multiplier=2.0, delta=1e-3, **known)
    settings = Settings(model="linear", learning_rate=1.0, views=views, shift=1)
    job = prepare(None, source, plan, settings, threads=1, micro_batch=7)
    inputs, participants = (UserInputs if unit == "user" else Inputs)(job), np.arange(3, 20)
    alone = pieces_of(inputs, participants, Workers())
    shared = [pieces_of(inputs, participants, Workers(rank=rank, count=3)) for rank in range(3)]
    assert all(shared)
    assert sorted(piece for own in shared for piece in own) == sorted(alone)


def test_the_workers_have_the_clients_of_one():
    numbers = np.random.default_rng(0)
    users = np.sort(numbers.integers(0, 30, 200))
    rounds = Rounds(
        assign=assign_randomly(30, clients=7),
        users=UserRecords.from_numbers(users, np.arange(30), None),
        labels=np.arange(200),
        inputs=torch.from_numpy,
    )

    def clients(workers):
        dealt = rounds.micro_batches(RunKey.from_seed(0), 0, np.arange(30), workers)
        return [(inputs.tolist(), labels.tolist(), draws.random()) for inputs, labels, draws in dealt]

    shared = [clients(Workers(rank=rank, count=3)) for rank in range(3)]
    assert all(shared)
    assert sorted(own for worker in shared for own in worker) == sorted(clients(Workers()))


class TestTakingPart:
    @pytest.fixture
    def unfinished(self, spots, plan, options, tmp_path):
        """A run that was begun, and the job of it."""
        run = RunDirectory(tmp_path / "run")
        settings = Settings(model="linear", learning_rate=1.0)
        resume.begin(prepare(None, spots, plan, settings, Start.for_run(run, threads=1)), run)
        return prepare(None, spots, plan, settings, Start.for_run(run)), run

    def test_it_takes_all_steps_and_writes_nothing(self, unfinished):
        job, run = unfinished
        before = {path.name: path.read_bytes() for path in run.path.iterdir()}
        take_part(job, run, Workers(rank=1))
        assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before

    def test_with_another_key_it_is_refused(self, unfinished):
        job, run = unfinished
        (run / names.RUN_KEY).unlink()
        RunKey.fresh().save(run / names.RUN_KEY)
        with pytest.raises(SfumatoError, match="was replaced in the meantime"):
            take_part(job, run, Workers(rank=1))

    def test_with_another_run_s_checkpoint_it_is_refused(self, unfinished):
        job, run = unfinished
        checkpoint = Checkpoint.load(run / names.CHECKPOINT)
        replace(checkpoint, run="0" * 64).save(run / names.CHECKPOINT)
        with pytest.raises(SfumatoError, match="another run"):
            take_part(job, run, Workers(rank=1))
