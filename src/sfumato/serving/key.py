"""The API key of a server. Its file must be readable by the owner only; keys are compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato._files import regular_file
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
        try:
            text = regular_file(file).read_text("ascii").strip()
        except FileNotFoundError:
            raise SfumatoError(f"the API key {file} does not exist", remedy) from None
        except OSError as error:
            raise SfumatoError(f"the API key {file} cannot be read ({error.strerror})", remedy) from None
        except UnicodeDecodeError:
            raise SfumatoError(f"the API key {file} is not ASCII text", remedy) from None
        if mode := exposed_mode(file):
            raise SfumatoError(f"the API key {file} can be read by others (mode {mode:03o})", f"chmod 600 {file}")
        if len(text) < SHORTEST or len(text.split()) != 1:
            raise SfumatoError(f"the API key {file} must be one line of at least {SHORTEST} characters", remedy)
        self._digest = hashlib.sha256(text.encode()).digest()

    def matches(self, presented: str) -> bool:
        """Whether the presented key is this key, compared in constant time."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)

    def __repr__(self) -> str:
        return "ApiKey(secret)"
