"""Differences between systems: binary files, locks, durability, file modes, file names, and the memory of a process.

No other file checks the operating system. Replacements for missing modules and flags are here too.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
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
"""Offset of the byte to lock on Windows, where locked bytes cannot be read: beyond the end of all our files."""

AGAIN = 0.05
"""Seconds between attempts to lock, where the system cannot wait for a lock."""


def on_windows() -> bool:
    """Whether this is Windows."""
    return os.name == "nt"


def open_bytes(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a file in binary mode. In text mode, Windows would convert line breaks."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0), mode)


def lock(descriptor: int, *, wait: bool) -> None:
    """Lock an open file exclusively until it is closed.

    Args:
        wait: wait until the lock is free; otherwise raise `BlockingIOError` if another process holds it.

    Errors: `OSError` if the system or its file system has no locks.
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
    """Lock one byte beyond the end of the file. False if another process holds the lock."""
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


def fsync(descriptor: int) -> None:
    """Make written data durable. On macOS, `fsync` alone leaves data in the drive's cache."""
    whole = getattr(fcntl, "F_FULLFSYNC", None) if sys.platform == "darwin" else None
    if fcntl is not None and whole is not None:
        try:
            fcntl.fcntl(descriptor, whole)
            return
        except OSError as error:  # not supported, for example by a network file system
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(descriptor)


def fsync_directory(directory: Path) -> None:
    """Make name changes in this directory durable. Not needed on Windows, whose file system keeps a journal."""
    if on_windows():
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)


def exposed_mode(path: Path) -> int:
    """The mode of a secret file if other users have access to it, otherwise 0. Windows access lists are not checked."""
    mode = 0 if on_windows() else os.stat(path).st_mode & 0o777
    return mode if mode & 0o077 else 0


_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]')


def invalid_name_reason(name: str) -> str | None:
    """Why Windows does not allow this name (one part of a path) for a file or folder; None if it does.

    >>> [invalid_name_reason(name) for name in ("con.txt", "ward.", "8:30", "ward 3")]
    ['it is the name of a device', 'it ends with a dot or a space', "it holds ':'", None]
    """
    if _DEVICES.fullmatch(name.rstrip(" .")):
        return "it is the name of a device"
    if name not in (".", "..") and name.endswith((".", " ")):
        return "it ends with a dot or a space"
    odd = _FORBIDDEN.search(name)
    return f"it holds {odd[0]!r}" if odd else None


def refuse_forbidden(path: Path) -> None:
    """On Windows, refuse a path with a part that is not a valid name."""
    if not on_windows():
        return
    for part in path.parts[1:] if path.anchor else path.parts:
        if reason := invalid_name_reason(part):
            raise SfumatoError(
                f"{str(path)!r} has a part {part!r}, which is not a valid name on Windows: {reason}", "rename it"
            )


def read_at(descriptor: int, memory: memoryview, offset: int) -> int:
    """Read from an offset of a file into memory. Returns the number of bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [memory], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # nobody else uses the descriptor
    content = os.read(descriptor, min(len(memory), 1 << 24))
    memory[: len(content)] = content
    return len(content)


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the machine's, or the limit of its control groups and RLIMIT_AS.

    The limit of a container is the smallest limit along its control group's hierarchy, of version 1 or 2.

    Args:
        root: the directory that contains `proc` and `sys`.

    Returns:
        A practically unlimited number if the system reports no limit.
    """
    limits = [1 << 62]
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ImportError, OSError):
        import resource

        limits += [one for one in resource.getrlimit(resource.RLIMIT_AS) if one != resource.RLIM_INFINITY]
    groups = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                limits += _limits(groups, path, "memory.max")
            elif "memory" in controllers.split(","):
                limits += _limits(groups / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits(mounted: Path, path: str, name: str) -> Iterator[int]:
    """The limits of a control group and of its parents, as far as they are visible.

    Inside a container, the path from the machine may not exist. The first visible group is then the container's own.
    """
    group = mounted / path.strip("/")
    for place in [group, *group.parents[: len(group.parents) - len(mounted.parents)]]:
        with suppress(OSError, ValueError):  # "max", or no such file
            yield int((place / name).read_text("ascii"))
