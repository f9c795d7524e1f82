"""Two commands on one run directory where the system's locks do nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from sfumato.privacy.ledger import read

WITHOUT_LOCKS = """
import sys
from sfumato import _systems
from sfumato.privacy import lease
from sfumato.runs.owner import store
# The owner's lists lie on another file system.
store.lock_exclusively = lambda *given: None
_systems.fcntl, lease.BEAT, lease.WATCH = None, 0.2, 2.0
from sfumato.cli import main
sys.exit(main(sys.argv[1:]))
"""
OPTIONS = ("--model", "cnn", "--steps", "60", "--batch-size", "100", "--threads", "1", "--epsilon", "5", "--seed", "3")


@pytest.mark.slow
def test_one_that_was_stopped_loses_the_run_to_the_next_and_pays_nothing_twice(arrays, tmp_path):
    run, command = tmp_path / "run", [sys.executable, "-c", WITHOUT_LOCKS, "train"]
    known = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, arrays, *OPTIONS, "--output", str(run)], **known) as first:
        while not (run / "ledger.jsonl").exists() or len(read(run / "ledger.jsonl")) < 8:
            assert first.poll() is None
            time.sleep(0.02)
        first.send_signal(signal.SIGSTOP)
        second = subprocess.run([*command, str(run)], check=False, **known)
        first.send_signal(signal.SIGCONT)
        _, printed = first.communicate(timeout=120)
    assert second.returncode == 0, second.stderr
    assert re.search(rf"taking over the run in .* from process {first.pid} on {os.uname().nodename}", second.stderr)
    assert first.returncode == 1
    assert re.search("error: another process has taken over the run in .* nothing is paid twice", printed)
    verified = subprocess.run([sys.executable, "-m", "sfumato", "verify", str(run)], check=False, **known)
    assert verified.returncode == 0, verified.stderr  # in a process of its own: those before have the fine grid too
