"""Class lists: the names, their order, and whether every class can be learnt. And names in one spelling: of classes,
users and groups, and of the parts of a data set.

Archives and folders made on macOS hold accented letters decomposed, a letter and its accent; Linux and Windows mostly
write them composed. Both look alike and mean one name, and as two names one person would count as two users.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from sfumato._checks import SfumatoError, shortened, unwritable

if TYPE_CHECKING:
    import numpy as np

SHOWN = 3
"""Names that a note gives."""
_PLURALS = {"class": "classes", "user": "users", "group": "groups"}


def composed(name: str) -> str:
    """A name in Unicode's composed form (NFC), in which every name is compared, counted and kept.

    >>> composed("Zoe\\u0308") == "Zo\\u00eb", composed("ann")
    (True, 'ann')
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def decomposed(name: str) -> str:
    """The same name in the form that macOS writes (NFD)."""
    return unicodedata.normalize("NFD", name)


class Spellings:
    """Names as they are read, each once, and which of them are one name in several forms.

    **Guarantee.** What a name becomes is a function of that name alone, so that a record's class, user and group are
    functions of the record (unit: one record; adjacency: any). `notes` look at all names, for the
    owner alone.

    >>> names = Spellings()
    >>> names.of("user", "Zoe\\u0308") == names.of("user", "Zo\\u00eb"), len(names.notes)
    (True, 1)
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {what: {} for what in _PLURALS}

    def of(self, what: str, name: str) -> str:
        """The name in its composed form.

        Args:
            what: "class", "user" or "group".
            name: as it was read.
        """
        known = self._known[what]
        found = known.get(name)
        if found is None:
            found = known[name] = composed(name)
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say of names that were read in several forms."""
        found: list[str] = []
        for what, known in self._known.items():
            names, several = set[str](), set[str]()
            for name in known.values():
                (several if name in names else names).add(name)
            if several:
                first, more = sorted(several)[:SHOWN], len(several) - SHOWN
                listed = ", ".join(map(repr, first)) + (f" and {more} more" if more > 0 else "")
                found.append(f"{_PLURALS[what]} written in more than one Unicode form are taken for one each: {listed}")
        return tuple(found)


PARTS = ("train", "test", "validation")
_NAMES = {
    "train": ("training", "trn"),
    "test": ("testing", "tests", "tst", "eval", "evaluation"),
    "validation": ("valid", "val", "dev"),
}
"""What parts are called elsewhere: as Hugging Face's `datasets` finds them, and three spellings of folders."""
_PART_OF = {name: part for part, names in _NAMES.items() for name in (part, *names)}
_WORD = re.compile(r"[^a-z]+")


def part_called(name: str) -> str | None:
    """The part that a folder or a table's field is called, in any case of letters.

    >>> part_called("Val"), part_called("training"), part_called("cat")
    ('validation', 'train', None)
    """
    return _PART_OF.get(name.strip().lower())


def part_named(name: str) -> str | None:
    """The part that a word within a file's or a split's name speaks of.

    >>> part_named("validation"), part_named("train-00000"), part_named("unsupervised")
    ('validation', 'train', None)
    """
    parts = {_PART_OF[word] for word in _WORD.split(name.lower()) if word in _PART_OF}
    return parts.pop() if len(parts) == 1 else None


def test_part(parts: Collection[str | None]) -> str:
    """The part that is tested on: validation where there is no test part. Beside a test part it is left out.

    >>> test_part({"train", "validation"}), test_part({"train", "validation", "test"})
    ('validation', 'test')
    """
    return "validation" if "validation" in parts and "test" not in parts else "test"


def notes_on_parts(parts: Collection[str | None], where: str) -> tuple[str, ...]:
    """What the owner is told of a validation part.

    >>> notes_on_parts({"train", "test"}, "a"), notes_on_parts({"train", "validation"}, "folder 'a'")
    ((), ("the validation part of folder 'a' is the test part",))
    """
    if "validation" not in parts:
        return ()
    role = "the test part" if test_part(parts) == "validation" else "left out: train and test are read"
    return (f"the validation part of {where} is {role}",)


LONGEST_NAME = 255
"""Characters in the name of a class or a user: an array of text gives every name the room of the longest."""


class UnknownClassError(SfumatoError):
    """A record whose class is none of those that were declared.

    Args:
        record: where it is and which label it has.
        declared: what there is in its place. One clause.
        remedy: what to do where the classes are the owner's to declare.
    """

    def __init__(self, record: str, declared: str, remedy: str):
        super().__init__(f"{record}, {declared}", remedy)
        self.record, self.declared = record, declared

    def __reduce__(self):
        return type(self), (self.record, self.declared, self.remedy)


def require_declared(label: object, classes: Collection[str], where: str, remove: str) -> None:
    """Refuse a label that is none of the declared classes.

    Args:
        where: what holds it.
        remove: the other remedy.
    """
    if label not in classes:
        raise UnknownClassError(
            f"{where} the label {label!r}",
            "which is not among the declared classes",
            f"add it to the declared classes, or take {remove} out",
        )


def require_named(label: int, classes: int, where: str, *, first: int) -> None:
    """Refuse a label by number, counted from `first`, that is beyond the classes that are named."""
    if label >= classes + first:
        raise UnknownClassError(
            f"{where} the label {label}",
            f"and {classes} classes are named",
            f"name every class in the order of the labels, which count from {first}",
        )


def refuse_unwritable(text: str, what: str, *, longest: int | None = LONGEST_NAME) -> None:
    """Refuse a name that a table, a page or a terminal could not show, or that would fill the memory.

    Args:
        text: the name. Bytes in a file's name that are no UTF-8 have become surrogates.
        what: what to call it.
        longest: characters, at most; None for any number.
    """
    if longest is not None and len(text) > longest:
        raise SfumatoError(
            f"{what} {shortened(repr(text))} has {len(text):,} characters", f"give a name of at most {longest}"
        )
    if (why := unwritable(text)) is not None:
        raise SfumatoError(f"{what} {text!r} {why}", "rename it")


def declared_names(classes: Sequence[str] | None, what: str = "classes") -> tuple[str, ...] | None:
    """The declared class list as a tuple, in composed form, or None where nothing was declared.

    Args:
        what: the argument, in a refusal: "classes", or "label_columns".

    >>> declared_names(["cat", "dog"])
    ('cat', 'dog')
    """
    if classes is None:
        return None
    of = " class" if what == "classes" else ""
    if isinstance(classes, str) or not all(isinstance(name, str) and name for name in classes):
        raise SfumatoError(f"{what} must be a list of names, got {classes!r}", f"give one name for each{of}")
    names = tuple(map(composed, classes))
    for name in names:
        refuse_unwritable(name, "class name" if what == "classes" else f"name in {what}")
        if names.count(name) > 1:
            raise SfumatoError(f"{what} names {name!r} twice", f"name each{of} once")
    if len(names) < 2:
        if what == "classes":
            problem, remedy = "at least two classes", "name every class, each by itself"
        else:
            problem, remedy = "at least two", "name every label; a single one is two classes, in a column called label"
        raise SfumatoError(f"{what} must name {problem}, got {list(names)!r}", remedy)
    return names


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct names, sorted as text, or by value when every name is a whole number.

    >>> in_order(["dog", "cat", "dog"]), in_order(["10", "9"])
    (('cat', 'dog'), ('9', '10'))
    """
    distinct = set(names)
    if all(name.isascii() and name.isdigit() for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def renumbered(labels: np.ndarray, found: tuple[str, ...], declared: tuple[str, ...] | None, where: str) -> np.ndarray:
    """Labels that point into `found`, made to point into the declared class list instead.

    Args:
        labels: int64 (N,), positions in `found`.
        found: the names that the data set carries.
        declared: the names that the owner declared, or None to keep `found`.
        where: what to call the data set in an error.

    >>> import numpy as np
    >>> renumbered(np.array([0, 1]), ("a", "b"), ("b", "a"), "x.npz").tolist()
    [1, 0]
    """
    if declared is None or declared == found:
        return labels
    import numpy as np  # here, since options are declared without it

    for label in np.unique(labels):
        require_declared(found[label], declared, f"{where} holds", "its images")
    table = np.array([declared.index(name) if name in declared else -1 for name in found])
    return table[labels]


def _is_decimal(name: str) -> bool:
    """Whether it is a number with decimals: whole ones number classes."""
    return bool(_DECIMAL.fullmatch(name))


_DECIMAL = re.compile(r"[+-]?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)


def check_counts(
    train: np.ndarray,
    test: np.ndarray,
    classes: tuple[str, ...],
    *,
    where: str,
    listed: bool,
    parted: bool,
    record: str = "image",
) -> None:
    """Refuse a class that cannot be learnt: with a single image, or with none in the training part.

    Args:
        train, test: labels of the two parts, int64 (N,).
        classes: class names.
        where: what to call the data set in an error.
        listed: whether the class list was written down; then a class may be absent from the data altogether.
        parted: whether the owner made the two parts (otherwise the keyed hash did).
        record: what to call one record.
    """
    if len(classes) == 1:
        raise SfumatoError(f"{where} holds only one class, {classes[0]!r}", f"give {record}s of at least two classes")
    import numpy as np

    in_train = np.bincount(train, minlength=len(classes))
    in_all = in_train + np.bincount(test, minlength=len(classes))
    for name, learnt, total in zip(classes, in_train, in_all, strict=True):
        if total == 0 and not listed:
            raise SfumatoError(
                f"{where} has no {record} of class {name!r}", "number the classes without gaps, or declare every class"
            )
        if (total == 1 or (parted and learnt == 1)) and not listed and all(map(_is_decimal, classes)):
            raise SfumatoError(
                f"labels of {where} look like numbers ({name!r} and others), and a class is a name",
                "put numbers in a few classes, or train on them as they are in a loop of your own "
                "(sfumato.private_steps), whose loss may be a regression's",
            )
        if total == 1 or (parted and learnt == 1):
            part = "training " if parted else ""
            raise SfumatoError(
                f"class {name!r} of {where} has a single {part}{record}",
                f"add {record}s of this class, or take the class out",
            )
        if total and not learnt:
            why = "" if parted else f" after the split by keyed hash, which put all {total} of them in the test part"
            raise SfumatoError(
                f"class {name!r} of {where} has no training {record}{why}",
                f"add {record}s of this class, or make the train and test parts yourself",
            )
