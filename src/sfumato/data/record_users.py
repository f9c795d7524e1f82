"""Users of records, keyed codes of records, and the keyed split into train and test.

A record has two codes, which mean nothing without the owner's key. The first is computed from the stored bytes, so a
copied file has the same code; the split uses it. The second is computed from the image's pixels, so the same image has
the same code in another format: as a file, as an array, as PNG or lossless TIFF. Neither depends on the size to which a
source resizes its images. The codes of a text are computed from the text and from its words.

If a split counts or shuffles, one record influences the place of others: without it, another record moves from the test
part to the training part. Neighbouring data sets then differ in more than one record, and the theorem for one record no
longer applies. Here a record's place is a function of the record and of the owner's key, nothing else.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import NoReturn

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.classes import to_nfc
from sfumato.data.declared import Declared
from sfumato.data.tokens import WORD

LENGTH = 16
"""Bytes of each of a record's two codes."""


def stored_code(owner_key: bytes, content: bytes) -> bytes:
    """The 16-byte code of stored bytes: those of a file or an array."""
    return hmac.digest(owner_key, b"record" + content, "sha256")[:LENGTH]


def pixel_code(owner_key: bytes, pixels: np.ndarray) -> bytes:
    """The 16-byte code of pixels uint8 (H, W, C) at original size; of one channel if all channels are equal."""
    grey = pixels.shape[2] == 1 or bool((pixels == pixels[:, :, :1]).all())
    shown = np.ascontiguousarray(pixels[:, :, :1] if grey else pixels)
    return hmac.digest(owner_key, f"pixels {shown.shape}".encode() + shown.tobytes(), "sha256")[:LENGTH]


def word_code(owner_key: bytes, text: str) -> bytes:
    """The 16-byte code of a text's words in lower case. Spacing and punctuation do not matter."""
    return hmac.digest(owner_key, b"words" + " ".join(WORD.findall(text.lower())).encode(), "sha256")[:LENGTH]


def user_code(owner_key: bytes, user: str) -> str:
    """A user's code, 32 hexadecimal digits. The same name has the same code in every source."""
    return hmac.digest(owner_key, b"user code" + user.encode(), "sha256")[:LENGTH].hex()


def codes_of(owner_key: bytes, stored: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Both codes uint8 (N, 32) of images in arrays.

    Args:
        stored: (N, ...), as stored.
        pixels: uint8 (N, H, W, C), the same images in eight bits.
    """
    pairs = zip(stored, pixels)  # noqa: B905
    both = (stored_code(owner_key, content.tobytes()) + pixel_code(owner_key, image) for content, image in pairs)
    return as_array(both)


def as_array(codes: Iterable[bytes]) -> np.ndarray:
    """Codes of 32 bytes as uint8 (N, 32)."""
    return np.frombuffer(b"".join(codes), np.uint8).reshape(-1, 2 * LENGTH)


def find_known(codes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which records, bool (N,), share either code with one of `among`; both uint8 (N, 32).

    >>> codes, among = np.arange(96, dtype=np.uint8).reshape(3, 32), np.zeros((1, 32), np.uint8)
    >>> among[0, 16:] = codes[1, 16:]
    >>> find_known(codes, among).tolist()
    [False, True, False]
    """
    if not len(codes) or not len(among):
        return np.zeros(len(codes), bool)
    halves, known_halves = (np.ascontiguousarray(array).view(f"V{LENGTH}") for array in (codes, among))
    return np.asarray(np.isin(halves, known_halves).any(axis=1))


def keyed_position(owner_key: bytes, content: bytes) -> float:
    """A record's position in [0, 1): uniform over keys, equal for equal contents, independent for different ones.

    **Guarantee.** The position depends on this record's content and the key alone, so adding, removing or replacing one
    record moves no other (unit: one record; adjacency: any). Copies of one image always fall on the same side.

    Args:
        owner_key: the owner's secret (32 bytes).
        content: the record's bytes, for example those of its file.

    >>> keyed_position(bytes(32), b"an image") == keyed_position(bytes(32), b"an image")
    True
    """
    digest = hmac.digest(owner_key, b"split" + content, "sha256")
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def in_test(owner_key: bytes, content: bytes, test_fraction: float) -> bool:
    """Whether a record belongs to the test part, which holds the expected share `test_fraction` of all records.

    >>> sum(in_test(bytes(32), str(number).encode(), 0.2) for number in range(1000))
    172
    """
    return keyed_position(owner_key, content) < test_fraction


def record_in_test(owner_key: bytes, content: bytes, user: str | None, test_fraction: float) -> bool:
    """Whether a record belongs to the test part: by its user if known, else by its content.

    All records of one user fall on one side; otherwise the test part would contain people from training.

    **Guarantee.** As in `keyed_position`. If users are known, adding or removing all records of one user moves no
    record of anybody else (unit: one record, or one user; adjacency: add-or-remove).

    Args:
        content: the stored bytes of the record.
        user: the record's user; None if unknown.
    """
    return in_test(owner_key, b"image" + content if user is None else b"user" + user.encode(), test_fraction)


SEPARATOR = ";"
"""Separates names in a text that names several users."""


def refuse_several(text: str, record: str) -> None:
    """Refuses a text that names several users, or none: a guarantee for users needs one user for each record.

    Args:
        record: what to call the record in errors.
    """
    if SEPARATOR in (text := to_nfc(text)):  # which the Greek question mark becomes in composed form
        users = ", ".join(repr(name.strip()) for name in text.split(SEPARATOR) if name.strip())
        raise SfumatoError(
            f"{record} has {'several users: ' + users if users else 'no user'}",
            f"give each record one user, whose name has no {SEPARATOR}, or leave the record out",
        )


BY_FOLDER = "folder"
"""`user_from` if each class folder has a folder for each user."""
BY_CLASS = "class"
"""`user_from` if each class is one user, named like the class."""


def refuse_without_users(subject: str = "the source") -> NoReturn:
    """Refuses a source without users.

    Args:
        subject: the source, or what needs its users.
    """
    raise SfumatoError(
        f"{subject} does not name the user of each record",
        "give a table with the column user, an archive with users_train, or a folder with `user_from`; where each "
        "class is one user, `user_from=class` says so of all three",
    )


def check_by_class(declared: Declared, where: str, *, has_own_split: bool, user_field: str | None = None) -> None:
    """Refuses classes as users if records have several labels or other users, or if the split would separate classes.

    Args:
        where: name of the data set in errors.
        has_own_split: whether the data set has two parts.
        user_field: where the data themselves name users, if they do.
    """
    rule = f"`user_from={BY_CLASS}`"
    if user_field is not None:
        raise SfumatoError(f"{where} has the {user_field}, but {rule} is also given", "leave one of them out")
    if declared.labels.label_columns is not None:
        raise SfumatoError(
            f"{rule} makes each class one user, but `label_columns` give an image several classes",
            "leave one of them out",
        )
    if not has_own_split and not declared.purpose.open_set:
        raise SfumatoError(
            f"{rule} makes each class one user, and the split by user puts it whole in one part of {where}, so that a "
            "classifier would be tested on classes that it has not met",
            "leave it out, or make the train and test parts yourself; or train an embedding, which is to tell people "
            "apart that it has not met (sfumato embed, or open_source with open_set=True)",
        )
