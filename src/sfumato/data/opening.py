"""Opening a source: read, checked, and with its facts."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from sfumato import _checks
from sfumato._checks import SfumatoError
from sfumato.data import classes as class_lists
from sfumato.data.caches.features import Cache
from sfumato.data.file_records import FileRecords
from sfumato.data.identity.codes import LENGTH
from sfumato.data.identity.fingerprint import fingerprint
from sfumato.data.images.decoding import check_size
from sfumato.data.images.levels import Levels
from sfumato.data.images.views import Views
from sfumato.data.kinds import KINDS, parse
from sfumato.data.parts import Parts
from sfumato.data.paths import places_of
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.data.records import TEST_FRACTION, Declared, OnProgress
from sfumato.data.source import FACTS, LEFT_OUT, Part, Source, own_codes
from sfumato.data.subsets.users import user_codes


def open_source(
    spec: str,
    *,
    owner_key: bytes,
    examples: int | None = None,
    classes: Sequence[str] | None = None,
    label_columns: Sequence[str] | None = None,
    size: int | None = None,
    channels: int | None = None,
    bit_depth: int | None = None,
    window: Sequence[int] | None = None,
    root: str | None = None,
    download: bool = False,
    test_fraction: float | None = None,
    public: bool | None = None,
    zoom: float = 1.0,
    user_from: str | None = None,
    users: int | None = None,
    open_set: bool = False,
    skip_unreadable: bool = False,
    text_column: Sequence[str] | str | None = None,
    length: int | None = None,
    vocabulary: int | None = None,
    words: Sequence[str] | str | None = None,
    progress: OnProgress | None = None,
) -> Source:
    """Read a source, check every record, and say what was declared and what was read.

    Images are held in memory; those of image files that would take more than half of it stay in their files, and are
    decoded again whenever they are asked for.

    Everything that can be wrong with the data is refused here, before any privacy is spent. These checks look at
    private records without noise, so a refusal is the owner's to see and nobody else's.

    **Guarantee.** Except for the facts named in `read`, each record of the result is a function of that record alone
    (unit: one record; adjacency: any): the image is brought to the declared size, and the split hashes it by itself, or
    its user where the source says whose it is.

    Args:
        spec: `digits`, `folder:PATH`, `npz:PATH`, `csv:PATH`, `torchvision:NAME`, or `features:PATH` for a cache, of
            which everything but `examples`, `users` and `public` was declared when it was made.
        owner_key: the owner's secret, 32 bytes.
        examples: the declared number of training examples.
        classes: the declared class names, in the order of the labels. A class may then be absent from the data.
        label_columns: the labels of a table's or an archive's images where none, one or many may be true of each: the
            table's columns of 0 and 1 in place of `label`, the columns of an archive's y. They are declared by it.
        size: the declared side of the images in pixels, 4 to 1024; images are brought to it.
        channels: the declared number of channels, 1 or 3; images are brought to it.
        bit_depth: how many bits the pixels of 16-bit images use: 12 where white is 4095. Larger values are refused.
        window: or which of their values become black and white, as (low, high). With neither of the two, images of more
            than 8 bits are refused; with one, those of 8 bits stay as they are. Of DICOM files all greys are taken by
            it, after their own modality transformation; without one by each file's own window, where it has one.
        root: the folder of torchvision's data sets.
        download: whether a missing torchvision data set may be fetched.
        test_fraction: expected share of the test part where the keyed hash splits; None for a fifth.
        public: whether the records are public; None for the kind's own answer (yes for published data sets).
        zoom: how much larger than `size` the training images are read as well, out of their originals, for `Views` of
            this zoom; 1 for not. Of arrays that are no larger than `size` there is nothing more to read: views enlarge
            them. A cache has views of its own.
        user_from: how a folder says whose image each one is: "folder" for PATH/CLASS/USER/IMAGE, or a regular
            expression that is looked for in each file's name, whose first group is the user (all that matches where it
            has none). Tables and archives say it in a column. Of a folder or table of DICOM files "dicom" takes each
            file's patient identifier, of which no more than a code under the owner's key is kept.
        users: the declared number of users of the training part.
        open_set: whether each part may have classes of its own, and single images of some, as for embeddings, which are
            tested on classes that training did not see.
        skip_unreadable: whether files of a folder are left out from which no image can be read: those that are no
            images by their names, empty, broken or cut short ones. How many there are is then a fact that was read.
        text_column: the columns of a table that hold its texts, put together with a space between them; None for the
            one that is called text.
        length: how many words of each text are read; shorter texts are filled up to as many. None for 64: it is never
            read from private texts.
        vocabulary: how many numbers words may have, with 0 for no word and 1 for unknown ones (`Tokens`); None for
            8192, to which words are hashed. Texts that are numbers already need it declared.
        words: a file of public words, one a line, that are numbered in this order, or these words themselves; others
            are then unknown.
        progress: called with (files done, files in all) while image files are decoded, or where they stay on disk,
            while they are read and then again while they are decoded and fingerprinted.

    >>> source = open_source("digits", owner_key=bytes(32))
    >>> source.train.images.shape, len(source.test), source.classes[:3], source.read, source.public
    ((1438, 8, 8, 1), 359, ('0', '1', '2'), (), True)
    """
    name, argument = parse(spec)
    if examples is not None:
        _checks.positive_integer("examples", examples)
    if users is not None:
        _checks.positive_integer("users", users)
    kind = KINDS[name]
    if not isinstance(owner_key, bytes) or len(owner_key) < 32:
        raise SfumatoError("owner_key must be at least 32 secret bytes", "make one with secrets.token_bytes(32)")
    if kind.reader is None:
        before = {"classes": classes, "size": size, "channels": channels, "root": root, "test_fraction": test_fraction}
        before |= {"label_columns": label_columns}
        before |= {"bit_depth": bit_depth, "window": window, "user_from": user_from}
        before |= {"skip_unreadable": skip_unreadable or None}
        before |= {"text_column": text_column, "length": length, "vocabulary": vocabulary, "words": words}
        _refuse_declared(argument, [key for key, value in before.items() if value is not None])
        return _of_cache(Cache(argument), owner_key, examples, users, public, progress)
    if user_from is not None and name != "folder" and (name, user_from) != ("csv", BY_PATIENT):
        raise SfumatoError(
            f"`user_from={user_from}` is for folder:, and the source is {spec}",
            "leave it out: a table has a column user, an archive the arrays users_train and users_test",
        )
    if skip_unreadable and name != "folder":
        raise SfumatoError(f"`skip_unreadable` is for folder:, and the source is {spec}", "leave it out")
    if label_columns is not None and name not in ("csv", "npz"):
        raise SfumatoError(
            f"`label_columns` are for csv: and npz:, and the source is {spec}", "leave them out, or write a table"
        )
    if label_columns is not None and classes is not None:
        raise SfumatoError(
            "`classes` and `label_columns` are both given", "name several labels as `label_columns` alone"
        )
    if size is not None:
        check_size(_checks.positive_integer("size", size))
    if channels not in (None, 1, 3):
        raise SfumatoError(f"channels must be 1 or 3, got {channels!r}", "declare 1 for grey images and 3 for colour")
    levels = Levels.declared(bit_depth, window)
    declared = Declared(
        owner_key=owner_key,
        classes=class_lists.declared_names(classes),
        label_columns=class_lists.declared_names(label_columns, "label_columns"),
        size=size,
        channels=channels,
        levels=levels,
        root=root,
        download=download,
        test_fraction=TEST_FRACTION if test_fraction is None else _checks.fraction("test_fraction", test_fraction),
        zoom=Views(zoom=zoom).zoom,
        user_from=user_from,
        open_set=open_set,
        skip_unreadable=skip_unreadable,
        text_column=None if text_column is None else _listed(text_column),
        length=length,
        vocabulary=vocabulary,
        words=words if words is None or isinstance(words, str) else tuple(words),
        progress=progress,
    )
    loaded = kind.load(argument, declared)
    _refuse_of_other_form(loaded, declared, spec)
    in_files = isinstance(loaded.train, FileRecords)
    seen = loaded.train if loaded.larger is None else loaded.larger
    _check_parts(loaded, spec, open_set=open_set)
    _check_groups(loaded, spec)
    material, pixels = _materials(owner_key, loaded.train, loaded.test)
    given = {"examples": examples, "classes": classes or label_columns, "size": size, "channels": channels}
    facts = FACTS if loaded.tokens is None else ("examples", "classes")
    return Source(
        kind=name,
        train=loaded.train,
        test=loaded.test,
        classes=loaded.classes,
        size=loaded.train.shape[1],
        channels=loaded.train.shape[3] if loaded.tokens is None else 1,
        tokens=loaded.tokens,
        examples=len(loaded.train) if examples is None else examples,
        read=() if kind.published else (*(fact for fact in facts if given[fact] is None), *_left_out(declared)),
        public=kind.published if public is None else public,
        fingerprint=fingerprint(owner_key, seen, loaded.test, loaded.classes, progress=progress if in_files else None),
        size_rule=loaded.size_rule,
        cut=loaded.cut,
        bit_depth=bit_depth,
        window=None if levels is None else levels.window,
        filtered=loaded.filtered,
        left_out=loaded.left_out,
        parted=loaded.parted,
        test_fraction=declared.test_fraction,
        material=material,
        pixels=pixels,
        larger=loaded.larger,
        **_users_of(loaded.train, users, spec),
        user_from=user_from,
        places=places_of(spec),
        assignment=_assignment(owner_key, loaded.train, loaded.test),
    )


def _left_out(declared: Declared) -> tuple[str, ...]:
    """By the option alone, whether or not there was such a file: else the name of the fact would tell of it."""
    return (LEFT_OUT,) if declared.skip_unreadable else ()


def _listed(names: Sequence[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _refuse_of_other_form(loaded: Parts, declared: Declared, spec: str) -> None:
    """Refuse declarations that say nothing of such records."""
    of_texts = {name: getattr(declared, name) for name in ("text_column", "length", "vocabulary", "words")}
    of_images = {name: getattr(declared, name) for name in ("size", "channels", "levels")}
    of_images |= {"zoom": None if declared.zoom == 1 else declared.zoom, "open_set": declared.open_set or None}
    of_images |= {"user_from": declared.user_from}
    odd, holds = (of_texts, "images") if loaded.tokens is None else (of_images, "texts")
    shown = {"levels": "bit_depth or window", "open_set": "open_set, for embeddings,"}
    names = [shown.get(name, name) for name, value in odd.items() if value is not None]
    if names:
        other = "texts" if holds == "images" else "images"
        raise SfumatoError(f"{', '.join(names)} says something of {other}, and {spec} holds {holds}", "leave it out")


def _materials(owner_key: bytes, *parts: Part) -> tuple[str, str]:
    """`Source.material` and `Source.pixels`."""
    codes = np.concatenate([own_codes(part, owner_key) for part in parts])

    def together(some: np.ndarray) -> str:
        listed = b"".join(sorted(code.tobytes() for code in some))
        return hmac.new(owner_key, b"material" + listed, hashlib.sha256).hexdigest()

    return together(codes[:, :LENGTH]), together(codes[:, LENGTH:])


def _assignment(owner_key: bytes, *parts: Part) -> str:
    """`Source.assignment`."""
    whose = [user_codes(part, owner_key) for part in parts]
    if any(users is None for users in whose):
        return ""
    codes = [own_codes(part, owner_key)[:, :LENGTH] for part in parts]
    pairs = [
        code.tobytes() + user.encode()
        for some, users in zip(codes, whose, strict=True)
        for code, user in zip(some, users if users is not None else (), strict=True)
    ]
    return hmac.new(owner_key, b"assignment" + b"".join(sorted(pairs)), hashlib.sha256).hexdigest()


def _refuse_declared(path: str, declared: list[str]) -> None:
    if declared:
        raise SfumatoError(
            f"{', '.join(declared)} of features:{path} were decided when it was made", "leave them out, or make it anew"
        )


def _of_cache(
    cache: Cache,
    owner_key: bytes,
    examples: int | None,
    users: int | None,
    public: bool | None,
    progress: OnProgress | None,
) -> Source:
    contents = cache.contents
    known = contents.source
    train, test = (cache.records(part, progress=progress) for part in ("train", "test"))
    labels = np.concatenate([train.labels, test.labels])
    _check_labels(labels, cache)
    if labels.ndim == 1 and len(labels) and not 0 <= labels.min() <= labels.max() < len(known["classes"]):
        raise SfumatoError(
            f"cache {str(cache.path)!r} has labels from {labels.min()} to {labels.max()} and "
            f"{len(known['classes'])} classes",
            "make it anew",
        )
    told = json.dumps([contents.identity, train.sums, test.sums])
    given = {
        "kind": "features",
        "classes": tuple(known["classes"]),
        "examples": known["examples"] if examples is None else examples,
        "read": tuple(fact for fact in known["read"] if fact != "examples" or examples is None),
        "public": known["public"] if public is None else public,
        "places": (*places_of(f"features:{cache.path}"), *known.get("places", ())),
    }
    if users is not None:
        given |= _users_of(train, users, f"features:{cache.path}")
    return Source(
        **{**known, **given},
        train=train,
        test=test,
        test_fraction=contents.test_fraction,
        cache=cache,
        assignment=_assignment(owner_key, train, test),
        features=hmac.new(owner_key, b"features" + told.encode(), hashlib.sha256).hexdigest(),
    )


def _check_labels(labels: np.ndarray, cache: Cache) -> None:
    """Refuse a matrix of labels that is not of the cache's classes."""
    if labels.ndim == 1:
        return
    if labels.shape[1] != len(cache.contents.source["classes"]) or not np.isin(labels, (0, 1)).all():
        raise SfumatoError(f"cache {str(cache.path)!r} has other labels than it says", "make it anew")


def _users_of(train: Part, declared: int | None, where: str) -> dict[str, Any]:
    """`Source.users` and `Source.users_read`."""
    if train.users is None:
        if declared is not None:
            raise SfumatoError(
                f"`users={declared}` is declared, and {where} does not say whose record each one is",
                "leave it out, or give a table's column user, an archive's users_train, or a folder's `user_from`",
            )
        return {}
    return {"users": len(np.unique(train.users)) if declared is None else declared, "users_read": declared is None}


def _check_groups(loaded: Parts, spec: str) -> None:
    """Refuse a user who is in two groups."""
    known: dict[str, str] = {}
    for part in (loaded.train, loaded.test):
        if part.users is not None and part.groups is not None:
            for user, group in zip(part.users.tolist(), part.groups.tolist(), strict=True):
                if known.setdefault(user, group) != group:
                    raise SfumatoError(
                        f"user {user!r} of {spec!r} is in the groups {known[user]!r} and {group!r}",
                        "give each user one group",
                    )


def _check_parts(loaded: Parts, spec: str, *, open_set: bool) -> None:
    if not open_set and loaded.train.labels.ndim == 1:
        class_lists.check_counts(
            loaded.train.labels,
            loaded.test.labels,
            loaded.classes,
            where=repr(spec),
            listed=loaded.classes_listed,
            parted=loaded.parted,
            record="image" if loaded.tokens is None else "text",
        )
    for name, part in (("training", loaded.train), ("test", loaded.test)):
        if not len(part):
            raise SfumatoError(
                f"the {name} part of {spec!r} is empty",
                f"add {'images' if loaded.tokens is None else 'texts'}, or make the train and test parts yourself",
            )
