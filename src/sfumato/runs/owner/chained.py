"""Files of lines of which none may be lost or changed: each is sealed with the owner's key over the one before it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import held_alone, ordinary, sync_directory
from sfumato._systems import durable, open_bytes
from sfumato.randomness import owner_key
from sfumato.randomness.keys import home
from sfumato.runs.owner import standing
from sfumato.runs.owner.uses import torn

SEAL = "seal"


class Chained:
    """The lines of such a file, read; to be added to while it is held (`held`).

    Args:
        path: the file.
        what: what it is called in refusals.
        content: its bytes.
    """

    def __init__(self, path: Path, what: str, content: bytes):
        self._path, self._what, self._key = path, what, owner_key()
        self._file: BinaryIO | None = None
        self.entries: list[dict[str, Any]] = []
        self.seals: list[str] = []
        for number, line in enumerate(content.split(b"\n"), start=1):
            if not line or torn(line):  # cut short, so that what it was written for had not begun
                continue
            try:
                entry = parse_json(line)
                seal = entry.pop(SEAL)
                if not hmac.compare_digest(seal, self._sealed(entry)):
                    raise ValueError("it was changed, or does not follow the line before it")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise SfumatoError(
                    f"line {number} of {what} {path} cannot be read ({error})",
                    "restore the file, and the owner's key beside it, from a copy",
                ) from None
            self.entries.append(entry)
            self.seals.append(seal)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Another line, safely on disk."""
        assert self._file is not None, "a file is added to while it is held"
        seal = self._sealed(entry)
        try:
            # The line break comes first as well: a line that was cut short must not swallow this one.
            self._file.write(f"\n{json.dumps({**entry, SEAL: seal})}\n".encode())
            self._file.flush()
            durable(self._file.fileno())
        except OSError as error:
            raise _refused(self._path, self._what, error) from None
        self.entries.append(dict(entry))
        self.seals.append(seal)
        name, count = f"{self._path.parent.name}/{self._path.name}", len(self.seals)
        standing.moved(home(), name, before=count - 1, after=count, last=seal)

    def _sealed(self, entry: Mapping[str, Any]) -> str:
        """The code of this entry after those before it."""
        text = json.dumps([self.seals[-1] if self.seals else "", entry], sort_keys=True)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def read(path: Path, what: str) -> Chained:
    """The file as it is; without lines where there is none."""
    return Chained(path, what, ordinary(path).read_bytes() if path.exists() else b"")


@contextmanager
def held(path: Path, what: str) -> Iterator[Chained]:
    """The file, which no other process reads to add to until this is over; made where there is none.

    Errors: `SfumatoError` where it cannot be written, or where the system has no lock for it: two processes would
    count without each other.
    """
    try:
        standing.begin(home())
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = not path.exists()
        file = open(open_bytes(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _refused(path, what, error) from None
    with file:
        try:
            held_alone(file.fileno(), f"{what} {path}")
            if made:
                sync_directory(path.parent)
            content = file.read()
        except OSError as error:
            raise _refused(path, what, error) from None
        chained = Chained(path, what, content)
        chained._file = file
        yield chained


def _refused(path: Path, what: str, error: OSError) -> SfumatoError:
    return SfumatoError(
        f"{what} {path} cannot be held and extended ({error.strerror or error})",
        "free some space, mend its permissions, or keep it on a file system with locks",
    )
