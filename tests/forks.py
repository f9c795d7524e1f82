"""Scripts in processes of their own that need not import torch and the package again: forks of one that has them.

As a script this is that one. It reads requests from standard input, one JSON object a line, and answers each by one
line: `start` forks a process that runs a script (gives its number), `wait` waits for its end (gives its exit status).
"""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODULES = ("sfumato.cli", "sfumato.training.run", "sfumato.training.launch", "matplotlib.figure", "timm")
"""What takes seconds to import; with timm come torchvision and torch's compiler."""
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""Of the environment: a process that has used CUDA cannot be forked."""
LONGEST = 300.0
"""How long a process may take, in seconds, before it is killed."""


class Forks:
    """The processes that a server of these has forked."""

    def __init__(self, server: subprocess.Popen[str], scratch: Path) -> None:
        self._server, self._scratch, self._count = server, scratch, 0

    def start(self, script: str, *arguments: str, **environment: str) -> tuple[int, Path]:
        """Run a script with this environment besides that of the test; its number, and where its output goes (`.0` and
        `.1` behind that)."""
        self._count += 1
        printed = self._scratch / f"{self._count}"
        known = {
            "environment": os.environ | environment | HIDDEN,
            "printed": [f"{printed}.{stream}" for stream in range(2)],
        }
        return self._ask(start={"script": script, "arguments": arguments, **known}), printed

    def join(self, process: int, printed: Path) -> subprocess.CompletedProcess[str]:
        """Its end, and what it has printed."""
        said = [Path(f"{printed}.{stream}") for stream in range(2)]
        status = self._ask(wait=process)
        return subprocess.CompletedProcess((), status, *(path.read_text() if path.exists() else "" for path in said))

    def _ask(self, **request: object) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


@contextmanager
def begun(scratch: Path) -> Iterator[Forks]:
    """A server of forks, whose processes print into files of this directory."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, __file__], **pipes, text=True, env=os.environ | HIDDEN) as server:
        yield Forks(server, scratch)


def run(script: str, arguments: list[str], environment: dict[str, str], printed: list[str]) -> int:
    """Run a script in this process as a program, with these files for its output; returns its exit status."""
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in enumerate((os.devnull, *printed)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
    sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(script)
    status: object = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else 1


def ended(process: int) -> int:
    """The exit status of a process, once it has one."""
    until = time.monotonic() + LONGEST
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def without_plots() -> None:
    """Those of a run's page take longer than all else of a small run."""
    from sfumato.report.sections import result
    from sfumato.training.conclusion import run_report

    result.curve = lambda *_: ""
    run_report.true_positive_rates = lambda _, rates: [1.0 for _ in rates]


def on_the_coarse_grid() -> None:
    """As in the tests themselves (`coarse_losses`)."""
    from sfumato.privacy import loss

    epsilon = loss._epsilon
    loss._epsilon = lambda *given: epsilon(*given[:-1], max(given[-1], loss.COARSE_GRID))  # type: ignore[assignment]


def serve() -> None:
    """Answer requests until there are no more."""
    for name in MODULES:
        importlib.import_module(name)
    without_plots()
    on_the_coarse_grid()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = ended(request["wait"])
        else:
            answer = os.fork()
            if answer == 0:
                os._exit(run(**request["start"]))
        print(answer, flush=True)
    os._exit(0)  # at once: Python's own end takes seconds for so many modules


if __name__ == "__main__":
    serve()
