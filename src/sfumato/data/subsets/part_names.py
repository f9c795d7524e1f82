"""Which part of the data a split's name speaks of, and what becomes of a validation part: one rule for all sources."""

from __future__ import annotations

import re
from collections.abc import Collection

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


def notes(parts: Collection[str | None], where: str) -> tuple[str, ...]:
    """What the owner is told of a validation part.

    >>> notes({"train", "test"}, "folder 'a'"), notes({"train", "validation"}, "folder 'a'")
    ((), ("the validation part of folder 'a' is the test part",))
    """
    if "validation" not in parts:
        return ()
    role = "the test part" if test_part(parts) == "validation" else "left out: train and test are read"
    return (f"the validation part of {where} is {role}",)
