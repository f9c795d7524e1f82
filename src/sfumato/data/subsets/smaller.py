"""Sources with fewer records: without a validation part, held out for choosing settings, so that the test part stays
untouched; with at most so many of each user, chosen by the user's own records alone; and without some, written down
as another source."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from sfumato._checks import SfumatoError, fraction, positive_integer
from sfumato._files import write
from sfumato.data.identity.codes import LENGTH, in_test
from sfumato.data.identity.owners import BY_CLASS, bounded
from sfumato.data.parts import Part
from sfumato.data.source import FACTS, LEFT_OUT, Source, own_codes
from sfumato.data.subsets.users import by_user, coded_users, refuse_nameless


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
