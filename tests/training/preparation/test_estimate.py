"""What a run will take, with one process and with several."""

from unittest import mock

import pytest

from sfumato import PrivacyPlan
from sfumato.experiment.settings import Settings
from sfumato.training import launch
from sfumato.training.preparation import estimate as estimates
from sfumato.training.preparation.estimate import estimate, idle_warning
from sfumato.training.preparation.prepare import prepare
from sfumato.training.workers import Workers


@pytest.fixture
def job(spots):
    """Fifty examples a step in micro-batches of 8, which are seven."""
    plan = PrivacyPlan.calibrate(examples=200, batch_size=50, steps=10, noise_multiplier=2.0, delta=1e-3)
    return prepare(None, spots, plan, Settings(model="cnn", learning_rate=1.0), threads=1, micro_batch=8)


@pytest.mark.parametrize(("processes", "examples"), [(1, 50), (2, 32), (3, 24), (7, 8), (9, 8)])
def test_of_several_processes_the_one_with_the_most_counts(job, processes, examples):
    """By a clock by which eight examples, and the whole noise, take eight seconds each."""
    with (
        mock.patch.object(launch, "current_workers", return_value=Workers(rank=0, count=processes)),
        mock.patch.object(estimates, "seconds_of", return_value=8.0),
    ):
        found = estimate(job)
    assert found.seconds == pytest.approx(10 * (examples + 8 / processes))
    assert (found.micro_batches, found.processes) == (7, processes)


def test_processes_that_have_nothing_to_do_are_named(job):
    assert [idle_warning(job, count) for count in (1, 2, 7)] == [None] * 3
    expected = "1 of 8 processes is idle in most steps, which have only 7 micro-batches: start fewer, or begin with "
    assert idle_warning(job, 8) == f"{expected}a smaller --micro-batch"
    assert "2 of 9 processes are idle" in (idle_warning(job, 9) or "")
