"""Workers that take a step together have the bits of one, or refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.gradients import GridSum
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
    workers.total(total, 5, 1)
    assert workers.whole(total.value())["a"].tolist() == pytest.approx([1, 1, 1])
    assert workers.agreed(True)
    assert workers.added(2.5) == 2.5


@pytest.fixture(scope="module")
def three(tmp_path_factory, ranks):
    done = ranks(3, [str(SCRIPT), str(tmp_path_factory.mktemp("place"))])
    assert all(one.returncode == 0 for one in done), [one.stderr for one in done]
    return [json.loads(one.stdout.splitlines()[-1]) for one in done]


def test_three_workers_have_the_bits_of_one(three):
    for found, _ in three:
        assert len(found) == 12
        assert all(found.values()), found


def test_what_does_not_fit_together_is_refused_by_all(three):
    for rank, (_, found) in enumerate(three):
        assert found["fewer"] == f"worker {rank} has added 0 micro-batches in step 0, and was dealt 1 in step 0"
        assert found["undealt"] == f"worker {rank} has added 1 micro-batches in step 1, and was dealt none"
        assert found["others"] == "the workers differ in step 1, in: participants"
        assert found["sizes"] == "the workers differ in step 1, in: participants"
        assert found["width"] == "the workers differ in step 1, in: number of parameters"
        assert found["share"] == "the workers differ in step 1, in: share of them"
        assert found["step"] == f"the workers differ in step {rank}, in: step"
        assert found["apart"] == "after step 3 the workers hold different weights: their processors round differently"


def test_a_worker_that_sees_another_directory_is_refused(three):
    for _, found in three[1:]:
        assert Path(found["seen"]).is_dir()
        assert found["unseen"].startswith("it does not see the leader's run directory")
