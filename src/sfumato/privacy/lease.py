"""A lease: one writer at a time also where the system's locks do nothing, as on some network file systems.

Its holder writes a file with a secret token, shows in it every few seconds that it is alive, and looks before each
line that it writes whether the token is still its own. Whoever finds the lease of another one watches it: where it
moves, its holder is alive, and the run is refused; where it does not, it is taken over, and its holder, should it wake
up, writes nothing more. No clock of another machine is looked at.

The token is in no ledger: a ledger's line is a function of the lines before it and of the event alone, so a line that
two writers have written nevertheless, one of them asleep between its look and its line, is the same line at the same
place.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._files import machine, writing
from sfumato._systems import durable, on_windows, open_bytes, renamed

BEAT = 5.0
"""Seconds from one sign of life to the next."""
WATCH = 90.0
"""Seconds after which a lease that has not moved is taken over."""


def _silent(line: str) -> None:
    """Tells nobody."""


class Lease:
    """The right to write one run, held until `release`.

    Args:
        path: of the lease's file.
        notify: is told, in a line, of what takes long or is not as usual.

    **Guarantee.** `require` returns only while the file has this holder's token. Between a look and the line after it
    another one may take over only after `WATCH` seconds in which this process has not moved at all.

    Errors: `SfumatoError` where another process holds it.
    """

    def __init__(self, path: Path, notify: Callable[[str], None] = _silent):
        self.path, self._token, self._beats = path, secrets.token_hex(16), 0
        self._known = {"process": os.getpid(), "host": socket.gethostname(), "machine": _processes_here()}
        self._over = threading.Event()
        with writing(path):
            self._file = self._taken(notify)
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Refuses where the lease is another one's by now."""
        found = _read(self.path)
        if found is None or found.get("token") != self._token:
            raise SfumatoError(
                f"{_named(found)} has taken over the run in {self.path.parent} from this process, which has not moved "
                f"for {WATCH:.0f} seconds",
                "let that one finish; nothing was lost, and nothing is paid twice",
            )

    def release(self) -> None:
        """Give it back."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        os.close(self._file)
        found = _read(self.path)
        if found is not None and found.get("token") == self._token:
            self.path.unlink(missing_ok=True)

    def _content(self) -> bytes:
        known = {**self._known, "token": self._token, "beat": f"{self._beats:012}"}  # always as long as before
        return json.dumps(known).encode() + b"\n"

    def _taken(self, notify: Callable[[str], None]) -> int:
        """The open file, which is this holder's. Of two who come at once the later one has it, and `require` tells the
        other."""
        self._watch(notify)
        beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = open_bytes(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, self._content())
        durable(descriptor)
        return renamed(descriptor, beside, self.path)

    def _watch(self, notify: Callable[[str], None]) -> None:
        """Until it is sure that the one who holds the lease is gone; refuses where it is alive."""
        before, deadline = _read(self.path), time.monotonic() + WATCH
        if _gone(before):
            return
        notify(f"{_named(before)} holds the run in {self.path.parent}: watching for {WATCH:.0f} s whether it is alive")
        while time.monotonic() < deadline:
            time.sleep(min(0.2, WATCH / 10))
            if (now := _read(self.path)) is None:
                return
            if now != before:
                raise SfumatoError(
                    f"another process is writing the run in {self.path.parent}: {_named(now)}",
                    "wait for it to end, or stop it first",
                )
        notify(f"taking over the run in {self.path.parent} from {_named(before)}, which shows no sign of life")

    def _live(self) -> None:
        """Show again and again, in the file that this process has opened, that it is alive."""
        while not self._over.wait(BEAT):
            self._beats += 1
            with contextlib.suppress(OSError):  # where it fails, others will take the lease, and `require` says so
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, self._content())
                durable(self._file)


def _read(path: Path) -> dict[str, Any] | None:
    """What a lease says; None where there is none, and nothing of one that is being written."""
    try:
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}


def _named(found: dict[str, Any] | None) -> str:
    """Whose a lease is, in words."""
    if not found:
        return "another process"
    return f"process {found.get('process')} on {found.get('host')}"


def _gone(found: dict[str, Any] | None) -> bool:
    """Whether a lease is of a process of this machine that has ended: then nobody need be waited for."""
    if found is None:
        return True
    process, here = found.get("process"), _processes_here()
    if not (isinstance(process, int) and here and found.get("machine") == here):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _processes_here() -> str:
    """Where a process's number means something: this machine, and in it the container; empty where that is unknown."""
    if on_windows():
        return ""
    try:
        return f"{machine()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return machine()
