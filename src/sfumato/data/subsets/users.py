"""Whose record each one is: users by number and by code, and how many of them stand in two places."""

from __future__ import annotations

import shlex
from typing import NoReturn

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.caches.pieces import CachedRecords
from sfumato.data.identity.codes import LENGTH, user_code
from sfumato.data.identity.owners import BY_CLASS, SEPARATOR, Owners, named, owners_of
from sfumato.data.parts import Part
from sfumato.data.readers.layout import layout_of
from sfumato.data.records import numbered
from sfumato.data.source import Source


def refuse_nameless(spec: str = "", command: str = "embed") -> NoReturn:
    """Refuse a source that does not say whose its records are; of a folder it says which command would work.

    Args:
        spec: its spelling, where that is known.
        command: what it was given to, and with what: "embed", or "train --unit user".
    """
    kind, _, argument = spec.partition(":")
    if kind == "folder":
        raise SfumatoError(f"{spec} does not say whose image each one is", _remedy_of_folder(argument, command))
    raise SfumatoError(
        "the source does not say whose record each one is",
        "give a table with the column user, an archive with users_train, or a folder with `user_from`; where each "
        "class is one user, `user_from=class` says so of all three",
    )


def _remedy_of_folder(path: str, command: str) -> str:
    """By the folder's layout: folders are listed, and no image is opened."""
    layout = layout_of(path)
    rule, embeds = layout.fitting, command == "embed"
    if rule == BY_CLASS and not embeds:  # a classifier's classes are no users
        return (
            f"its folders are {layout.spelt.replace('PERSON', 'CLASS')}: give each user a folder in every class, "
            f"{layout.spelt.replace('PERSON', 'CLASS/USER')}, and `user_from=folder`; or a regular expression that "
            "finds the user in a file's name"
        )
    if rule is None:
        folders = "person, PATH/PERSON/IMAGE, and give `user_from=class`"
        return f"make a folder for each {folders if embeds else 'user, PATH/CLASS/USER/IMAGE, with `user_from=folder`'}"
    verb, *options = command.split(" ", 1)
    whole = " ".join(["sfumato", verb, shlex.quote(f"folder:{layout.root}"), *options, f"--user-from {rule}"])
    whose = "class is one person" if rule == BY_CLASS else "inner folder is one user's"
    return f"its folders are {layout.spelt}: if each {whose}, give `user_from={rule}`, as in {whole}"


def owners(part: Part) -> Owners:
    """Who is on each record of a part, be it one user, several or nobody.

    Errors: `SfumatoError` for a part that does not say whose its records are.
    """
    if part.users is None:
        refuse_nameless()
    return owners_of(part.users)


def by_user(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The users of a part whose records have one each, and which of them each record belongs to.

    Returns:
        int64 (N,), positions in the second; text (U,), the users in the order of their names, or of their codes in a
        cache of features, whatever order the records are in.

    Errors: `SfumatoError` for a part that does not say whose its records are, or says of some that they have several
    users, or nobody: what goes by whole users has no place for these.
    """
    found = owners(part)
    if found.shared:
        refuse_shared_records()
    return found.users, found.names


def refuse_shared_records() -> NoReturn:
    """Refuse records with several users, or none, for what takes each of them to be one user's."""
    raise SfumatoError(
        "records of the source have several users, or nobody, and where users are drawn as wholes each is one user's",
        "train a classifier by `unit=user` with `drawn=examples`, or name one user for each record",
    )


def number_of(declared: int | None, train: Part, where: str) -> int | None:
    """The number of users: as declared, else counted; None where nobody knows whose records these are."""
    if train.users is not None:
        return len(owners(train).names) if declared is None else declared
    if declared is not None:
        raise SfumatoError(
            f"`users={declared}` is declared, and {where} does not say whose record each one is",
            "leave it out, or give a table's column user, an archive's users_train, a folder's `user_from`, or "
            "`user_from=class` where each class is one user",
        )
    return None


def user_codes(part: Part, owner_key: bytes) -> np.ndarray | None:
    """The code, 32 hexadecimal digits, of each record's user, text (N,); None where nobody knows whose they are. Of
    several users it is their codes with the separator between them, as their names are.

    A cache of features holds these in place of names: they tell its records' users apart, know them again in another
    source, and say nothing to whoever lacks the owner's key.
    """
    if part.users is None or isinstance(part, CachedRecords):
        return part.users
    numbers, texts = numbered(part.users)
    codes = [[user_code(owner_key, user) for user in named(text)] for text in texts]
    return np.array([SEPARATOR.join(sorted(some)) or SEPARATOR for some in codes], np.str_)[numbers]


def coded_users(part: Part, owner_key: bytes) -> tuple[np.ndarray, Owners] | None:
    """The same codes, each user's once, as ASCII uint8 (U, 32), and on which records they are."""
    if part.users is None:
        return None
    found = owners_of(part.users)
    users = found.names.tolist()
    known = users if isinstance(part, CachedRecords) else [user_code(owner_key, user) for user in users]
    return np.frombuffer("".join(known).encode(), np.uint8).reshape(-1, 2 * LENGTH), found


def shared_users(source: Source, owner_key: bytes, other: Source | None = None) -> int | None:
    """How many users have records both to train on and in the test part; or in two sources, in whichever part.

    An exact figure of private data. Users whom two sources call alike are taken for one.

    Args:
        source: its training part is taken together with what was held out of it.
        owner_key: the owner's secret, 32 bytes.
        other: a second source, in place of the test part.

    Returns:
        None where one of the parts does not say whose its records are.
    """
    one, two = [source.train, source.held_out], [source.test]
    if other is not None:
        one, two = [*one, source.test], [other.train, other.held_out, other.test]
    known = [[coded_users(part, owner_key) for part in parts if part is not None] for parts in (one, two)]
    if any(users is None for parts in known for users in parts):
        return None
    first, second = ({code.tobytes() for users in parts if users is not None for code in users[0]} for parts in known)
    return len(first & second)
