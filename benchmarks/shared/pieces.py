"""A benchmark in pieces, as one command that goes on where it stopped.

A call does what is left until its minutes are up, and says what is still to be done; no piece is begun that could not
be interrupted in time. What is finished stands in one file for each machine and is not measured again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
import tyro

from benchmarks import RESULTS
from benchmarks.shared import measuring

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds that a process has to write its last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, where, and for how long."""

    place: Annotated[Path, tyro.conf.Positional]
    """keeps runs, caches and logs between calls"""
    only: tuple[str, ...] = ()
    """some of the pieces"""
    minutes: float = 9.0
    """how long this call may take"""
    device: Literal["cuda", "cpu"] = "cuda"
    tiny: bool = False
    """a size for which a processor is enough"""
    results: Path = RESULTS
    """where the figures go"""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Path):  # processes run in the repository's root, wherever the call is made
                object.__setattr__(self, name, value.resolve())


class TimeIsUpError(Exception):
    """The call's minutes are over; the piece goes on in the next one."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call: its options, and when it must end."""

    options: Options
    until: float

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def run(self, name: str, command: Sequence[str], *, shown: bool = False, **environment: str) -> str:
        """What a process printed; it is interrupted when the time is up. Its output is added to PLACE/NAME.log.

        Args:
            shown: whether it prints to the terminal, as it goes, and nothing is returned.
        """
        out = None if shown else subprocess.PIPE
        if self.left < PATIENCE / 2:
            raise TimeIsUpError
        log = self.options.place / f"{name.replace('/', '-')}.log"
        with (
            log.open("a") as talk,
            subprocess.Popen(
                list(command), stdout=out, stderr=talk, text=True, env=os.environ | environment, cwd=ROOT
            ) as process,
        ):
            try:
                printed, _ = process.communicate(timeout=max(1.0, self.left - PATIENCE / 2))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=PATIENCE)
                process.kill()
                raise TimeIsUpError from None
        with log.open("a") as talk:
            talk.write(printed or "")
        return printed or ""

    def last(self, name: str, command: Sequence[str]) -> Any:
        """The last line that `run` returns, which is JSON; `CannotError` with the log's last line if there is none."""
        if lines := self.run(name, command).splitlines():
            return json.loads(lines[-1])
        said = (self.options.place / f"{name.replace('/', '-')}.log").read_text().splitlines()
        raise measuring.CannotError(said[-1] if said else "it printed nothing")


Piece = Callable[[Call], dict[str, Any]]


def measure(options: Options, pieces: Iterable[tuple[str, Piece]], what: str) -> int:
    """Measure what is left of the pieces, by name, until the minutes are up. Writes results/WHAT-MACHINE.json.

    Returns:
        1 if pieces were tried and all of them failed, else 0. Where none has ever been measured, nothing is written.
    """
    options.place.mkdir(parents=True, exist_ok=True)
    machine = measuring.machine(options.device)
    path = options.results / f"{'tiny-' if options.tiny else ''}{what}-{measuring.machine_name(machine)}.json"
    found = json.loads(path.read_text()) if path.exists() else {"machine": machine, "pieces": {}}
    call = Call(options=options, until=time.monotonic() + 60 * options.minutes)
    left, failed, done = list[str](), list[str](), 0
    for name, piece in pieces:
        known = found["pieces"].get(name, {"reason": "not yet measured"})
        if "reason" not in known or (options.only and name.partition(":")[0] not in options.only):
            continue
        try:
            row = piece(call)
        except TimeIsUpError:
            left.append(name)
            continue
        except Exception as error:
            row = {"reason": measuring.reason(error)}
            failed.append(name)
        done += "reason" not in row
        found["pieces"][name] = row
        if any("reason" not in known for known in found["pieces"].values()):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(f"{name:<24}{json.dumps(row)}"[:220], flush=True)
    if failed:
        print(f"error: {len(failed)} failed: {', '.join(failed)}; their logs are in {options.place}")
    if left or not failed:
        print(f"left for the next call: {', '.join(left)}" if left else f"all done: {path}")
    return int(bool(failed) and not done)


Given = TypeVar("Given", bound=Options)


def options_of(kind: type[Given], description: str | None) -> Given:
    """Of the command line. Refuses a GPU that is not there."""
    options = tyro.cli(kind, description=description)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("error: torch sees no GPU; give --device cpu --tiny to try the command")
    return options
