"""Names in one spelling: of classes, users and groups, and of the parts of a data set.

Archives and folders made on macOS hold accented letters decomposed, a letter and its accent; Linux and Windows mostly
write them composed. Both look alike and mean one name, and as two names one person would count as two users.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

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
