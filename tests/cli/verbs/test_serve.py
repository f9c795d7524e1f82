"""`sfumato serve` from the command line."""

import json
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


def test_it_says_where_serves_and_ends_in_order(run):
    pytest.importorskip("uvicorn", reason="sfumato[serve] is not installed")
    command = [sys.executable, "-m", "sfumato", "serve", f"{run}/model.safetensors", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"{said['url']}/readyz") as answer:
            assert json.load(answer) == {"status": "ready"}
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=60)
    assert (said["key"], rest, errors) == (False, "", "")
    assert process.returncode in (0, -signal.SIGTERM)


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
