"""`sfumato serve` from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import pytest


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
        ("--queue 3", "--queue 3 has no room for a batch of 64"),
        ("--api-key-file none", "the API key none does not exist; make one"),
    ],
)
def test_what_cannot_be_served_is_refused(call, run, options, words):
    assert words in call(f"serve {run} {options}", status=1)
