"""Train or test, decided for each record alone by a keyed hash of it.

A split by counting or shuffling lets one record decide where the others go: take it away and another one crosses from
the test part to the training part. Then two neighbouring data sets differ in more than one record, and the theorem for
one record no longer applies. Here a record's place is a function of the record and of the owner's key, nothing else.
"""

from __future__ import annotations

import hmac

from sfumato.data.identity.owners import named


def position(owner_key: bytes, content: bytes) -> float:
    """A record's place in [0, 1): uniform over keys, the same for equal contents, unrelated for different ones.

    **Guarantee.** The place depends on this record's content and the key alone, so adding, removing or replacing one
    record moves no other (unit: one record; adjacency: any). Copies of one image always fall on the same side.

    Args:
        owner_key: the owner's secret (32 bytes).
        content: the record's own bytes, for example those of its file.

    >>> position(bytes(32), b"an image") == position(bytes(32), b"an image")
    True
    """
    digest = hmac.digest(owner_key, b"split" + content, "sha256")
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def in_test(owner_key: bytes, content: bytes, test_fraction: float) -> bool:
    """Whether a record belongs to the test part, which holds the expected share `test_fraction` of all records.

    >>> sum(in_test(bytes(32), str(number).encode(), 0.2) for number in range(1000))
    172
    """
    return position(owner_key, content) < test_fraction


def record_in_test(owner_key: bytes, content: bytes, user: str | None, test_fraction: float) -> bool | None:
    """Whether a record belongs to the test part: by its user where that is known, else by its own content.

    All records of one user fall on one side, else the test part would show people that the model has met. A record with
    users on both sides is in neither part, and one of nobody goes by its own content.

    **Guarantee.** As in `position`; where users are known, adding or removing all records of one user moves nobody
    else's (unit: one record, or one user; adjacency: add-or-remove). A record of several users goes by these alone.

    Args:
        content: what is stored of the record.
        user: whose record it is, or whose, as `owners.spelt` has them; None where nobody knows.

    Returns:
        None where it is left out.
    """
    users = () if user is None else named(user)
    if not users:
        return in_test(owner_key, b"image" + content, test_fraction)
    sides = {in_test(owner_key, b"user" + name.encode(), test_fraction) for name in users}
    return sides.pop() if len(sides) == 1 else None
