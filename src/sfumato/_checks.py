"""Argument checks. Every error says what is wrong, with which value, and what to do instead."""

from __future__ import annotations

import difflib
import json
import math
import numbers
import re
from collections.abc import Callable, Collection, Iterator, Mapping
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


# The validators take arguments by name, several at once, as in `positive(epsilon=epsilon, rate=rate)`, and return the
# first of them, converted. With `optional`, None passes.


def _checked(
    values: Mapping[str, object],
    convert: Callable[[str, object, str], Any],
    *claims: tuple[Callable[[Any], bool], str],
    optional: bool,
    remedy: str,
) -> Any:
    """The first value, converted. Refuses a value for which a claim, (test, words), does not hold."""
    converted = []
    for name, value in values.items():
        if value is None and optional:
            continue
        converted.append(convert(name, value, remedy))
        for holds, claim in claims:
            if not holds(converted[-1]):
                raise SfumatoError(f"{name} must {claim}, got {shortened(repr(value))}", remedy)
    return converted[0] if converted else None


def _number(name: str, value: object, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (float, numbers.Integral)):
        raise SfumatoError(f"{name} must be a number, got {shortened(repr(value))}", remedy)
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _finite(name: str, value: object, remedy: str) -> float:
    result = _number(name, value, remedy)
    if not isinstance(value, (float, int)):  # an integer of NumPy, whose products may wrap around
        raise SfumatoError(f"{name} must be a number of Python, got {shortened(repr(value))}", remedy)
    if not math.isfinite(result):
        raise SfumatoError(f"{name} must be a finite number, got {shortened(value)}", remedy)
    return result


def _integer(name: str, value: object, remedy: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise SfumatoError(f"{name} must be a whole number, got {shortened(repr(value))}", remedy)
    return int(value)


def number(*, optional: bool = False, remedy: str = "give a finite number", **values: object) -> float:
    """Finite numbers. Refuses anything else, such as a tensor or a float32, which would stay inexact."""
    return _checked(values, _finite, optional=optional, remedy=remedy)


def positive(
    *, most: float | None = None, optional: bool = False, remedy: str = "give a number above 0", **values: object
) -> float:
    """Finite numbers above 0, and at most `most`."""
    claims = (lambda x: x > 0, "be positive"), (lambda x: most is None or x <= most, f"be at most {most}")
    return _checked(values, _finite, *claims, optional=optional, remedy=remedy)


def not_negative(*, optional: bool = False, remedy: str = "give 0 or a number above it", **values: object) -> float:
    """Finite numbers of at least 0."""
    return _checked(values, _finite, (lambda x: x >= 0, "not be negative"), optional=optional, remedy=remedy)


def fraction(
    *, optional: bool = False, remedy: str = "give a number strictly between 0 and 1", **values: object
) -> float:
    """Numbers strictly between 0 and 1."""
    claim = lambda x: 0 < x < 1, "lie strictly between 0 and 1"
    return _checked(values, _finite, claim, optional=optional, remedy=remedy)


def below_one(*, optional: bool = False, remedy: str = "give a number in [0, 1)", **values: object) -> float:
    """Numbers of at least 0 and below 1."""
    claims = (lambda x: x >= 0, "not be negative"), (lambda x: x < 1, "be below 1")
    return _checked(values, _finite, *claims, optional=optional, remedy=remedy)


def within(
    least: float | None, most: float | None, /, *, optional: bool = False, remedy: str | None = None, **values: object
) -> float:
    """Numbers from `least` to `most`, either of which may be None.

    >>> within(1, 4, zoom=8)
    Traceback (most recent call last):
    sfumato._checks.SfumatoError: zoom must lie between 1 and 4, got 8; give one within these bounds
    >>> within(None, 10, bands=12)
    Traceback (most recent call last):
    sfumato._checks.SfumatoError: bands must be at most 10, got 12; give a smaller one
    """
    low, high = (None if end is None else f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (least, most))
    words, usual = f"lie between {low} and {high}", "one within these bounds"
    if low is None or high is None:
        words, usual = (
            (f"be at most {high}", "a smaller one") if low is None else (f"be at least {low}", "a larger one")
        )
    claim = lambda x: (least is None or x >= least) and (most is None or x <= most), words
    return _checked(values, _number, claim, optional=optional, remedy=remedy or f"give {usual}")


def whole_number(
    *,
    least: int | None = 0,
    most: int | None = None,
    optional: bool = False,
    remedy: str = "give a whole number within these bounds",
    **values: object,
) -> int:
    """Integers from `least` to `most`, either of which may be None. Whole floats are refused too.

    >>> whole_number(most=10, bands=12)
    Traceback (most recent call last):
    sfumato._checks.SfumatoError: bands must be at most 10, got 12; give a whole number within these bounds
    """
    low = (lambda x: least is None or x >= least), f"be at least {least}"
    high = (lambda x: most is None or x <= most), f"be at most {most or 0:,}"
    return _checked(values, _integer, low, high, optional=optional, remedy=remedy)


def positive_integer(
    *,
    most: int | None = None,
    optional: bool = False,
    remedy: str = "give a whole number of at least 1",
    **values: object,
) -> int:
    """Integers of at least 1, and at most `most`."""
    return whole_number(least=1, most=most, optional=optional, remedy=remedy, **values)


def true_or_false(**values: object) -> None:
    """Refuses anything but True and False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise SfumatoError(f"{name} must be true or false, got {value!r}", "give True or False")


def one_of(allowed: Collection[str], /, *, optional: bool = False, remedy: str | None = None, **values: object) -> str:
    """Allowed names. Refuses another name, lists them and suggests a similar one."""
    for name, value in values.items():
        if (value is None and optional) or (isinstance(value, str) and value in allowed):
            continue
        near = difflib.get_close_matches(value, list(allowed), n=1) if isinstance(value, str) else []
        advice = f"did you mean {near[0]}" if near else remedy or "choose one of these names"
        raise SfumatoError(f"{name} must be one of {', '.join(allowed)}; got {value!r}", advice)
    return next(iter(values.values()))  # type: ignore[return-value]


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
