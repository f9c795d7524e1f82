"""Argument checks. Every error says what is wrong, with which value, and what to do instead."""

from __future__ import annotations

import difflib
import json
import math
import numbers
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any


class SfumatoError(ValueError):
    """An error that its reader can act on.

    Args:
        problem: what is wrong: the argument's name, its value, what is allowed. One sentence without the full stop.
        remedy: what to do about it. One sentence without the full stop.

    Both may contain an argument in backticks, as in "give another `directory`" or "declare it (`public=True`)". The
    command line replaces it by its own option. The message is one line, with control characters escaped.

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
        """The only line that IPython shows, in place of a traceback."""
        return [f"SfumatoError: {self}"]


_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _escaped(text: str) -> str:
    return _UNWRITABLE.sub(lambda found: " " if found[0] == "\n" else ascii(found[0])[1:-1], text)


def unwritable_reason(text: str) -> str | None:
    """Why a terminal, a table or a page cannot show a text faithfully; None if it can.

    >>> [unwritable_reason(text) for text in ("cat", "cat\\x1b[2J", "\\u202ecat", "\\udcff")]
    [None, 'holds a control character', 'turns the direction of writing', 'is not UTF-8']
    """
    match = _UNWRITABLE.search(text)
    if match is None:
        return None
    if "\ud800" <= match[0] <= "\udfff":
        return "is not UTF-8"
    return "turns the direction of writing" if match[0] >= "\u202a" else "holds a control character"


def number(name: str, value: object, *, remedy: str = "give a finite number") -> float:
    """The value as a finite float. Refuses anything else, such as a tensor or a float32, which would stay inexact."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SfumatoError(f"{name} must be a number, got {value!r}", remedy)
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise SfumatoError(f"{name} must be a finite number, got {shortened(value)}", remedy)
    return result


def positive(name: str, value: object, *, remedy: str = "give a number above 0") -> float:
    """The value as a float above zero. Refuses anything else."""
    result = number(name, value, remedy=remedy)
    if result <= 0:
        raise SfumatoError(f"{name} must be positive, got {value!r}", remedy)
    return result


def not_negative(name: str, value: object, *, remedy: str = "give 0 or a number above it") -> float:
    """The value as a float of at least zero. Refuses anything else."""
    result = number(name, value, remedy=remedy)
    if result < 0:
        raise SfumatoError(f"{name} must not be negative, got {value!r}", remedy)
    return result


def fraction(name: str, value: object, *, remedy: str = "give a number strictly between 0 and 1") -> float:
    """The value as a float strictly between zero and one. Refuses anything else."""
    result = number(name, value, remedy=remedy)
    if not 0 < result < 1:
        raise SfumatoError(f"{name} must lie strictly between 0 and 1, got {value!r}", remedy)
    return result


def whole_number(name: str, value: object, least: int | None = 0, *, remedy: str = "give a whole number") -> int:
    """The value as an integer of at least `least`. Refuses anything else, including whole floats."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise SfumatoError(f"{name} must be a whole number, got {value!r}", remedy)
    within(name, value, least, None, remedy=remedy)  # type: ignore[arg-type]
    return int(value)


def positive_integer(name: str, value: object, *, remedy: str = "give a whole number of at least 1") -> int:
    """The value as an integer of at least one. Refuses anything else, including whole floats."""
    return whole_number(name, value, 1, remedy=remedy)


def true_or_false(name: str, value: object) -> None:
    """Refuses anything but True and False."""
    if not isinstance(value, bool):
        raise SfumatoError(f"{name} must be true or false, got {value!r}", "give True or False")


def below_one(name: str, value: object, *, remedy: str = "give a number in [0, 1)") -> float:
    """The value as a float of at least zero and below one. Refuses anything else."""
    result = not_negative(name, value, remedy=remedy)
    if result >= 1:
        raise SfumatoError(f"{name} must be below 1, got {value!r}", remedy)
    return result


def within(name: str, value: float, least: float | None, most: float | None, *, remedy: str | None = None) -> None:
    """Refuses a number below `least` or above `most`, either of which may be None.

    >>> within("zoom", 8, 1, 4)
    Traceback (most recent call last):
    sfumato._checks.SfumatoError: zoom must lie between 1 and 4, got 8; give one within these bounds
    >>> within("bands", 12, None, 10)
    Traceback (most recent call last):
    sfumato._checks.SfumatoError: bands must be at most 10, got 12; give a smaller one
    """
    if (least is None or value >= least) and (most is None or value <= most):
        return
    low, high = (None if end is None else f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (least, most))
    if low is None or high is None:
        bounds, usual = (f"at most {high}", "smaller") if low is None else (f"at least {low}", "larger")
        raise SfumatoError(f"{name} must be {bounds}, got {shortened(value)}", remedy or f"give a {usual} one")
    problem = f"{name} must lie between {low} and {high}, got {shortened(value)}"
    raise SfumatoError(problem, remedy or "give one within these bounds")


def one_of(name: str, value: object, allowed: Collection[str], *, remedy: str | None = None) -> str:
    """The value if it is one of the allowed names. Otherwise refuses and lists them."""
    if isinstance(value, str) and value in allowed:
        return value
    listing = ", ".join(allowed)
    near = difflib.get_close_matches(value, list(allowed), n=1) if isinstance(value, str) else []
    remedy = f"did you mean {near[0]}" if near else remedy or "choose one of these names"
    raise SfumatoError(f"{name} must be one of {listing}; got {value!r}", remedy)


def exactly(name: str, data: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """Stored data if they hold exactly these names. Refuses anything else."""
    if set(data) != set(names):
        raise SfumatoError(f"{name} must hold {', '.join(names)}; got {', '.join(sorted(data))}", "restore the file")
    return data


def parse_json(text: str | bytes) -> Any:
    """JSON without duplicate names; `ValueError` otherwise.

    For a duplicate name, Python keeps the last value, but a human reader may notice only the first.

    >>> parse_json('{"steps": 60000, "steps": 60}')
    Traceback (most recent call last):
    ValueError: the name 'steps' appears twice
    """
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"the name {name!r} appears twice")
        result[name] = value
    return result


def nested_differences(
    was: Mapping[str, Any], now: Mapping[str, Any], *within: str
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """The differences between two nested mappings: the path of names and both values; None for a missing value.

    >>> list(nested_differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}))
    [(('a', 'c'), 2, 3)]
    """
    for name in [*was, *(name for name in now if name not in was)]:
        before, after = was.get(name), now.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from nested_differences(before, after, *within, name)
        elif before != after:
            yield (*within, name), before, after


def shortened(value: object) -> str:
    """The value as text of at most 60 characters, for an error message."""
    text = f"{value}"
    return text if len(text) <= 60 else f"{text[:57]}..."
