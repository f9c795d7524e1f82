"""What tells a record from others without saying anything of it to whoever lacks the owner's key; and train or test,
decided for each record alone by a keyed hash of it.

A record has two codes. The first is made of what is stored, so a copied file has it again; the split goes by it. The
second is made of the image's own pixels, so that the same images are known again in another format: as files, as
arrays, as PNG or lossless TIFF. Neither depends on the size that a source brings its images to. A text's are made of
the text, and of its words.

A split by counting or shuffling lets one record decide where the others go: take it away and another one crosses from
the test part to the training part. Then two neighbouring data sets differ in more than one record, and the theorem for
one record no longer applies. Here a record's place is a function of the record and of the owner's key, nothing else.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

import numpy as np

from sfumato.data.identity.owners import named
from sfumato.data.texts.tokens import WORD

LENGTH = 16
"""Bytes of each of the two."""


def stored_code(owner_key: bytes, content: bytes) -> bytes:
    """16 bytes of what is stored: a file's bytes, or an array's."""
    return hmac.digest(owner_key, b"record" + content, "sha256")[:LENGTH]


def pixel_code(owner_key: bytes, pixels: np.ndarray) -> bytes:
    """16 bytes of an image's pixels uint8 (H, W, C), at its own size; of one colour channel where all are equal."""
    grey = pixels.shape[2] == 1 or bool((pixels == pixels[:, :, :1]).all())
    shown = np.ascontiguousarray(pixels[:, :, :1] if grey else pixels)
    return hmac.digest(owner_key, f"pixels {shown.shape}".encode() + shown.tobytes(), "sha256")[:LENGTH]


def word_code(owner_key: bytes, text: str) -> bytes:
    """16 bytes of a text's words, in lower case: the same for another spacing and other punctuation."""
    return hmac.digest(owner_key, b"words" + " ".join(WORD.findall(text.lower())).encode(), "sha256")[:LENGTH]


def user_code(owner_key: bytes, user: str) -> str:
    """32 hexadecimal digits that tell a user from others: the same in every source that calls them alike."""
    return hmac.digest(owner_key, b"user code" + user.encode(), "sha256")[:LENGTH].hex()


def codes_of(owner_key: bytes, stored: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Both codes uint8 (N, 32) of images in arrays.

    Args:
        stored: (N, ...), as they are stored.
        pixels: uint8 (N, H, W, C), the same in eight bits.
    """
    both = (stored_code(owner_key, one.tobytes()) + pixel_code(owner_key, two) for one, two in zip(stored, pixels))  # noqa: B905
    return as_array(both)


def as_array(codes: Iterable[bytes]) -> np.ndarray:
    """Codes of 32 bytes as uint8 (N, 32)."""
    return np.frombuffer(b"".join(codes), np.uint8).reshape(-1, 2 * LENGTH)


def known_again(codes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which records, bool (N,), are among others by either of their codes; both uint8 (N, 32).

    >>> own, others = np.arange(96, dtype=np.uint8).reshape(3, 32), np.zeros((1, 32), np.uint8)
    >>> others[0, 16:] = own[1, 16:]
    >>> known_again(own, others).tolist()
    [False, True, False]
    """
    if not len(codes) or not len(among):
        return np.zeros(len(codes), bool)
    one, other = (np.ascontiguousarray(array).view(f"V{LENGTH}") for array in (codes, among))
    return np.asarray(np.isin(one, other).any(axis=1))


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
