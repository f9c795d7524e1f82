"""How workers come together, and what is said where they don't."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from sfumato import SfumatoError
from sfumato._devices import STORE
from sfumato.training import launch, rendezvous


@pytest.fixture
def place(tmp_path, monkeypatch):
    """They meet by a file, and don't wait for long."""
    monkeypatch.setenv(STORE, str(tmp_path / "store"))
    monkeypatch.setattr(rendezvous, "TOGETHER", timedelta(seconds=1))
    return tmp_path


def all_of(count):
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda rank: rendezvous.meet(rank, count, lambda: None), range(count)))


def test_all_of_them_know_who_they_are(place):
    for met in all_of(3):
        assert met.machines == 1
        assert [name.partition(" (")[0] for name in met.names] == ["worker 0", "worker 1", "worker 2"]
        assert all(f"on {socket.gethostname()})" in name for name in met.names)


def test_machines_of_one_name_are_two(place, monkeypatch):
    boots = iter("aab")
    monkeypatch.setattr(rendezvous, "machine_id", lambda: f"host {next(boots)}")
    assert {met.machines for met in all_of(3)} == {2}


def test_who_has_not_come_is_named(place):
    with pytest.raises(SfumatoError, match=r"of 3 workers these did not arrive within 0:00:01: 1, 2; start as many"):
        rendezvous.meet(0, 3, lambda: None)


def test_what_is_lost_while_it_waits_is_raised(place):
    with pytest.raises(SfumatoError, match="worker 1 was killed"):
        rendezvous.meet(0, 2, lambda: SfumatoError("worker 1 was killed", "again"))


@pytest.fixture
def first_of_two(monkeypatch):
    """The environment of the first one, as torchrun gives it."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.delenv(STORE, raising=False)


def test_a_port_in_use_is_named(first_of_two, monkeypatch):
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with (
            pytest.raises(
                SfumatoError, match=f"^MASTER_PORT is {port}, but another program listens on that port on .*; give"
            ),
            launch.join_workers(),
        ):
            pass


@pytest.mark.parametrize(("name", "value"), [("MASTER_ADDR", ""), ("MASTER_PORT", "many")])
def test_an_environment_without_address_or_port_is_refused(first_of_two, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    expected = f"WORLD_SIZE is 2, with MASTER_ADDR .*{value}.*; start the processes with"
    with pytest.raises(SfumatoError, match=expected), launch.join_workers():
        pass
