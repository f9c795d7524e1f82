"""What knows whole sets of records again, in whatever parts and order they come."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

from sfumato.data.identity.codes import LENGTH
from sfumato.data.parts import Part
from sfumato.data.source import own_codes
from sfumato.data.subsets.users import user_codes


def digests(owner_key: bytes, *parts: Part) -> tuple[str, str]:
    """`Source.stored_digest` and `Source.pixels`."""
    codes = np.concatenate([own_codes(part, owner_key) for part in parts])
    stored, pixels = ([code.tobytes() for code in some] for some in (codes[:, :LENGTH], codes[:, LENGTH:]))
    return _together(owner_key, b"material", stored), _together(owner_key, b"material", pixels)


def assignment(owner_key: bytes, *parts: Part) -> str:
    """`Source.assignment`."""
    whose = [user_codes(part, owner_key) for part in parts]
    pairs = [
        code.tobytes() + user.encode()
        for part, users in zip(parts, whose, strict=True)
        if users is not None
        for code, user in zip(own_codes(part, owner_key)[:, :LENGTH], users, strict=True)
    ]
    return "" if any(users is None for users in whose) else _together(owner_key, b"assignment", pairs)


def _together(owner_key: bytes, what: bytes, members: list[bytes]) -> str:
    return hmac.new(owner_key, what + b"".join(sorted(members)), hashlib.sha256).hexdigest()
