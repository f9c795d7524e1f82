"""Argument checks. Every refusal says what was wrong, with which value, and what to do instead."""

from __future__ import annotations

import difflib
import json
import math
import operator
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any


class SfumatoError(ValueError):
    """A refusal that its reader can act on.

    Args:
        problem: what is wrong: the argument's name, its value, what is allowed. One sentence without the full stop.
        remedy: what to do about it. One sentence without the full stop.

    In both an argument may stand in backticks, as in "give another `directory`" or "declare it (`public=True`)"; the
    command line shows it as its own option. It is one line: what a file's own words would do to a terminal is escaped.

    >>> print(SfumatoError("epsilon must be positive, got -1", "give a number such as 3"))
    epsilon must be positive, got -1; give a number such as 3
    >>> print(SfumatoError("the run in runs/a is finished", "give another `directory`"))
    the run in runs/a is finished; give another directory
    """

    def __init__(self, problem: str, remedy: str):
        problem, remedy = _escaped(problem), _escaped(remedy)
        super().__init__(f"{problem}; {remedy}".replace("`", ""))
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self):
        return type(self), (self.problem, self.remedy)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: the one line."""
        return [f"SfumatoError: {self}"]


_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _escaped(text: str) -> str:
    return _UNWRITABLE.sub(lambda found: " " if found[0] == "\n" else ascii(found[0])[1:-1], text)


def unwritable(text: str) -> str | None:
    """Why a terminal, a table or a page could not show a text as it is, or would show another; None where it can.

    >>> unwritable("cat"), unwritable("cat\\x1b[2J"), unwritable("\\u202ecat"), unwritable("\\udcff")
    (None, 'holds a control character', 'turns the direction of writing', 'is not UTF-8')
    """
    found = _UNWRITABLE.search(text)
    if found is None:
        return None
    if "\ud800" <= found[0] <= "\udfff":
        return "is not UTF-8"
    return "turns the direction of writing" if found[0] >= "\u202a" else "holds a control character"


def number(name: str, value: object, *, remedy: str = "give a finite number") -> float:
    """The value as a finite float, or a refusal."""
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise SfumatoError(f"{name} must be a number, got {value!r}", remedy) from None
    except OverflowError:
        raise SfumatoError(f"{name} must be a finite number, got {shortened(value)}", remedy) from None
    if isinstance(value, (bool, str)) or not math.isfinite(result):
        raise SfumatoError(f"{name} must be a finite number, got {value!r}", remedy)
    return result


def positive(name: str, value: object, *, remedy: str = "give a number above 0") -> float:
    """The value as a float above zero, or a refusal."""
    result = number(name, value, remedy=remedy)
    if result <= 0:
        raise SfumatoError(f"{name} must be positive, got {value!r}", remedy)
    return result


def not_negative(name: str, value: object, *, remedy: str = "give 0 or a number above it") -> float:
    """The value as a float of at least zero, or a refusal."""
    result = number(name, value, remedy=remedy)
    if result < 0:
        raise SfumatoError(f"{name} must not be negative, got {value!r}", remedy)
    return result


def fraction(name: str, value: object, *, remedy: str = "give a number strictly between 0 and 1") -> float:
    """The value as a float strictly between zero and one, or a refusal."""
    result = number(name, value, remedy=remedy)
    if not 0 < result < 1:
        raise SfumatoError(f"{name} must lie strictly between 0 and 1, got {value!r}", remedy)
    return result


def positive_integer(name: str, value: object, *, remedy: str = "give a whole number of at least 1") -> int:
    """The value as an integer of at least one, or a refusal. A float is refused even when it is whole."""
    if isinstance(value, bool):
        raise SfumatoError(f"{name} must be a whole number, got {value!r}", remedy)
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise SfumatoError(f"{name} must be a whole number, got {value!r}", remedy) from None
    if result < 1:
        raise SfumatoError(f"{name} must be at least 1, got {value!r}", remedy)
    return result


def one_of(name: str, value: object, allowed: Collection[str], *, remedy: str | None = None) -> str:
    """The value if it is one of the allowed names, or a refusal that lists them."""
    if isinstance(value, str) and value in allowed:
        return value
    listing = ", ".join(allowed)
    near = difflib.get_close_matches(value, list(allowed), n=1) if isinstance(value, str) else []
    remedy = f"did you mean {near[0]}" if near else remedy or "choose one of these names"
    raise SfumatoError(f"{name} must be one of {listing}; got {value!r}", remedy)


def parse_json(text: str | bytes) -> Any:
    """JSON in which no name stands twice; `ValueError` otherwise.

    Of a name that stands twice Python keeps the last, and a reader may see the first: a record must say one thing.

    >>> parse_json('{"steps": 60000, "steps": 60}')
    Traceback (most recent call last):
    ValueError: the name 'steps' stands twice
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} stands twice")
        found[name] = value
    return found


def differing(
    was: Mapping[str, Any], now: Mapping[str, Any], *within: str
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Where two nested mappings differ: the names that lead there, and both values; None for what one of them lacks.

    >>> list(differing({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}))
    [(('a', 'c'), 2, 3)]
    """
    for name in [*was, *(name for name in now if name not in was)]:
        before, after = was.get(name), now.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differing(before, after, *within, name)
        elif before != after:
            yield (*within, name), before, after


def shortened(value: object) -> str:
    """A value for a refusal that tells two of them apart, in at most 60 characters."""
    text = f"{value}"
    return text if len(text) <= 60 else f"{text[:57]}..."
