"""Whether the hub answers: by itself, or through a proxy."""

from __future__ import annotations

import socket

import pytest

from sfumato.data.readers import huggingface

NOWHERE = "nowhere.invalid"
"""No name ends like this (RFC 2606)."""


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
    return f"127.0.0.1:{number}"


def test_a_server_answers_or_does_not(listening, closed, monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)
    assert huggingface.answers(f"https://{listening}")
    assert not huggingface.answers(f"https://{closed}")
    assert not huggingface.answers(f"https://{NOWHERE}")
    assert not huggingface.answers(f"https://{NOWHERE}:port")


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_what_is_reached_by_a_proxy_is_asked_of_it(listening, closed, scheme, monkeypatch):
    for name in ("HTTPS_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"{scheme}{listening}")
    assert huggingface.answers(f"https://{NOWHERE}")
    monkeypatch.setenv("https_proxy", f"{scheme}{closed}")
    assert not huggingface.answers(f"https://{listening}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert huggingface.answers(f"https://{listening}")
