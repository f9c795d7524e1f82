"""Who is at something for long is waited for; who shows no sign of life is not."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch import distributed

from sfumato import SfumatoError
from sfumato.training import rendezvous
from sfumato.training.rendezvous import Heartbeats

SCRIPT = Path(__file__).with_name("stopped.py")
NAMES = ["worker 0 (process 7 on a)", "worker 1 (process 8 on b)"]


class Work:
    """An operation with the others that is done after so many seconds, or fails."""

    def __init__(self, seconds: float, error: Exception | None = None):
        self.done, self.error = time.monotonic() + seconds, error

    def is_completed(self) -> bool:
        return time.monotonic() >= self.done

    def wait(self, timeout: timedelta | None = None) -> None:
        left = self.done - time.monotonic()
        if timeout is not None and left > timeout.total_seconds():
            time.sleep(timeout.total_seconds())
            raise RuntimeError("Operation timed out!")
        time.sleep(max(0.0, left))
        if self.error is not None:
            raise self.error


@pytest.fixture
def two(tmp_path, monkeypatch):
    """The signs of two workers, who look often."""
    for name, value in (("BEAT", 0.05), ("LOOK", 0.05), ("SILENCE", 0.5)):
        monkeypatch.setattr(rendezvous, name, value)
    store = distributed.FileStore(str(tmp_path / "store"), 2)
    both = [Heartbeats(store, rank, NAMES) for rank in range(2)]
    yield both
    for one in both:
        one.close()


def test_a_worker_that_is_long_at_something_is_waited_for(two):
    two[0].wait_for(Work(0.8))


def test_one_that_shows_no_sign_of_life_is_named(two):
    two[1].close()
    with pytest.raises(SfumatoError, match=r"^worker 1 \(process 8 on b\) has sent no heartbeat for 0 seconds"):
        two[0].wait_for(Work(60.0))


def test_its_thread_has_ended_when_it_is_closed(two):
    for one in two:
        one.close()
        assert not one._thread.is_alive()


def test_what_an_operation_fails_of_is_raised(two):
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        two[0].wait_for(Work(0.2, RuntimeError("Connection closed by peer")))


def test_a_meeting_place_that_is_silent_is_named(two):
    class Silent:
        def multi_get(self, keys):
            raise RuntimeError("wait timeout after 500ms, keys")

    two[0]._store = Silent()
    with pytest.raises(SfumatoError, match=r"the workers. store, in worker 0 .* has not answered"):
        two[0].wait_for(Work(60.0))


def test_a_worker_that_was_stopped_ends_the_others_with_its_name(ranks):
    first, second = ranks(2, [str(SCRIPT)])
    assert (first.returncode, second.returncode) == (0, -signal.SIGKILL), first.stderr
    (line,) = first.stdout.splitlines()
    process = line.partition(":")[0]
    assert f"worker 1 (process {process} on " in line
    assert "has sent no heartbeat for 3 seconds: it was stopped, or its machine is out of reach; end it, and " in line
    assert "the run resumes from its last checkpoint" in line
