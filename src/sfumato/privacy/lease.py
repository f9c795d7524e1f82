"""A lease: one writer at a time even where the system's locks do nothing, as on some network file systems.

The holder writes a file with a secret token, updates a counter in it every few seconds as a sign of life, and checks
before each line that it writes whether the token is still its own. A process that finds another one's lease watches it.
If the file changes, its holder is alive, and the run is refused. If it does not, the lease is taken over, and the
former holder writes nothing more even if it wakes up. No clock of another machine is used.

The token is not in the ledger: a ledger line is a function only of the lines before it and of the event. So if two
writers write the same line after all (one of them slept between its check and its line), it is the same line at the
same place.
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
from sfumato._files import machine_id, write_errors
from sfumato._systems import fsync, on_windows, open_bytes, rename_open

BEAT = 5.0
"""Seconds between two signs of life."""
WATCH = 90.0
"""Seconds after which an unchanged lease is taken over."""


def _discard(line: str) -> None:
    """Discards the line."""


class Lease:
    """The right to write one run, held until `release`.

    Args:
        path: the lease file.
        notify: receives a line about anything slow or unusual.

    **Guarantee.** `check_held` returns only while the file holds this holder's token. Between a check and the line
    after it, another process can take over only after `WATCH` seconds in which this process has not moved at all.

    Errors: `SfumatoError` if another process holds it.
    """

    def __init__(self, path: Path, notify: Callable[[str], None] = _discard):
        self.path, self._token, self._beats = path, secrets.token_hex(16), 0
        self._identity = {"process": os.getpid(), "host": socket.gethostname(), "machine": _process_scope()}
        self._stopped = threading.Event()
        with write_errors(path):
            self._file = self._acquire(notify)
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def check_held(self) -> None:
        """Refuse if another process holds the lease by now."""
        content = _read(self.path)
        if content is None or content.get("token") != self._token:
            raise SfumatoError(
                f"{_describe(content)} has taken over the run in {self.path.parent} from this process, which showed no "
                f"sign of life for {WATCH:.0f} seconds",
                "let that process finish; nothing was lost, and nothing is paid twice",
            )

    def release(self) -> None:
        """Give up the lease."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        os.close(self._file)
        content = _read(self.path)
        if content is not None and content.get("token") == self._token:
            self.path.unlink(missing_ok=True)

    def _content(self) -> bytes:
        content = {**self._identity, "token": self._token, "beat": f"{self._beats:012}"}  # constant length
        return json.dumps(content).encode() + b"\n"

    def _acquire(self, notify: Callable[[str], None]) -> int:
        """The open file, now this holder's. If two processes come at once, the later one gets it, and `check_held`
        tells the other."""
        self._watch(notify)
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = open_bytes(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, self._content())
        fsync(descriptor)
        return rename_open(descriptor, temporary, self.path)

    def _watch(self, notify: Callable[[str], None]) -> None:
        """Wait until the lease's holder is certainly gone. Refuses if the holder is alive."""
        before, deadline = _read(self.path), time.monotonic() + WATCH
        if _has_ended(before):
            return
        notify(
            f"{_describe(before)} holds the run in {self.path.parent}: waiting {WATCH:.0f} s to see whether it is alive"
        )
        while time.monotonic() < deadline:
            time.sleep(min(0.2, WATCH / 10))
            if (now := _read(self.path)) is None:
                return
            if now != before:
                raise SfumatoError(
                    f"another process is writing the run in {self.path.parent}: {_describe(now)}",
                    "wait for it to end, or stop it first",
                )
        notify(f"taking over the run in {self.path.parent} from {_describe(before)}, which shows no sign of life")

    def _beat(self) -> None:
        """Write a sign of life again and again to the file that this process has opened."""
        while not self._stopped.wait(BEAT):
            self._beats += 1
            with contextlib.suppress(OSError):  # if it fails, others will take the lease, and `check_held` says so
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, self._content())
                fsync(self._file)


def _read(path: Path) -> dict[str, Any] | None:
    """The content of a lease; None if there is no file, and empty while it is being written."""
    try:
        content = json.loads(path.read_bytes())
        return content if isinstance(content, dict) else {}
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}


def _describe(content: dict[str, Any] | None) -> str:
    """The holder of a lease, in words."""
    if not content:
        return "another process"
    return f"process {content.get('process')} on {content.get('host')}"


def _has_ended(content: dict[str, Any] | None) -> bool:
    """Whether the lease belongs to a process of this machine that has ended. Then nobody needs to wait."""
    if content is None:
        return True
    process, here = content.get("process"), _process_scope()
    if not (isinstance(process, int) and here and content.get("machine") == here):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _process_scope() -> str:
    """The scope in which a process number is meaningful: this machine and its container; empty if unknown."""
    if on_windows():
        return ""
    try:
        return f"{machine_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return machine_id()
