"""Atomic and durable writing of files, and checks of files to read."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sfumato import _systems
from sfumato._checks import SfumatoError, parse_json

_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def refuse_special(known: os.stat_result, name: str) -> None:
    """Refuse a pipe, a socket or a device, since reading it might never end. Raises `IsADirectoryError` for a folder.

    Args:
        known: the status of the file.
        name: the name in the error message.
    """
    kind = stat.S_IFMT(known.st_mode)
    if kind in _SPECIAL:
        raise SfumatoError(f"{name} is {_SPECIAL[kind]}", "name an ordinary file, or remove it")
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)


def regular_file(path: str | os.PathLike[str]) -> Path:
    """The path, if it is an ordinary file.

    Errors: `OSError` if there is no accessible file, `SfumatoError` for a pipe, a socket or a device.
    """
    refuse_special(os.stat(path), str(path))
    return Path(path)


@contextmanager
def path_errors(name: str, absent: str, folder: str = "") -> Iterator[None]:
    """Converts errors of the system to errors that name the file.

    Args:
        absent: remedy if the file does not exist.
        folder: remedy if it is a folder.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise SfumatoError(f"{name} does not exist", absent) from None
    except PermissionError:
        raise SfumatoError(f"{name} may not be read", "check its permissions") from None
    except OSError as problem:
        if folder and isinstance(problem, IsADirectoryError):
            raise SfumatoError(f"{name} is a folder", folder) from None
        reason = problem.strerror or problem
        raise SfumatoError(f"{name} cannot be read ({reason})", "check the file and its disk") from None


def read_json(path: str | os.PathLike[str], name: str, remedy: str) -> Any:
    """The content of a JSON file.

    Args:
        name: the name in error messages.
        remedy: for a file that does not exist or holds something else.
    """
    with path_errors(name, remedy, remedy):
        content = regular_file(path).read_bytes()
    try:
        return parse_json(content.decode("utf-8"))
    except ValueError:
        raise SfumatoError(f"{name} is not valid JSON", remedy) from None


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn `OSError` into a `SfumatoError` with a remedy."""
    try:
        yield
    except SfumatoError:
        raise
    except OSError as error:
        remedy = "choose a `directory` that can be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space; unfinished work continues when the command is given again"
        raise SfumatoError(f"{path} cannot be written ({error.strerror or error})", remedy) from None


def write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file atomically and durably: write and sync a temporary file, then rename it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with write_errors(path):
        try:
            descriptor = _systems.open_bytes(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                _systems.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def lock_exclusively(descriptor: int, name: str, *, wait: bool = True) -> None:
    """Lock an open file. Closing the file releases the lock.

    Args:
        name: the name of the file in the error message.
        wait: wait for other processes; otherwise raise `BlockingIOError` if one of them holds the lock.
    """
    try:
        _systems.lock(descriptor, wait=wait)
    except BlockingIOError:
        raise
    except OSError as error:
        raise SfumatoError(
            f"{name} is on a file system without locks ({error.strerror}), where two processes could corrupt it",
            "move its directory to another file system",
        ) from None


_HOLE = bytes(8)
"""A run of zero bytes that a single changed byte cannot produce. Lines of text contain none."""


def whole_lines(content: bytes) -> bytes:
    """The completely written lines of a text file that is only appended to.

    A last line without a line break was cut off by a kill or a full disk. Zero bytes, at the end or several in a row,
    appear where the power failed before the data reached the disk. The bytes after them were not synced either.

    >>> whole_lines(b'{"step": 0}\\n{"st'), whole_lines(b'{"step": 0}\\n' + bytes(12) + b'\\n{"step": 2}\\n')
    (b'{"step": 0}\\n', b'{"step": 0}\\n')
    """
    written = content.rstrip(b"\0").partition(_HOLE)[0]
    return written[: written.rfind(b"\n") + 1]


def make_directory(path: Path, *, private: bool = False) -> None:
    """Make a missing directory and its missing parents, durably: sync the parent of each."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True, mode=0o700 if private else 0o777)
        sync_directory(one.parent)


def sync_directory(path: Path) -> None:
    """Make created, renamed and removed names in this directory durable."""
    _systems.fsync_directory(path)


def machine_id() -> str:
    """An identifier of this machine since its last boot. Machines with the same host name differ."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        boot = f"{uuid.getnode():x}"
    return f"{socket.gethostname()} {boot}"
