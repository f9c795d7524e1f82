"""By what data sets are known again, without telling anybody else what they are: by all of them, in whatever parts and
order they come, or as they stand (the fingerprint)."""

from __future__ import annotations

import hashlib
import hmac
import json

import numpy as np

from sfumato.data.declared import OnProgress
from sfumato.data.identity.codes import LENGTH
from sfumato.data.parts import Part
from sfumato.data.source import own_codes
from sfumato.data.subsets.users import user_codes

_BLOCK = 1024


def fingerprint(
    owner_key: bytes,
    train: Part,
    test: Part,
    classes: tuple[str, ...],
    progress: OnProgress | None = None,
) -> str:
    """HMAC-SHA256 over every pixel, label, user, group and time stamp in order, the parts, class names and shapes.

    A plain hash of private data is a release: whoever holds a candidate data set can confirm it. Under the owner's key
    the value looks random to everybody else, so it may stand in a record that is published; the owner, and nobody
    else, can tell that two runs used the same data.

    Args:
        owner_key: the owner's secret (32 bytes).
        train, test: the two parts; images (N, H, W, C), or texts (N, T).
        classes: the class names.
        progress: called with (records, records in all).

    Returns:
        64 hexadecimal digits.

    >>> from sfumato.data.records import Records
    >>> part = Records(images=np.zeros((1, 8, 8, 1), np.uint8), labels=np.array([0]))
    >>> len(fingerprint(bytes(32), part, part, ("a", "b")))
    64
    """
    code = hmac.new(owner_key, b"fingerprint", hashlib.sha256)
    # JSON of fixed form with every length in it, so that no two data sets give the same stream of bytes.
    parts = {"train": train, "test": test}
    users = {name: None if part.users is None else part.users.tolist() for name, part in parts.items()}
    shapes = {name: list(part.shape) for name, part in parts.items()}
    always = {"classes": list(classes), "shapes": shapes, "users": users}
    times = {name: [str(time) for time in part.times] for name, part in parts.items() if part.times is not None}
    groups = {name: part.groups.tolist() for name, part in parts.items() if part.groups is not None}
    matrices = {name: list(part.labels.shape) for name, part in parts.items() if part.labels.ndim > 1}
    known = (("times", times), ("groups", groups), ("labels", matrices))
    further = {name: some for name, some in known if some}
    header = json.dumps(always | further, sort_keys=True).encode()
    code.update(len(header).to_bytes(8, "big"))
    code.update(header)
    done, total = 0, len(train) + len(test)
    for part in parts.values():
        code.update(np.ascontiguousarray(part.labels, dtype="<i8").data)
        for start in range(0, len(part), _BLOCK):
            pixels = part.take(slice(start, start + _BLOCK))
            code.update(np.ascontiguousarray(pixels).data)
            done += len(pixels)
            if progress is not None:
                progress(done, total)
    return code.hexdigest()


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
