"""Opens a source: reads and checks its records, and collects its facts."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, within
from sfumato.data import classes as class_lists
from sfumato.data.declared import Declared, OnProgress, Order, Purpose
from sfumato.data.features import PLACES, Cache
from sfumato.data.kinds import CACHE, PUBLISHED, parse
from sfumato.data.paths import places_of
from sfumato.data.pieces import damaged
from sfumato.data.readers.python_data import choose_reader
from sfumato.data.record_users import refuse_several
from sfumato.data.records import numbered
from sfumato.data.source import FACTS, LEFT_OUT, Parts, Source, from_facts
from sfumato.data.subsets import assignment, count_users, digests, fingerprint


def open_source(
    spec: Any, *, owner_key: bytes, declared: Declared | None = None, progress: OnProgress | None = None, **facts: Any
) -> Source:
    """Reads a source, checks every record, and records which facts were declared and which were read.

    Images are held in memory. Image files that would need more than half of it, and shards that would need more than
    1 GiB, stay where they are stored and are decoded on each access.

    Invalid data are refused here, before any privacy is spent. These checks look at private records without noise, so
    only the owner may see their errors.

    **Guarantee.** Except for the facts named in `read`, each record of the result is a function of that record alone
    (unit: one record; adjacency: any): the image is resized to the declared size, and the split hashes the record
    alone, or its user if the source has users.

    Args:
        spec: `digits`, `folder:PATH`, `npz:PATH`, `csv:PATH`, `parquet:PATH`, `hf:PATH`,
            `torchvision:NAME`, or `features:PATH` for a cache, for which only `examples`, `users` and `public` can
            still be declared. Or data from Python: arrays or tensors (images, labels), split by a keyed hash, or
            (x_train, y_train, x_test, y_test), or a mapping with the names of an archive; a map-style
            `torch.utils.data.Dataset` of pairs (image, label), or one for training and one for testing; a `Dataset` or
            `DatasetDict` of Hugging Face's `datasets`; or a pandas DataFrame with the columns of a table.
        owner_key: the owner's secret, 32 bytes.
        declared: declared facts in one object; None to give them by the names below.
        examples: the declared number of training examples.
        classes: the declared class names, in the order of the labels. A class may then be absent from the data.
        label_columns: names of the labels if each image may have none, one or many: columns of 0 and 1 of a table, in
            place of `label`, or the columns of an archive's y. This declares the labels.
        size: the declared side of the images in pixels, 4 to 1024; images are resized to it.
        channels: the declared number of channels, 1 or 3; images are converted to it.
        bit_depth: number of bits that 16-bit images use: 12 if white is 4095. Larger values are refused.
        window: alternatively, the values that become black and white, as (low, high). Without `bit_depth` and `window`,
            images of more than 8 bits are refused; 8-bit images never change. For DICOM files it applies to all greys,
            after the file's modality transformation; without it each file's own window is used, if it has one.
        path_column: column of a table with the images' paths; None for "path".
        label_column: column of a table or of Parquet with the classes; None for "label".
        user_column: column of a table or of Parquet with the users; None for "user", if there is one.
        class_from: how to find the class of an image in a folder: "folder:2" for the second folder on the way to it, or
            a regular expression searched in each file's name (see `user_from`).
        root: the folder of torchvision's data sets.
        download: whether to download a missing torchvision data set.
        test_fraction: expected share of the test part if the keyed hash splits the data; None for 0.2.
        public: whether the records are public; None for the kind's default (yes for published data sets).
        zoom: training images are also read at this multiple of `size` from their originals, for `Views` of this zoom;
            1 for no. Arrays no larger than `size` are enlarged by the views instead. A cache has its own views.
        user_from: how to find the user of an image in a folder: "folder" for PATH/CLASS/USER/IMAGE, or a regular
            expression searched in each file's name, whose first group is the user (the whole match if there is no
            group). Tables and archives name users in a column. For all three, "class" makes each class one user, named
            like the class. For a folder or table of DICOM files, "dicom" uses the patient identifier, of which only a
            code under the owner's key is kept.
        users: the declared number of users of the training part.
        groups_from: column of a table with the group of each record, for figures of each group (`sfumato evaluate`).
        open_set: whether each part may have classes of its own, and classes with a single image, as for embeddings,
            which are tested on classes that training did not see.
        skip_unreadable: whether to skip files of a folder, or records in shards, that cannot be read as images: those
            without an image's name, empty, broken or truncated. Their number is then a fact that was read.
        text_column: columns of a table with texts, joined by a space; None for "text".
        length: number of words read from each text; shorter texts are padded. None for 64: it is never read from
            private texts.
        vocabulary: number of word identifiers, including 0 for no word and 1 for unknown words (`Tokens`); None for
            8192, to which words are hashed. It must be declared if texts are already numbers.
        words: file of public words, one per line, numbered in this order, or the words themselves. Other words count as
            unknown.
        task: "next-word" to predict each word of a text from those before it (`NextWords`), which needs `words` and no
            labels; None for one class for each text.
        progress: called with (files done, all files) while image files are decoded. If images stay on disk and a hash
            of each file's bytes splits them, first while files are read for the split, and then again.

    >>> source = open_source("digits", owner_key=bytes(32))
    >>> source.train.images.shape, len(source.test), source.classes[:3], source.read, source.public
    ((1438, 8, 8, 1), 359, ('0', '1', '2'), (), True)
    """
    choice = choose_reader(spec)
    declared = replace(declared or Declared(), **facts)
    declared.check_counts()
    published = choice.kind in PUBLISHED
    if not isinstance(owner_key, bytes) or len(owner_key) < 32:
        raise SfumatoError("owner_key must be at least 32 secret bytes", "make one with secrets.token_bytes(32)")
    if choice.kind == CACHE:
        return open_cache(parse(spec)[1], declared, owner_key, progress)
    where = choice.where
    declared.refuse_foreign(where, choice.like)
    declared_facts, declared = declared.given, declared.checked()
    order = Order(declared=declared, owner_key=owner_key, progress=progress)
    loaded = choice.load(order)
    texts = loaded.tokens is not None
    declared.refuse_of_other_form(where, "texts" if texts else "images")
    _check_parts(loaded, where, open_set=declared.purpose.open_set)
    _check_groups(loaded, where)
    _check_subgroups(loaded, declared.purpose, where)
    train, test = loaded.train, loaded.test
    stored, pixels = digests(owner_key, train, test)
    users = count_users(declared.people.users, train, where)
    seen = train if loaded.zoomed is None else loaded.zoomed
    return Source(
        kind=choice.kind,
        train=train,
        test=test,
        zoomed=loaded.zoomed,
        classes=loaded.classes,
        examples=len(train) if declared.examples is None else declared.examples,
        users=users,
        size=train.shape[1],
        channels=1 if texts else train.shape[3],
        public=published if declared.public is None else declared.public,
        read=() if published else _read(declared_facts, texts=texts),
        users_read=users is not None and declared.people.users is None,
        bit_depth=declared.pixels.bit_depth,
        window=declared.pixels.window,
        user_from=declared.people.user_from,
        open_set=declared.purpose.open_set,
        test_fraction=declared.loading.share,
        fingerprint=loaded.fingerprint or fingerprint(owner_key, seen, test, loaded.classes),
        stored_digest=stored,
        pixels=pixels,
        assignment=assignment(owner_key, train, test),
        places=places_of(spec) if choice.spelt else (),
        size_rule=loaded.size_rule,
        has_own_split=loaded.has_own_split,
        cropped_share=loaded.cropped_share,
        filtered=loaded.filtered,
        unreadable_files=loaded.unreadable_files,
        notes=loaded.notes,
        tokens=loaded.tokens,
    )


def _read(declared: Collection[str], *, texts: bool) -> tuple[str, ...]:
    """The facts that were read from the data because they were not declared."""
    named = set(declared) | ({"classes"} if {"label_columns", "task"} & set(declared) else set())
    facts = tuple(fact for fact in (("examples", "classes") if texts else FACTS) if fact not in named)
    # Depends on the option alone: otherwise the fact's presence would reveal whether a file was unreadable.
    return (*facts, LEFT_OUT) if "skip_unreadable" in declared else facts


def _check_groups(loaded: Parts, spec: str) -> None:
    """Refuses a user in two groups."""
    group_of: dict[str, str] = {}
    for part in (loaded.train, loaded.test):
        if part.users is None or part.groups is None:
            continue
        for user, group in zip(part.users.tolist(), part.groups.tolist(), strict=True):
            if group_of.setdefault(user, group) != group:
                problem = f"user {user!r} of {spec!r} is in the groups {group_of[user]!r} and {group!r}"
                raise SfumatoError(problem, "give each user one group")


MOST_GROUPS = 50
"""The most groups for which figures are given."""


def _check_subgroups(loaded: Parts, purpose: Purpose, spec: str) -> None:
    """Refuses groups for figures of records without one class each, and a column of too many."""
    if purpose.groups_from is None:
        return
    if purpose.open_set or loaded.train.labels.ndim != 1:
        raise SfumatoError(
            f"`groups_from` is {purpose.groups_from}, but figures of groups are for classifiers with one class for "
            "each record",
            "leave it out",
        )
    parts = (loaded.train, loaded.test)
    groups = {name for part in parts if part.subgroups is not None for name in np.unique(part.subgroups)}
    counted = f"the number of groups in the column {purpose.groups_from!r} of {spec}"
    within(None, MOST_GROUPS, optional=False, remedy="give a column with fewer groups", **{counted: len(groups)})


def _check_parts(loaded: Parts, spec: str, *, open_set: bool) -> None:
    train, test = loaded.train, loaded.test
    record = "image" if loaded.tokens is None else "text"
    if not open_set and train.labels.ndim == 1:
        class_lists.check_counts(
            train.labels,
            test.labels,
            loaded.classes,
            where=repr(spec),
            classes_listed=loaded.classes_listed,
            has_own_split=loaded.has_own_split,
            record=record,
        )
    for name, part in (("training", train), ("test", test)):
        if not len(part):
            remedy = f"add {record}s, or make the train and test parts yourself"
            raise SfumatoError(f"the {name} part of {spec!r} is empty", remedy)


UNDERSTOOD = frozenset({"examples", "users", "public", "zoom", "open_set", "download"})
"""Facts that may be declared for a cache, or have no effect on it. All others were fixed when it was made."""


def open_cache(path: str, declared: Declared, owner_key: bytes, progress: OnProgress | None) -> Source:
    """The source of a cache, with the stored facts of its original source."""
    decided = [name for name in declared.given if name not in UNDERSTOOD]
    if decided:
        raise SfumatoError(
            f"{', '.join(decided)} of features:{path} were fixed when it was made", "leave them out, or make it anew"
        )
    cache = Cache(path)
    contents = cache.contents
    facts = dict(contents.source)
    train, test = (cache.records(part, progress=progress) for part in ("train", "test"))
    _check_labels(np.concatenate([train.labels, test.labels]), cache)
    for part in (train, test):
        for user in () if part.users is None else numbered(part.users)[1]:
            refuse_several(user, f"a record of features:{cache.path}")
    held = json.dumps([contents.identity, train.sums, test.sums])
    if declared.examples is not None:
        facts |= {"examples": declared.examples, "read": [fact for fact in facts["read"] if fact != "examples"]}
    if declared.people.users is not None:
        facts |= {"users": count_users(declared.people.users, train, f"features:{cache.path}"), "users_read": False}
    if declared.public is not None:
        facts["public"] = declared.public
    facts[PLACES] = (*places_of(f"features:{cache.path}"), *facts[PLACES])
    return from_facts(
        {**facts, "kind": "features"},
        train=train,
        test=test,
        test_fraction=contents.test_fraction,
        cache=cache,
        assignment=assignment(owner_key, train, test),
        features=hmac.new(owner_key, b"features" + held.encode(), hashlib.sha256).hexdigest(),
    )


def _check_labels(labels: np.ndarray, cache: Cache) -> None:
    """Refuses labels that do not fit the cache's classes."""
    classes = len(cache.contents.source["classes"])
    if labels.ndim == 1 and len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise damaged(cache.path, f"has labels from {labels.min()} to {labels.max()} and {classes} classes")
    if labels.ndim > 1 and (labels.shape[1] != classes or not np.isin(labels, (0, 1)).all()):
        raise damaged(cache.path, "has other labels than it says")
