"""Subsets: whose record each one is (users by number and by code), and sources with fewer records: without a validation
part, held out for choosing settings, so that the test part stays untouched; with at most so many of each user,
chosen by the user's own records alone; and without some, written down as another source."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import shlex
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from sfumato._checks import SfumatoError, fraction, positive_integer
from sfumato._files import write
from sfumato.data.identity.owners import (
    BY_CLASS,
    LENGTH,
    SEPARATOR,
    Owners,
    bounded,
    in_test,
    named,
    owners_of,
    user_code,
)
from sfumato.data.parts import Part
from sfumato.data.pieces import CachedRecords
from sfumato.data.readers.layout import layout_of
from sfumato.data.records import numbered
from sfumato.data.source import FACTS, LEFT_OUT, Source, own_codes


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


def hold_out(source: Source, owner_key: bytes, share: float) -> tuple[Source, Part]:
    """The source with a smaller training part, and the validation part.

    **Guarantee.** Each training record goes to one side or the other by a keyed hash of its own image as it was
    stored, so adding or removing one record moves no other, and an image goes the same way at every size and in every
    cache of features (unit: one record; adjacency: any). Where the source says whose record each one is, the hash is of
    the user in place of the image: all records of one user go the same way, and adding or removing a user moves nobody
    else (unit: one record, or one user). Records with users on both sides are on neither. The numbers of examples and
    of users that a promise is computed for are the declared ones times 1 - share, rounded: public constants.

    Args:
        source: an opened source.
        owner_key: the owner's secret, 32 bytes.
        share: expected share of the training part that is held out, such as 0.1.

    Errors: `SfumatoError` where each class is one user of a classifier, which would never see those held out.
    """
    fraction("validation", share, remedy="give the share of the training part to hold out, such as 0.1")
    if source.user_from == BY_CLASS and not source.declared.purpose.open_set:
        raise SfumatoError(
            f"validation {share:g} is held out by user, and by `user_from={BY_CLASS}` whole classes would be",
            "leave one of them out",
        )
    train = source.train
    own = own_codes(train, owner_key)[:, :LENGTH]

    def coins(codes: np.ndarray, prefix: bytes = b"") -> np.ndarray:
        drawn = (in_test(owner_key, b"validation" + prefix + code.tobytes(), share) for code in codes)
        return np.fromiter(drawn, bool, len(codes))

    users, rule = coded_users(train, owner_key), ""
    if users is None:
        held_out = coins(own)
        stays = ~held_out
    else:
        (codes, owners), rule = users, " by user"
        drawn = coins(codes, b"user")
        held_out, stays = owners.among(drawn) > 0, owners.among(~drawn) > 0
        held_out, stays = held_out & ~stays, stays & ~held_out
        nobodys = np.flatnonzero(owners.of_each_record == 0)
        held_out[nobodys] = coins(own[nobodys])
        stays[nobodys] = ~held_out[nobodys]
    if not stays.any() or not held_out.any():
        raise SfumatoError(
            f"validation {share:g} of the training examples puts {'none' if stays.any() else 'all'} of them aside",
            "give a share that leaves some on either side",
        )
    rest, validation = train.chosen(stays), train.chosen(held_out)
    smaller = replace(
        source,
        train=rest,
        held_out=validation,
        zoomed=None if source.zoomed is None else source.zoomed.chosen(stays),
        examples=max(1, round(source.examples * (1 - share))),
        users=None if source.users is None else max(1, round(source.users * (1 - share))),
        fingerprint=hmac.new(owner_key, f"{source.fingerprint} {share!r}{rule}".encode(), hashlib.sha256).hexdigest(),
    )
    return smaller, validation


def capped(source: Source, owner_key: bytes, at_most: int, *, examples: int | None = None) -> Source:
    """The source with at most G training records of each user.

    A user's records are ranked by a keyed hash of what is stored of each, equal ones by their label and then in the
    order in which they come; the first G stay. So they are the same at every size, in every cache of features, and
    whatever order the files are in. Where records have several users, or nobody, they are chosen by who is on which
    (`owners.bounded`), and what follows holds for zero-out alone, with the graph public.

    **Guarantee.** Which of a user's records stay is a function of that user's records and of the owner's key, so adding
    or removing a user, with all of their records, changes nothing for the others, and a user changes at most G of what
    is left (unit: one user; adjacency: add-or-remove). Of single records this says nothing: where one is removed,
    another one of the same user may take its place.

    Args:
        source: an opened source that says whose record each one is.
        owner_key: the owner's secret, 32 bytes.
        at_most: G.
        examples: the declared number of records that stay; None to count them, which is then one of the facts that were
            read. The number before the cap does not give it: it depends on how many records each user has.
    """
    positive_integer("at_most", at_most, remedy="give how many records of each user may stay, such as 10")
    if source.shared:
        codes, graph = coded_users(source.train, owner_key) or refuse_nameless()
        kept = bounded(graph, [code.tobytes() for code in codes], owner_key, at_most)
    else:
        users, _ = by_user(source.train)
        kept = _ranks(users, own_codes(source.train, owner_key)[:, :LENGTH], source.train.labels, owner_key) < at_most
    facts = tuple(fact for fact in (*FACTS, LEFT_OUT) if fact in {*source.read, "examples"})
    read = source.read if source.published else facts
    read = read if examples is None else tuple(fact for fact in source.read if fact != "examples")
    return replace(
        source,
        train=source.train.chosen(kept),
        zoomed=None if source.zoomed is None else source.zoomed.chosen(kept),
        examples=int(kept.sum()) if examples is None else positive_integer("examples", examples),
        read=read,
        fingerprint=hmac.digest(owner_key, f"{source.fingerprint} at most {at_most}".encode(), "sha256").hex(),
        at_most=at_most,
    )


def _ranks(users: np.ndarray, codes: np.ndarray, labels: np.ndarray, owner_key: bytes) -> np.ndarray:
    """The place int64 (N,) of each record among those of its user, from 0.

    Args:
        users: int64 (N,).
        codes: uint8 (N, 16), of what is stored.
        labels: int64 (N,) or (N, L).
    """
    digests = (hmac.digest(owner_key, b"cap" + code.tobytes(), "sha256")[:8] for code in codes)
    drawn = np.fromiter((int.from_bytes(digest, "big") for digest in digests), np.uint64, len(codes))
    order = np.lexsort((*labels.reshape(len(labels), -1).T, drawn, users))
    starts = np.searchsorted(users[order], users[order])
    ranks = np.empty(len(users), np.int64)
    ranks[order] = np.arange(len(users)) - starts
    return ranks


MARK = "filtered_by_private_data"
"""The array or column that says so: what is trained on such a set tells of the private data."""


def write_without(
    parts: dict[str, Part], classes: tuple[str, ...], left_out: set[int], path: Path, *, marked: bool
) -> str:
    """Write the records that are kept, as a table of files where they come from files, else as arrays.

    Args:
        parts: "train" and "test".
        classes: their class names.
        left_out: positions, counted through both parts.
        path: without suffix.
        marked: whether the choice was made by looking at private data.

    Returns:
        the spelling of the source that was written: `csv:PATH` or `npz:PATH`.
    """
    kept: dict[str, np.ndarray] = {}
    first = 0
    for name, part in parts.items():
        kept[name] = np.array([first + place not in left_out for place in range(len(part))], dtype=bool)
        first += len(part)
    if all(part.files is not None for part in parts.values()):
        file = path.with_suffix(".csv")
        write(file, _table(parts, classes, kept, marked=marked).encode(), private=True)
        return f"csv:{file}"
    arrays: dict[str, np.ndarray] = {}
    beside: dict[str, np.ndarray] = {}
    for name, part in parts.items():
        arrays |= {f"x_{name}": part.take(slice(None))[kept[name]], f"y_{name}": part.labels[kept[name]]}
        for column, known in (("time", part.times), ("users", part.users), ("groups", part.groups)):
            if known is not None:
                some = known[kept[name]]
                beside[f"{column}_{name}"] = np.array(some.tolist(), np.str_) if some.dtype.kind == "T" else some
    arrays |= beside | {"classes": np.array(classes)}
    if marked:
        arrays[MARK] = np.array(True)
    memory = io.BytesIO()
    np.savez(memory, **arrays)  # type: ignore[arg-type]
    file = path.with_suffix(".npz")
    write(file, memory.getvalue(), private=True)
    return f"npz:{file}"


def _table(parts: dict[str, Part], classes: tuple[str, ...], kept: dict[str, np.ndarray], *, marked: bool) -> str:
    """Lines of path, label and split, with absolute paths, and of user, group and time where they are known.

    Several labels have a column each.
    """
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    columns = {name: {"user": part.users, "group": part.groups, "time": part.times} for name, part in parts.items()}
    given = [name for name in ("user", "group", "time") if all(known[name] is not None for known in columns.values())]
    several = any(part.labels.ndim == 2 for part in parts.values())
    lines.writerow(["path", *(classes if several else ["label"]), "split", *given, *([MARK] if marked else [])])
    for name, part in parts.items():
        assert part.files is not None
        beside = [known for column in given if (known := columns[name][column]) is not None]
        for place in np.flatnonzero(kept[name]):
            labels = part.labels[place].tolist() if several else [classes[int(part.labels[place])]]
            further = [known[place] for known in beside]
            lines.writerow([Path(part.files[place]).resolve(), *labels, name, *further, *(["yes"] if marked else [])])
    return text.getvalue()
