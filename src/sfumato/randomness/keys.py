"""Keys: the run key of one run, and the owner's key, which outlives runs."""

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

from sfumato._checks import SfumatoError
from sfumato._files import make_directory, ordinary, sync_directory
from sfumato._systems import durable, open_bytes, open_to_others

KEY_BYTES = 32
HOME_VARIABLE = "SFUMATO_HOME"


class RunKey:
    """The 256-bit secret from which a run draws everything random.

    **Guarantee.** Each (stream, step, name) has a counter-based generator (Philox 4x64) of its own, keyed and placed by
    HMAC-SHA512 of the whole key: 320 derived bits. Under the assumption that HMAC-SHA512 is a pseudo-random function,
    draws of different streams, steps and names are independent of each other, and no draw helps to find the key.

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

    def opened(self, openings: Sequence[tuple[int, str]]) -> RunKey:
        """The same key, for steps that were opened with these salts: of each the first step, and 128 bits in hex."""
        key = RunKey(self._secret)
        key._openings = tuple(openings)
        return key

    def at(self, step: int) -> RunKey:
        """The key by which a step draws its noise and its participants' coins.

        **Guarantee.** It depends on the salt of the latest opening at or before the step, and each opening of an
        unseeded run has a salt of its own. So where two copies of an unfinished run go on, the steps that neither had
        paid have noise and coins of their own in each; a step that is taken again has those that it had.
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
        """A key for experiments that are to be repeated, and that promise nothing.

        `context` names what they are drawn for (plan, data, settings): with the seed alone, two runs on different
        data would share their noise, and the difference of their models would show the data without any. No context is
        complete, so whoever sees two runs by one seed may see through their noise without knowing it.
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise SfumatoError(f"seed must be a whole number, got {seed!r}", "give a number such as 0")
        return cls(hashlib.sha256(f"sfumato seed {seed} {context}".encode()).digest())

    def _derive(self, stream: str, step: int, name: str) -> bytes:
        message = b"".join(struct.pack(">Q", len(part)) + part for part in (stream.encode(), name.encode()))
        return hmac.new(self._secret, message + struct.pack(">q", step), hashlib.sha512).digest()

    def generator(self, stream: str, step: int, name: str = "") -> np.random.Generator:
        """The generator of one stream at one step for one name, always in the same state."""
        derived = np.frombuffer(self._derive(stream, step, name)[:40], dtype=np.uint64)
        counter = np.concatenate([np.zeros(1, np.uint64), derived[2:]])
        return np.random.Generator(np.random.Philox(key=derived[:2], counter=counter))

    def extendable(self, stream: str, step: int, name: str = "") -> bytes:
        """512 derived bits, to key a function whose output is as long as is wanted (SHAKE-256)."""
        return self._derive(stream, step, name)

    def words(self, stream: str, step: int, name: str = "") -> np.ndarray:
        """256 derived bits as four numbers of uint64, to key a generator of someone else's."""
        return np.frombuffer(self._derive(stream, step, name)[:32], dtype=np.uint64)

    def seed(self, stream: str, step: int, name: str = "") -> int:
        """63 derived bits for generators that take no more: initial weights, a model's own draws; never the noise."""
        return int.from_bytes(self._derive(stream, step, name)[:8], "big") >> 1

    def check_value(self, run: str) -> str:
        """64 hexadecimal digits by which a run knows its key again; they tell nothing of the key or its draws."""
        return self._derive("check", 0, run)[:32].hex()

    @property
    def bits(self) -> int:
        """The width of the secret."""
        return 8 * KEY_BYTES

    def save(self, path: Path) -> None:
        """Write the key for its owner's eyes only (mode 0600)."""
        _write_secret(path, self._secret)

    @classmethod
    def load(cls, path: Path) -> RunKey:
        """Read a key back, and close the file to others; a missing or damaged one ends the run."""
        try:
            with suppress(OSError):
                os.chmod(path, 0o600)  # a copy of the run may have lost the mode
            return cls(bytes.fromhex(ordinary(path).read_text("ascii").strip()))
        except (OSError, ValueError) as error:
            if isinstance(error, PermissionError):
                raise SfumatoError(f"the run key {path} cannot be read", "run as the user who began the run") from None
            raise SfumatoError(
                f"the run key {path} is missing or damaged, so the run cannot go on without drawing twice",
                "end it with what it has (sfumato finish RUN), or start another run",
            ) from None

    def __repr__(self) -> str:
        return "RunKey(secret)"


def home() -> Path:
    """The owner's directory: $SFUMATO_HOME, else sfumato/ in the user's configuration directory."""
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "sfumato"


OWNER_KEY = "owner.key"
LISTS = ("lists.json", "uses.jsonl", "used-records/*.npy", "trained-on/*.npy")
"""What is kept beside the owner's key, and is of no use with another one."""


def lists_in(directory: Path) -> list[Path]:
    """Those that lie in an owner's directory."""
    return [path for pattern in LISTS for path in sorted(directory.glob(pattern)) if path.stat().st_size]


def owner_key(directory: Path | None = None) -> bytes:
    """The owner's 256-bit key, made at first use. It keys fingerprints and splits, and stays out of run directories."""
    path = (directory or home()) / OWNER_KEY
    lists = lists_in(path.parent)  # looked for first: they come after their key
    if not path.exists():
        if lists:
            names = [one.relative_to(path.parent).parts[0] for one in lists]
            raise SfumatoError(
                f"the owner's key {path} is missing, and lists under it lie there ({', '.join(dict.fromkeys(names))})",
                "restore it from a copy; with another one the split changes, former test records are trained on, and "
                "no total has the runs so far: sfumato doctor --new-key lays the lists aside and makes one",
            )
        try:
            make_directory(path.parent, private=True)
            _write_secret(path, secrets.token_bytes(KEY_BYTES))
        except FileExistsError:
            pass
        except OSError as error:
            raise SfumatoError(
                f"the owner's key cannot be made at {path} ({error.strerror})",
                f"point {HOME_VARIABLE} to a private directory that can be written",
            ) from None
    try:
        key = bytes.fromhex(ordinary(path).read_text("ascii").strip())
        if len(key) != KEY_BYTES:
            raise ValueError
    except (OSError, ValueError):
        raise SfumatoError(
            f"the owner's key {path} cannot be read or is damaged",
            "restore it from a copy, or move it away to have another made (earlier runs then cannot be resumed)",
        ) from None
    if mode := open_to_others(path):
        raise SfumatoError(
            f"the owner's key {path} is open to others (mode {mode:03o})",
            f"close it (chmod 600 {path}), or point {HOME_VARIABLE} to a directory whose file system keeps modes",
        )
    return key


def _write_secret(path: Path, secret: bytes) -> None:
    """Write to a neighbour that only the owner can read, then link it into place: whole, durably, over no other."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = open_bytes(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secret.hex() + "\n")
            file.flush()
            durable(file.fileno())
        os.link(beside, path)
    finally:
        os.unlink(beside)
        sync_directory(path.parent)
