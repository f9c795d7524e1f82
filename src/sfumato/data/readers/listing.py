"""Lists of labelled records, with one array for each fact."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import classes as class_lists
from sfumato.data.classes import PARTS, notes_on_parts, test_part, to_nfc, user_name
from sfumato.data.declared import Order
from sfumato.data.record_users import record_in_test, refuse_several
from sfumato.data.records import Stored
from sfumato.data.subsets import MARK

TEXT = np.dtypes.StringDType()
"""Texts of any length: 16 bytes each, plus their length if it exceeds 15."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Listing:
    """N labelled records that are stored one by one and not yet read.

    Args:
        stored: the records.
        places: int64 (N,), positions of the records in the storage.
        labels: int64 (N,), positions in `names`; or (N, L) of 0 and 1 for each of the source's labels.
        names: distinct names of the labels.
        written: the class list, if stored with the records.
        test: bool (N,), whether each is in the test part; None to let the keyed hash decide.
        users: int (N,), the user of each record, a position in `people`; None if unknown.
        people: distinct names of the users.
        groups: text (N,), the public group of the user, if known.
        subgroups: text (N,), the group of each record for figures, if declared.
        filtered: whether any record comes from a list that was filtered by looking at private data.
    """

    stored: Stored = field(repr=False)
    places: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    names: tuple[str, ...] = ()
    written: tuple[str, ...] | None = None
    test: np.ndarray | None = field(repr=False, default=None)
    users: np.ndarray | None = field(repr=False, default=None)
    people: tuple[str, ...] = field(repr=False, default=())
    groups: np.ndarray | None = field(repr=False, default=None)
    subgroups: np.ndarray | None = field(repr=False, default=None)
    filtered: bool = False

    def __len__(self) -> int:
        return len(self.places)

    def select(self, which: np.ndarray) -> Self:
        """The records where the mask (N,) is true, or at these positions."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        return replace(self, **{name: array[which] for name, array in values.items() if isinstance(array, np.ndarray)})

    def with_classes(self, classes: Sequence[str], whose: str) -> Self:
        """The listing with labels as positions in this class list. Refuses other labels.

        Args:
            whose: word for the record in errors.
        """
        places = {name: place for place, name in enumerate(classes)}
        table = np.array([places.get(name, -1) for name in self.names], np.int64)
        labels = table[self.labels] if len(table) else self.labels
        if len(unknown := np.flatnonzero(labels < 0)):
            first = unknown[0]
            name = self.stored.name(int(self.places[first]))
            class_lists.require_declared(self.names[self.labels[first]], classes, f"{str(name)!r} has", whose)
        return replace(self, labels=labels, names=tuple(classes))

    def numbered(self, classes: tuple[str, ...] | None) -> Self:
        """The listing with numeric labels taken as positions in the declared classes, if those have other names."""
        if classes is None or set(self.names) <= set(classes) or not all(map(str.isdecimal, self.names)):
            return self
        class_lists.require_named(max(map(int, self.names)), len(classes), "a record has", first=0)
        table = np.array([int(name) for name in self.names])
        return replace(self, labels=table[self.labels], names=classes)

    def with_class_users(self) -> Self:
        """The listing with each class as one user."""
        for name in self.names:
            refuse_several(name, f"class {name!r}, which is one user,")
        return replace(self, users=self.labels, people=self.names)

    def split_by_users(self, order: Order) -> Self:
        """The listing split by users, if they are known and the list has no parts (`record_in_test`)."""
        if self.test is not None or self.users is None:
            return self
        key, share = order.owner_key, order.declared.loading.share
        of_people = [record_in_test(key, b"", name, share) for name in self.people]
        return replace(self, test=np.array(of_people, bool)[self.users])

    def facts(self, rows: np.ndarray) -> dict[str, Any]:
        """Labels, users and groups of these rows, as fields of `Records`."""
        facts = {"labels": self.labels, "groups": self.groups, "subgroups": self.subgroups}
        users = None if self.users is None else np.array(self.people, TEXT)[self.users[rows]]
        return {"users": users} | {name: None if column is None else column[rows] for name, column in facts.items()}

    def reading(self, order: Order) -> dict[str, Any]:
        """Fields of `Parts`."""
        labels = order.declared.labels
        return {
            "classes_listed": (labels.classes or labels.label_columns or self.written) is not None,
            "has_own_split": self.test is not None,
            "filtered": self.filtered,
        }


class ListingBuilder:
    """Builds a listing record by record, without an object for each.

    Attributes:
        optional_facts: those of "user" and "group" that the records have.
    """

    def __init__(self) -> None:
        self._labels, self._parts = array("q"), array("b")
        self._names: dict[Any, int] = {}
        self._users, self._groups, self._subgroups = Texts(), Texts(), Texts()
        self._filtered = False
        self.optional_facts: set[str] = set()

    def __len__(self) -> int:
        return len(self._labels)

    def add(
        self,
        label: str | tuple[int, ...],
        *,
        part: str | None = None,  # train, test or validation
        user: str | None = None,
        group: str | None = None,
        subgroup: str | None = None,
        filtered: bool = False,
    ) -> None:
        """Adds a record with its facts. If one record has part, user or group, all do."""
        if not len(self):
            facts = {"user": user, "group": group}
            self.optional_facts = {name for name, fact in facts.items() if fact is not None}
        if isinstance(label, str):
            label = to_nfc(label)
        self._labels.append(self._names.setdefault(label, len(self._names)))
        self._filtered |= filtered
        if part is not None:
            self._parts.append(PARTS.index(part))
        if user is not None:
            self._users.append(user_name(user))
        if group is not None:
            self._groups.append(to_nfc(group))
        if subgroup is not None:
            self._subgroups.append(to_nfc(subgroup))

    def listing(self, stored: Stored, *, written: tuple[str, ...] | None = None) -> Listing:
        """The listing of the records, which are stored in the same order."""
        labels, names = np.frombuffer(self._labels, np.int64), tuple(self._names)
        if names and isinstance(names[0], tuple):
            labels, names = np.array(names, np.int64)[labels], ()
        check_names(names, [*self._groups.names, *self._subgroups.names])
        parts = np.array(self._parts, np.int8)
        tested = PARTS.index(test_part(self._named))
        listing = Listing(
            stored=stored,
            places=np.arange(len(labels)),
            labels=labels,
            names=names,
            written=written,
            test=parts == tested if len(parts) else None,
            users=self._users.numbers() if len(self._users) else None,
            people=tuple(self._users.names),
            groups=self._groups.array() if len(self._groups) else None,
            subgroups=self._subgroups.array() if len(self._subgroups) else None,
            filtered=self._filtered,
        )
        read = (parts == PARTS.index("train")) | (parts == tested)
        return listing.select(read) if len(parts) and not read.all() else listing

    @property
    def _named(self) -> set[str]:
        """The parts named by records."""
        return {part for number, part in enumerate(PARTS) if number in self._parts}

    def notes(self, where: str) -> tuple[str, ...]:
        """Notes on a validation part."""
        return notes_on_parts(self._named, where)


FACTS = ("label", "user", "group", "split")
"""Columns of a table next to a record's image or text. Only the label is required."""


def columns_of(
    first: Sequence[str],
    wanted: Sequence[str],
    order: Order,
    where: str,
    *,
    remedy: str,
    labels: Sequence[str] | None = None,
    label: str | None = None,
) -> dict[str, str]:
    """The column of each fact that a table has: its `FACTS`, "subgroup" (`groups_from`), and "path".

    Refuses a table that lacks a column, or has a needed column twice.

    Args:
        first: names of its columns.
        wanted: required columns besides the label.
        where: name of the table in errors.
        remedy: what to do about a missing column.
        labels: columns of 0 and 1, if records have several labels instead of one; empty if they have none.
        label: the column of the label, if it has no declared name; None for "label".
    """
    loading, people = order.declared.loading, order.declared.people
    named = {"path": loading.path_column, "label": loading.label_column or label, "user": loading.user_column}
    named = {fact: column for fact, column in named.items() if column is not None}
    options = {column: f"{fact}_column" for fact, column in named.items()}
    for fact, column in named.items():
        if options[column] != f"{fact}_column":
            both = f"`{fact}_column` and `{options[column]}` are both {column!r}"
            raise SfumatoError(both, "name a column of its own for each")
    groups = order.declared.purpose.groups_from
    for column, option in (*options.items(), *([] if groups is None else [(groups, "groups_from")])):
        if column not in first:
            raise _no_column(where, column, first, f"correct `{option}`")
    for column in labels or ():
        if column in (*wanted, *FACTS, MARK):
            problem = f"`label_columns` names {column!r}, a column that says something else"
            raise SfumatoError(problem, "rename the column of the label")
    column_of = {fact: fact for fact in ("path", *FACTS) if fact in first and fact not in options} | named
    if labels is not None:
        column_of.pop("label", None)
    for fact in (*wanted, *(["label"] if labels is None else labels)):
        if fact not in (column_of if fact in ("path", "label") else first):
            hint = f"give its name as `{fact}_column`, or " if fact in ("path", "label") and not labels else ""
            raise _no_column(where, fact, first, hint + remedy)
    if "path" not in wanted:
        column_of.pop("path", None)
    if "group" in column_of and "user" not in column_of:
        raise SfumatoError(
            f"{where} has a column 'group' but no column 'user'", "add a column user, or rename the column"
        )
    if people.user_from is not None and "user" in column_of:
        problem = f"{where} has the column user, but `user_from={people.user_from}` is given"
        raise SfumatoError(problem, "leave one of them out")
    for column in (*wanted, *column_of.values(), *(labels or ())):
        if list(first).count(column) > 1:
            raise SfumatoError(f"{where} has two columns {column!r}", "take one of them out")
    return column_of if groups is None else {**column_of, "subgroup": groups}


def _no_column(where: str, column: str, first: Sequence[str], remedy: str) -> SfumatoError:
    shown = repr(",".join(first)[:100])
    return SfumatoError(f"{where} has no column {column!r}, only {shown}", remedy)


def refuse_empty(count: int, where: str) -> None:
    """Refuses data without a record."""
    if not count:
        raise SfumatoError(f"{where} holds no record", "add at least two of each class")


def not_binary(column: str, where: str) -> SfumatoError:
    """The error for a label's column with other values than 0 and 1."""
    return SfumatoError(
        f"column {column!r} of {where} holds something other than 0 and 1",
        "write 1 for true and 0 for false; decide yourself about empty or uncertain values",
    )


class Texts:
    """A column of repeating texts, each stored once."""

    def __init__(self) -> None:
        self._numbers = array("i")
        self.names: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def append(self, text: str) -> None:
        """Appends a text."""
        self._numbers.append(self.names.setdefault(text, len(self.names)))

    def extend(self, names: Sequence[str], places: np.ndarray) -> None:
        """Appends texts, given as positions int (n,) in `names`."""
        numbers = np.array([self.names.setdefault(name, len(self.names)) for name in names], np.intc)
        self._numbers.frombytes(numbers[places].tobytes())

    def numbers(self) -> np.ndarray:
        """The position of each text in `names`, int (n,)."""
        return np.frombuffer(self._numbers, np.intc)

    def array(self) -> np.ndarray:
        """Text (n,), of fixed width."""
        return np.array(list(self.names), np.str_)[self.numbers()]


def check_names(labels: Iterable[str], groups: Iterable[str]) -> None:
    """Refuses names of classes and groups that cannot be displayed."""
    for title, names in (("class name", labels), ("group", groups)):
        for name in sorted(names):
            class_lists.refuse_unwritable(name, title)
