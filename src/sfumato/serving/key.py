"""The API key of a server. Its file must be readable by the owner only; keys are compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, regular_file
from sfumato._systems import exposed_mode

SHORTEST = 16


class ApiKey:
    """The key that requests must present.

    Args:
        path: a file that holds the key as its only line and that only its owner can read.

    Raises:
        SfumatoError: the file cannot be read, can be read by others, or is not one line of at least 16 ASCII characters
            without spaces.
    """

    def __init__(self, path: str | Path):
        file, remedy = Path(path), "create one: openssl rand -hex 32 > PATH; chmod 600 PATH"
        with path_errors(f"the API key {file}", remedy, remedy):
            text = regular_file(file).read_text("utf-8", errors="replace").strip()
        if mode := exposed_mode(file):
            raise SfumatoError(f"the API key {file} can be read by others (mode {mode:03o})", f"chmod 600 {file}")
        if len(text) < SHORTEST or len(text.split()) != 1 or not text.isascii():
            raise SfumatoError(f"the API key {file} must be one line of at least {SHORTEST} ASCII characters", remedy)
        self._digest = hashlib.sha256(text.encode()).digest()

    def matches(self, presented: str) -> bool:
        """Whether the presented key is this key, compared in constant time."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)

    def __repr__(self) -> str:
        return "ApiKey(secret)"
