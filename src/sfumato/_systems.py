"""Differences between Linux, macOS and Windows: binary files, locks, durability, file modes, file names, renames.

No other file checks which system it runs on. Substitutes for missing modules and flags are here too.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from pathlib import Path
from types import ModuleType

from sfumato._checks import SfumatoError

fcntl: ModuleType | None
msvcrt: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
try:
    import msvcrt
except ImportError:  # other systems
    msvcrt = None

BEYOND = 0x7FFF_FFFE
"""The byte to lock where a lock also prevents reading: beyond the end of all our files."""

AGAIN = 0.05
"""Seconds between two attempts to lock, where the system cannot wait by itself."""


def on_windows() -> bool:
    """Whether this is Windows."""
    return os.name == "nt"


def open_bytes(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """A descriptor for bytes. Otherwise Windows would convert line breaks."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0), mode)


def lock(descriptor: int, *, wait: bool) -> None:
    """Lock an open file exclusively until it is closed.

    Args:
        wait: wait until it is free; otherwise raise `BlockingIOError` if another process holds it.

    Errors: `OSError` if the file system, or the system, has no locks.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    if msvcrt is None:
        raise OSError(errno.ENOLCK, "there are no locks on this system")
    while not _locked(msvcrt, descriptor):
        if not wait:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        time.sleep(AGAIN)


def _locked(system: ModuleType, descriptor: int) -> bool:
    """Lock one byte far beyond the end, because locked bytes cannot be read. False if another process has it."""
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, BEYOND, os.SEEK_SET)
        system.locking(descriptor, system.LK_NBLCK, 1)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EDEADLK):
            return False
        raise
    finally:
        os.lseek(descriptor, place, os.SEEK_SET)
    return True


def durable(descriptor: int) -> None:
    """Make written data survive a power cut. On macOS, `fsync` alone leaves it in the memory of the disk."""
    whole = getattr(fcntl, "F_FULLFSYNC", None) if sys.platform == "darwin" else None
    if fcntl is not None and whole is not None:
        try:
            fcntl.fcntl(descriptor, whole)
            return
        except OSError as error:  # a file system without it, such as a network file system
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(descriptor)


def durable_names(directory: Path) -> None:
    """Make name changes in this directory durable. Not needed on Windows, which keeps a journal."""
    if on_windows():
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        durable(descriptor)
    finally:
        os.close(descriptor)


def renamed(descriptor: int, path: Path, to: Path) -> int:
    """Rename an open file over another one and return its descriptor. Windows requires closing it in between."""
    if not on_windows():
        os.replace(path, to)
        return descriptor
    os.close(descriptor)
    os.replace(path, to)
    return open_bytes(to, os.O_WRONLY)


def open_to_others(path: Path) -> int:
    """The mode of a secret file if others may use it, otherwise 0. Does not examine Windows access lists."""
    mode = 0 if on_windows() else os.stat(path).st_mode & 0o777
    return mode if mode & 0o077 else 0


_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]')


def forbidden(name: str) -> str | None:
    """Why a file or folder of this name (one part of a path) cannot exist on Windows; None if it can.

    >>> forbidden("con.txt"), forbidden("ward."), forbidden("8:30"), forbidden("ward 3")
    ('it is the name of a device', 'it ends with a dot or a space', "it holds ':'", None)
    """
    if _DEVICES.fullmatch(name.rstrip(" .")):
        return "it is the name of a device"
    if name not in (".", "..") and name.endswith((".", " ")):
        return "it ends with a dot or a space"
    odd = _FORBIDDEN.search(name)
    return f"it holds {odd[0]!r}" if odd else None


def refuse_forbidden(path: Path) -> None:
    """On Windows, refuse a path with a part that cannot be the name of a file or folder."""
    if not on_windows():
        return
    for part in path.parts[1:] if path.anchor else path.parts:
        if reason := forbidden(part):
            raise SfumatoError(
                f"{str(path)!r} has a part {part!r}, which is not a valid name on Windows: {reason}", "rename it"
            )


def read_at(descriptor: int, memory: memoryview, offset: int) -> int:
    """Read into memory from an offset of a file. Returns the number of bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [memory], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # the descriptor belongs to this reader alone
    content = os.read(descriptor, min(len(memory), 1 << 24))
    memory[: len(content)] = content
    return len(content)
