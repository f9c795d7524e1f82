"""The key that a server asks for: read from a file that others may not read, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato._files import ordinary
from sfumato._systems import open_to_others

SHORTEST = 16


class ApiKey:
    """A key that requests must bring.

    Args:
        path: of a file with the key as its only line, for its owner's eyes alone.

    Errors: `SfumatoError` for a file that cannot be read, that others may read, or that holds anything but one line of
    at least 16 letters of ASCII without spaces.
    """

    def __init__(self, path: str | Path):
        place, make = Path(path), "make one: openssl rand -hex 32 > PATH; chmod 600 PATH"
        try:
            text = ordinary(place).read_text("ascii").strip()
        except FileNotFoundError:
            raise SfumatoError(f"the API key {place} does not exist", make) from None
        except OSError as error:
            raise SfumatoError(f"the API key {place} cannot be read ({error.strerror})", make) from None
        except UnicodeDecodeError:
            raise SfumatoError(f"the API key {place} is no text of ASCII", make) from None
        if mode := open_to_others(place):
            raise SfumatoError(f"the API key {place} may be read by others (mode {mode:03o})", f"chmod 600 {place}")
        if len(text) < SHORTEST or len(text.split()) != 1:
            raise SfumatoError(f"the API key {place} must be one line of at least {SHORTEST} letters", make)
        self._digest = hashlib.sha256(text.encode()).digest()

    def fits(self, given: str) -> bool:
        """Whether this is the key. How long that takes says nothing of where they differ."""
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)

    def __repr__(self) -> str:
        return "ApiKey(secret)"
