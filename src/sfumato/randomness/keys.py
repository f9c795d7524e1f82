"""Keys: the key of one run, and the owner's key, which outlives runs."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from sfumato._checks import SfumatoError, whole_number
from sfumato._files import make_directory, regular_file, sync_directory
from sfumato._systems import exposed_mode, fsync, open_bytes

KEY_BYTES = 32
HOME_VARIABLE = "SFUMATO_HOME"


class RunKey:
    """The 256-bit secret from which a run draws all its randomness.

    **Guarantee.** Each (stream, step, name) has its own counter-based generator (Philox 4x64), keyed and positioned by
    HMAC-SHA512 of the whole key: 320 derived bits. If HMAC-SHA512 is a pseudo-random function, draws of different
    streams, steps and names are independent of each other, and no draw helps to find the key.

    >>> key = RunKey.from_seed(0)
    >>> first, again = (key.generator("noise", 3, "weight").integers(100, size=5) for _ in range(2))
    >>> first.tolist() == again.tolist()
    True
    """

    def __init__(self, secret: bytes):
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            raise SfumatoError(
                f"a run key must be {KEY_BYTES} bytes, got {type(secret).__name__} of another kind or length",
                "use RunKey.fresh() or RunKey.from_seed(seed)",
            )
        self._secret = secret
        self._openings: tuple[tuple[int, str], ...] = ()

    def with_salts(self, openings: Sequence[tuple[int, str]]) -> RunKey:
        """The same key, for steps opened with these salts. Each opening is its first step and 128 bits in hex."""
        key = RunKey(self._secret)
        key._openings = tuple(openings)
        return key

    def for_step(self, step: int) -> RunKey:
        """The key from which a step draws its noise and its participants.

        **Guarantee.** It depends on the salt of the latest opening at or before the step, and each opening of an
        unseeded run has its own salt. So if two copies of an unfinished run continue, the steps that neither had paid
        have different noise and coins in each copy. A step that is repeated keeps its noise and coins.
        """
        salts = [salt for first, salt in self._openings if first <= step]
        if not salts:
            return self
        return RunKey(hmac.new(self._secret, b"opening" + bytes.fromhex(salts[-1]), hashlib.sha256).digest())

    @classmethod
    def fresh(cls) -> RunKey:
        """A new secret from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int, context: str = "") -> RunKey:
        """A key for repeatable experiments, which have no guarantee.

        `context` names what the draws are for (plan, data, settings). With the seed alone, two runs on different data
        would share their noise, and the difference of their models would show the data without any noise. No context is
        complete, so whoever sees two runs with one seed may see through their noise without knowing the seed.
        """
        whole_number(least=None, seed=seed, remedy="give a number such as 0")
        return cls(hashlib.sha256(f"sfumato seed {seed} {context}".encode()).digest())

    def _derive(self, stream: str, step: int, name: str) -> bytes:
        message = b"".join(struct.pack(">Q", len(part)) + part for part in (stream.encode(), name.encode()))
        return hmac.new(self._secret, message + struct.pack(">q", step), hashlib.sha512).digest()

    def generator(self, stream: str, step: int, name: str = "") -> np.random.Generator:
        """The generator for one stream, step and name, always in the same state."""
        derived = np.frombuffer(self._derive(stream, step, name)[:40], dtype=np.uint64)
        counter = np.concatenate([np.zeros(1, np.uint64), derived[2:]])
        return np.random.Generator(np.random.Philox(key=derived[:2], counter=counter))

    def xof_seed(self, stream: str, step: int, name: str = "") -> bytes:
        """512 derived bits, to key a function with output of any length (SHAKE-256)."""
        return self._derive(stream, step, name)

    def uint64_words(self, stream: str, step: int, name: str = "") -> np.ndarray:
        """256 derived bits as four uint64 numbers, to key another library's generator."""
        return np.frombuffer(self._derive(stream, step, name)[:32], dtype=np.uint64)

    def seed(self, stream: str, step: int, name: str = "") -> int:
        """63 derived bits for generators that accept no more: initial weights, a model's own draws; never the noise."""
        return int.from_bytes(self._derive(stream, step, name)[:8], "big") >> 1

    def check_value(self, run: str) -> str:
        """64 hexadecimal digits by which a run recognises its key. They reveal nothing about the key or its draws."""
        return self._derive("check", 0, run)[:32].hex()

    @property
    def bits(self) -> int:
        """The width of the secret."""
        return 8 * KEY_BYTES

    def save(self, path: Path) -> None:
        """Write the key to a file that only its owner can read (mode 0600)."""
        _write_secret(path, self._secret)

    @classmethod
    def load(cls, path: Path) -> RunKey:
        """Read a key back, and close its file to others. Refuses a missing or damaged file."""
        try:
            with suppress(OSError):
                os.chmod(path, 0o600)  # a copy of the run may have lost the mode
            return cls(bytes.fromhex(regular_file(path).read_text("ascii").strip()))
        except (OSError, ValueError) as error:
            state = "cannot be read" if isinstance(error, PermissionError) else "is missing or damaged"
            raise SfumatoError(
                f"the run key {path} {state}, so the run cannot continue without drawing noise twice",
                "finish the run with the steps it has (sfumato finish RUN), or start another run",
            ) from None

    def __repr__(self) -> str:
        return "RunKey(secret)"


def home() -> Path:
    """The owner's directory: $SFUMATO_HOME, otherwise sfumato/ in the user's configuration directory."""
    variable = os.environ.get(HOME_VARIABLE)
    if variable:
        return Path(variable)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "sfumato"


OWNER_KEY = "owner.key"
LISTS = ("lists.json", "uses.jsonl", "budgets/*.jsonl", "used-records/*.npy", "trained-on/*.npy")
"""Files beside the owner's key that are useless without it."""


def lists_in(directory: Path) -> list[Path]:
    """The non-empty lists in an owner's directory."""
    return [path for pattern in LISTS for path in sorted(directory.glob(pattern)) if path.stat().st_size]


def owner_key(directory: Path | None = None) -> bytes:
    """The owner's 256-bit key, created at first use. It keys fingerprints and splits. Never kept in run directories."""
    path = (directory or home()) / OWNER_KEY
    lists = lists_in(path.parent)  # searched first: lists are created after their key
    if not path.exists():
        if lists:
            names = [entry.relative_to(path.parent).parts[0] for entry in lists]
            raise SfumatoError(
                f"the owner's key {path} is missing, but lists that depend on it are there "
                f"({', '.join(dict.fromkeys(names))})",
                "restore the key from a copy. With a different key the split changes, former test records are trained "
                "on, and no total includes the runs so far: sfumato doctor --new-key sets the lists aside and makes "
                "one",
            )
        try:
            make_directory(path.parent, private=True)
            _write_secret(path, secrets.token_bytes(KEY_BYTES))
        except FileExistsError:
            pass
        except OSError as error:
            raise SfumatoError(
                f"the owner's key cannot be created at {path} ({error.strerror})",
                f"point {HOME_VARIABLE} to a private, writable directory",
            ) from None
    try:
        key = bytes.fromhex(regular_file(path).read_text("ascii").strip())
        if len(key) != KEY_BYTES:
            raise ValueError
    except (OSError, ValueError):
        raise SfumatoError(
            f"the owner's key {path} cannot be read or is damaged",
            "restore it from a copy, or move it away to create another one (earlier runs then cannot be resumed)",
        ) from None
    if mode := exposed_mode(path):
        raise SfumatoError(
            f"the owner's key {path} is open to others (mode {mode:03o})",
            f"close it (chmod 600 {path}), or point {HOME_VARIABLE} to a directory whose file system keeps modes",
        )
    return key


def _write_secret(path: Path, secret: bytes) -> None:
    """Write to a temporary file that only the owner can read, then link it into place: durable, never over another."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = open_bytes(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secret.hex() + "\n")
            file.flush()
            fsync(file.fileno())
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
        sync_directory(path.parent)
