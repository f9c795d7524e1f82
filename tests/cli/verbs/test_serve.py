"""`sfumato serve` from the command line."""

import json
import os
import signal
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sfumato.cli import main


def test_it_says_where_serves_and_ends_in_order(run, capsys, monkeypatch):
    """By SIGTERM, as whoever runs it as a service ends it."""
    pytest.importorskip("uvicorn", reason="sfumato[serve] is not installed")
    from sfumato.serving import server

    found: list[Any] = []

    def asked(listener) -> str:
        def ask() -> None:
            with urllib.request.urlopen(f"{url}/readyz") as answer:
                found.append(json.load(answer))
            os.kill(os.getpid(), signal.SIGTERM)

        url = address(listener)
        threading.Thread(target=ask).start()
        return url

    address = server.address
    monkeypatch.setattr(server, "address", asked)
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))  # uvicorn raises it again at its end
    try:
        assert main(["serve", f"{run}/model.safetensors", "--port", "0", "--json"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    printed = capsys.readouterr()
    said = json.loads(printed.out)
    assert said["url"].startswith("http://127.0.0.1:")
    assert (said["key"], printed.err) == (False, "")
    assert found == [{"status": "ready"}, signal.SIGTERM]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--max-body 0", "--max-body must be positive"),
        ("--queue 0", "--queue must be at least 1, got 0"),
        ("--threads 0", "--threads must be at least 1, got 0"),
        ("--api-key-file none", "the API key none does not exist; create one"),
    ],
)
def test_what_cannot_be_served_is_refused(call, run, options, words):
    assert words in call(f"serve {run} {options}", status=1)


@pytest.mark.parametrize(("options", "expected"), [("--threads 2", 2), ("--threads 1", 1), ("", 3)])
def test_the_model_has_so_many_threads(call, run, monkeypatch, options, expected):
    from sfumato.serving import server
    from sfumato.training.preparation import prepare

    found: list[int] = []

    def ended(ready, listener) -> None:  # batches are computed in a thread of their own
        with ThreadPoolExecutor(1) as apart:
            found.append(apart.submit(torch.get_num_threads).result())
        listener.close()

    monkeypatch.setattr(server, "server", lambda service: None)  # uvicorn keeps the standard error that it finds
    monkeypatch.setattr(server, "serve", ended)
    monkeypatch.setattr(prepare, "default_threads", lambda: 3)
    with prepare.own_threads():
        call(f"serve {run}/model.safetensors --port 0 {options}")
    assert found == [expected]
