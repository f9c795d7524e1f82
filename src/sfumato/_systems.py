"""What differs between Linux, macOS and Windows: bytes, locks, what is durable, modes, names, how a file is renamed.

No other file asks which system it runs on. Where a module or a flag is missing, what takes its place is here too.
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
except ImportError:  # all others
    msvcrt = None

BEYOND = 0x7FFF_FFFE
"""The byte that is locked where a lock keeps others from reading too: no file of ours is as long."""

AGAIN = 0.05
"""Seconds between two tries for a lock that somebody holds, where the system cannot wait by itself."""


def on_windows() -> bool:
    """Whether this is Windows."""
    return os.name == "nt"


def open_bytes(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """A descriptor for bytes: on Windows one would otherwise write each line break as two of them."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0), mode)


def lock(descriptor: int, *, wait: bool) -> None:
    """Hold an open file until it is closed, alone among all who ask for that.

    Args:
        wait: until it is free; without it `BlockingIOError` is raised where another process holds it.

    Errors: `OSError` where the file system, or the system, has no locks.
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
    """Lock one byte far beyond the end: what is locked there others cannot read. False where another has it."""
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
    """Have what was written survive a power cut: on macOS `fsync` alone leaves it in the memory of the disk."""
    whole = getattr(fcntl, "F_FULLFSYNC", None) if sys.platform == "darwin" else None
    if fcntl is not None and whole is not None:
        try:
            fcntl.fcntl(descriptor, whole)
            return
        except OSError as error:  # a file system that has none, such as a network's
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(descriptor)


def durable_names(directory: Path) -> None:
    """Make what was named, renamed or removed in this directory durable; Windows opens none, and keeps a journal."""
    if on_windows():
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        durable(descriptor)
    finally:
        os.close(descriptor)


def renamed(descriptor: int, path: Path, to: Path) -> int:
    """Rename a file that is open, over another one, and give its descriptor: Windows renames none that is open."""
    if not on_windows():
        os.replace(path, to)
        return descriptor
    os.close(descriptor)
    os.replace(path, to)
    return open_bytes(to, os.O_WRONLY)


def open_to_others(path: Path) -> int:
    """The mode of a secret's file where others may use it, else 0. Access lists of Windows are not looked at."""
    mode = 0 if on_windows() else os.stat(path).st_mode & 0o777
    return mode if mode & 0o077 else 0


_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]')


def forbidden(name: str) -> str | None:
    """Why Windows has no file or folder of this name (one part of a path); None where it has.

    >>> forbidden("con.txt"), forbidden("ward."), forbidden("8:30"), forbidden("ward 3")
    ('it is that of a device', 'it ends with a dot or a space', "it holds ':'", None)
    """
    if _DEVICES.fullmatch(name.rstrip(" .")):
        return "it is that of a device"
    if name not in (".", "..") and name.endswith((".", " ")):
        return "it ends with a dot or a space"
    odd = _FORBIDDEN.search(name)
    return f"it holds {odd[0]!r}" if odd else None


def refuse_forbidden(path: Path) -> None:
    """Refuse, on Windows, a path of which a part can be no file's or folder's name there."""
    if not on_windows():
        return
    for part in path.parts[1:] if path.anchor else path.parts:
        if reason := forbidden(part):
            raise SfumatoError(
                f"{str(path)!r} has a part {part!r}, which Windows has no file for: {reason}", "rename it"
            )


def read_at(descriptor: int, memory: memoryview, offset: int) -> int:
    """Read into memory from this place of a file on; how many bytes there were."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [memory], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # the descriptor is this reader's own
    content = os.read(descriptor, min(len(memory), 1 << 24))
    memory[: len(content)] = content
    return len(content)
