"""Class lists, their checks, tasks without classes, and Unicode normalisation of names of classes, users, groups and
parts.

Archives and folders made on macOS store accented letters decomposed, as a letter and its accent. Linux and Windows
mostly store them composed. Both look alike and mean the same name. Without normalisation, one person could count as two
users.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, TypeVar

from sfumato._checks import SfumatoError, one_of, shortened, unwritable_reason

if TYPE_CHECKING:
    import numpy as np

Name = TypeVar("Name")

SHOWN = 3
"""Largest number of names in a note."""
_MISSING = ("", "nan", "NaN", "None", "NaT", "<NA>")
"""How Python, NumPy and pandas write a missing value."""


def to_nfc(name: str) -> str:
    """A name in Unicode's composed form (NFC). All names are compared, counted and stored in this form.

    **Guarantee.** A function of the name alone, so a record's class, user and group are functions of the record (unit:
    one record; adjacency: any).

    >>> to_nfc("Zoe\\u0308") == "Zo\\u00eb", to_nfc("ann")
    (True, 'ann')
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def to_nfd(name: str) -> str:
    """The same name in the form that macOS writes (NFD)."""
    return unicodedata.normalize("NFD", name)


def user_name(text: str) -> str:
    """The name of a record's user as all names are compared: composed, and without spaces around it.

    Errors: `SfumatoError` for a name that cannot be displayed, or that stands for a missing one.
    """
    name = text.strip()
    refuse_unwritable(name, "user")
    if name in _MISSING:
        raise SfumatoError(
            f"the user of a record is {name!r}, which stands for a missing name",
            "give each record the name of its user, and leave out records without one",
        )
    return to_nfc(name)


def missing(place: str, value: str) -> SfumatoError:
    """The error for a record that lacks a value, such as its label."""
    return SfumatoError(f"{place} has no {value}", "fill it in, or remove the record")


def no_class(place: str, label: object) -> SfumatoError:
    """The error for a number that is no class."""
    return SfumatoError(f"{place} the label {label}, which is no class", "number the classes 0, 1, 2, ... without gaps")


PARTS = ("train", "test", "validation")
_NAMES = {
    "train": ("training", "trn"),
    "test": ("testing", "tests", "tst", "eval", "evaluation"),
    "validation": ("valid", "val", "dev"),
}
"""Other names of the parts: those that Hugging Face's `datasets` knows, and three common folder names."""
_PART_OF = {name: part for part, names in _NAMES.items() for name in (part, *names)}
_WORD = re.compile(r"[^a-z]+")


def part_by_name(name: str) -> str | None:
    """The part that a folder or a table's field names, ignoring case; None if none.

    >>> part_by_name("Val"), part_by_name("training"), part_by_name("cat")
    ('validation', 'train', None)
    """
    return _PART_OF.get(name.strip().lower())


def part_in_name(name: str) -> str | None:
    """The part that a word in the name of a file or split refers to; None if none or several.

    >>> part_in_name("validation"), part_in_name("train-00000"), part_in_name("unsupervised")
    ('validation', 'train', None)
    """
    parts = {_PART_OF[word] for word in _WORD.split(name.lower()) if word in _PART_OF}
    return parts.pop() if len(parts) == 1 else None


def test_part(parts: Collection[str | None] | ValuesView[str | None]) -> str:
    """The part to test on: test, or validation if there is no test part. With a test part, validation is ignored.

    >>> test_part({"train", "validation"}), test_part({"train", "validation", "test"})
    ('validation', 'test')
    """
    return "validation" if "validation" in parts and "test" not in parts else "test"


def notes_on_parts(parts: Collection[str | None] | ValuesView[str | None], where: str) -> tuple[str, ...]:
    """Notes for the owner on the use of a validation part.

    >>> notes_on_parts({"train", "test"}, "a"), notes_on_parts({"train", "validation"}, "folder 'a'")
    ((), ("the validation part of folder 'a' is the test part",))
    """
    if "validation" not in parts:
        return ()
    role = "the test part" if test_part(parts) == "validation" else "ignored: only train and test are read"
    return (f"the validation part of {where} is {role}",)


def parts_read(parts: Mapping[Name, str | None], where: str) -> tuple[dict[Name, str], tuple[str, ...]]:
    """The files or splits to read, each with its part, "train" or "test"; and notes.

    Args:
        parts: the part that each name refers to (`part_in_name`).
        where: what holds them, in errors.

    >>> parts_read({"a": "train", "b": "validation"}, "x")
    ({'a': 'train', 'b': 'test'}, ('the validation part of x is the test part',))
    """
    unclear = [str(name) for name, part in parts.items() if part is None]
    if unclear or "train" not in parts.values():
        problem = f"the name {unclear[0]!r} does not say its part" if unclear else "there is no train part"
        raise SfumatoError(f"by the names in {where}, {problem}", "name the parts train and test, or leave others out")
    read = {"train": "train", test_part(parts.values()): "test"}
    return {name: read[part] for name, part in parts.items() if part in read}, notes_on_parts(parts.values(), where)


LONGEST_NAME = 255
"""Characters in the name of a class or user. Every name in an array takes the space of the longest."""


class UnknownClassError(SfumatoError):
    """A record whose class is not among the declared ones.

    Args:
        record: its place and label.
        declared: what is wrong with the label. One clause.
        remedy: what to do if the owner declares the classes.
    """

    def __init__(self, record: str, declared: str, remedy: str):
        super().__init__(f"{record}, {declared}", remedy)
        self.record, self.declared = record, declared

    def __reduce__(self):
        return type(self), (self.record, self.declared, self.remedy)


def require_declared(label: object, classes: Collection[str], where: str, remove: str) -> None:
    """Refuses a label that is not a declared class.

    Args:
        where: what holds the label.
        remove: what to remove as the other remedy.
    """
    if label not in classes:
        raise UnknownClassError(
            f"{where} the label {label!r}",
            "which is not a declared class",
            f"add it to the declared classes, or take {remove} out",
        )


def require_named(label: int, classes: int, where: str, *, first: int) -> None:
    """Refuses a numeric label, counted from `first`, that exceeds the named classes."""
    if label >= classes + first:
        raise UnknownClassError(
            f"{where} the label {label}",
            f"but {classes} classes are named",
            f"name every class in the order of the labels, starting with {first}",
        )


def refuse_unwritable(text: str, title: str, *, longest: int | None = LONGEST_NAME) -> None:
    """Refuses a name that tables, pages or terminals cannot show, or that is too long.

    Args:
        text: the name. Bytes of a file name that are not UTF-8 appear as surrogates.
        title: its name in the error.
        longest: largest number of characters; None for no limit.
    """
    why, shown = unwritable_reason(text), repr(text)
    if longest is not None and len(text) > longest:
        why, shown = f"has {len(text):,} characters, more than {longest}", shortened(shown)
    if why is not None:
        raise SfumatoError(f"{title} {shown} {why}", "rename it")


def declared_names(classes: Sequence[str] | None, option: str = "classes") -> tuple[str, ...] | None:
    """The declared class list as a tuple, in composed form; None if not declared.

    Args:
        option: name of the argument in errors: "classes", or "label_columns".

    >>> declared_names(["cat", "dog"])
    ('cat', 'dog')
    """
    if classes is None:
        return None
    remedy = "name every class once"
    if option != "classes":
        remedy = "name every label once; a single one is two classes, in a column called label"
    if isinstance(classes, str) or not all(isinstance(name, str) and name for name in classes):
        raise SfumatoError(f"{option} must be a list of names, got {classes!r}", remedy)
    names = tuple(map(to_nfc, classes))
    for name in names:
        refuse_unwritable(name, "class name" if option == "classes" else f"name in {option}")
    if len(set(names)) < max(2, len(names)):
        raise SfumatoError(f"{option} must name at least two, each once, got {list(names)!r}", remedy)
    return names


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct names, sorted as text, or by value when every name is a whole number.

    >>> sort_names(["dog", "cat", "dog"]), sort_names(["10", "9"])
    (('cat', 'dog'), ('9', '10'))
    """
    distinct = set(names)
    if all(name.isascii() and name.isdigit() for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def renumber_labels(
    labels: np.ndarray, names: tuple[str, ...], declared: tuple[str, ...] | None, where: str
) -> np.ndarray:
    """Labels renumbered from positions in `names` to positions in the declared class list.

    Args:
        labels: int64 (N,), positions in `names`.
        names: class names in the data set.
        declared: class names that the owner declared, or None to keep `names`.
        where: name of the data set in errors.

    >>> import numpy as np
    >>> renumber_labels(np.array([0, 1]), ("a", "b"), ("b", "a"), "x.npz").tolist()
    [1, 0]
    """
    if declared is None or declared == names:
        return labels
    import numpy as np  # imported late: the command line loads this module for its options

    for label in np.unique(labels):
        require_declared(names[label], declared, f"{where} holds", "its images")
    table = np.array([declared.index(name) if name in declared else -1 for name in names])
    return table[labels]


def check_counts(
    train: np.ndarray,
    test: np.ndarray,
    classes: tuple[str, ...],
    *,
    where: str,
    classes_listed: bool,
    has_own_split: bool,
    record: str = "image",
) -> None:
    """Refuses a class that cannot be learnt: with a single image, or with none in the training part.

    Args:
        train, test: labels of the two parts, int64 (N,).
        classes: class names.
        where: name of the data set in errors.
        classes_listed: whether a class list was given, which may contain classes without records.
        has_own_split: whether the owner made the two parts (otherwise the keyed hash did).
        record: word for one record.
    """
    refuse_one_class(classes, where, record)
    if not classes_listed:
        refuse_reordered(classes, where)
    import numpy as np

    in_train = np.bincount(train, minlength=len(classes))
    in_all = in_train + np.bincount(test, minlength=len(classes))
    for name, learnt, total in zip(classes, in_train, in_all, strict=True):
        fault, remedy = None, f"add {record}s of this class, or remove the class"
        if total == 0 and not classes_listed:
            fault, remedy = f"no {record}", "number the classes without gaps, or declare every class"
        elif total == 1 or (has_own_split and learnt == 1):
            fault = f"a single {'training ' if has_own_split else ''}{record}"
        elif total and not learnt:
            split = f" after the split by keyed hash, which assigned all {total} to the test part"
            fault = f"no training {record}{'' if has_own_split else split}"
            remedy = f"add {record}s of this class, or make the train and test parts yourself"
        if fault:
            raise SfumatoError(f"class {name!r} of {where} has {fault}", remedy)


def refuse_one_class(classes: Sequence[str], where: str, record: str = "image") -> None:
    """Refuses data of a single class."""
    if len(classes) == 1:
        raise SfumatoError(f"{where} holds only one class, {classes[0]!r}", f"give {record}s of at least two classes")


_BETWEEN_LABELS = re.compile(r"[|;,/+&]")


def refuse_reordered(classes: Sequence[str], where: str) -> None:
    """Refuses two classes that name the same labels in another order, such as "A|B" and "B|A"."""
    seen: dict[tuple[str, ...], str] = {}
    for name in classes:
        labels = tuple(sorted(label.strip() for label in _BETWEEN_LABELS.split(name)))
        if (other := seen.setdefault(labels, name)) != name:
            raise SfumatoError(
                f"classes {other!r} and {name!r} of {where} are the same labels in another order",
                "if a record may have several labels, give a column of 0 and 1 for each (`label_columns`); otherwise "
                "write them in one order, or declare the `classes`",
            )


NEXT_WORD = "next-word"
TASKS = (NEXT_WORD,)
"""Values of the declared `task`."""


def check_task(task: str, declared: Collection[str]) -> None:
    """Refuses an unknown task, labels next to it, and next-word prediction without a declared list of words.

    Args:
        declared: the names of all declared facts.
    """
    one_of(TASKS, task=task)
    if labels := [name for name in ("classes", "label_columns", "label_column") if name in declared]:
        raise SfumatoError(f"`{labels[0]}` is given, and task {task} predicts words instead of labels", "leave it out")
    if "words" not in declared:
        hashed = ", and `vocabulary` would hash them" if "vocabulary" in declared else ""
        raise SfumatoError(
            f"task {task} predicts the words of a declared list, and none is given{hashed}",
            "give `words`, a file with one per line, such as the most frequent words of a public text: a list counted "
            "in the private texts would reveal them",
        )
