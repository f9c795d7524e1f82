"""Time stamps of records, and the step that each time stamp belongs to."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np

from sfumato._checks import SfumatoError

TimeStamp = float | np.datetime64
"""A number, or a date and time in UTC with microseconds."""

WRITTEN = "such as 2026-01-31, 2026-01-31T23:59:59+01:00, or a number"
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"([0-9]{1,7})([wdhms])")  # more weeks would overflow 64-bit microseconds
_FARTHEST = 2.0**53


def time_stamp(text: str) -> TimeStamp:
    """Parses a time stamp: a finite number, or an ISO 8601 date, in UTC unless it has an offset.

    Errors: `ValueError` for anything else.

    >>> time_stamp("17.5"), str(time_stamp("2026-01-31T01:00+02:00"))
    (17.5, '2026-01-30T23:00:00.000000')
    """
    try:
        number = float(text)
    except ValueError:
        return _date(text)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _date(text: str) -> np.datetime64:
    date = datetime.fromisoformat(text)
    try:
        date = date if date.tzinfo is None else date.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        raise ValueError("beyond the years 1 to 9999") from None
    return np.datetime64(date, "us")


def _duration(text: str) -> float | np.timedelta64:
    """Parses a number above 0, or a whole number of weeks, days, hours, minutes or seconds; else `ValueError`."""
    found = _DURATION.fullmatch(text)
    if found is not None:
        length = np.timedelta64(1_000_000 * int(found[1]) * _SECONDS[found[2]], "us")
        positive = length > np.timedelta64(0, "us")
    else:
        length = float(text)
        positive = 0 < length < math.inf
    if not positive:
        raise ValueError("not above 0, or not finite")
    return length


def _duration_text(period: timedelta) -> str:
    """A duration in the largest unit of which it is a whole number.

    >>> _duration_text(timedelta(days=1)), _duration_text(timedelta(hours=36)), _duration_text(timedelta(days=14))
    ('1d', '36h', '2w')
    """
    seconds = period.total_seconds()
    unit = next((unit for unit, length in _SECONDS.items() if seconds % length == 0), None)
    return str(period) if unit is None else f"{seconds / _SECONDS[unit]:.0f}{unit}"


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The step of a time stamp: floor((time - start) / period).

    **Guarantee.** Start and period are public declarations, so a record's step is a function of its own time stamp
    alone. Adding, removing or moving another record in time changes no other record's step (unit: one record;
    adjacency: any).

    Args:
        start: start of step 0: an ISO 8601 date, in UTC unless it has an offset, or a number.
        period: duration of a step: a whole number of weeks, days, hours, minutes or seconds, such as "1d", "12h" or
            "30m"; a number if start is one.

    >>> clock = Clock(start="2026-01-01", period="12h")
    >>> clock.steps_of(np.array(["2025-12-31T23:59", "2026-01-01", "2026-01-03T12:00"], "datetime64[us]")).tolist()
    [-1, 0, 5]
    """

    start: str
    period: str

    def __post_init__(self) -> None:
        problem, remedy = f"start must be a date by ISO 8601 or a number, got {self.start!r}", f"give one {WRITTEN}"
        try:
            start = time_stamp(self.start)
            problem = f"period must be a duration or a number above 0, got {self.period!r}"
            remedy = "give one such as 1d, 12h or 30m, or a number if start is a number"
            period = _duration(self.period)
        except ValueError:
            raise SfumatoError(problem, remedy) from None
        if isinstance(start, float) != isinstance(period, float):
            words = ("date", "number") if isinstance(period, float) else ("number", "duration")
            raise SfumatoError(
                f"start {self.start} is a {words[0]}, and period {self.period} a {words[1]}",
                "give a date and a duration such as 1d, or two numbers",
            )

    @classmethod
    def from_declared(cls, start: object, period: object) -> Clock | None:
        """The clock of declared values, which are converted to text; None if nothing was declared."""
        if start is None and period is None:
            return None
        if start is None or period is None:
            given, absent = ("start", "period") if period is None else ("period", "start")
            raise SfumatoError(f"{given} is given without {absent}", "give both or neither")
        return cls(start=str(start), period=_duration_text(period) if isinstance(period, timedelta) else str(period))

    def to_dict(self) -> dict[str, str]:
        """The fields as plain data."""
        return asdict(self)

    def steps_of(self, times: np.ndarray) -> np.ndarray:
        """The step int64 (N,) of each time stamp, -1 before the start.

        Args:
            times: (N,), float64 or datetime64[us], matching the type of the start.
        """
        start, period = time_stamp(self.start), cast(Any, _duration(self.period))
        if (times.dtype.kind == "M") != isinstance(start, np.datetime64):
            theirs, ours = ("dates", "number") if times.dtype.kind == "M" else ("numbers", "date")
            raise SfumatoError(
                f"the records' time stamps are {theirs}, and start {self.start} is a {ours}",
                f"give `start` and `period` as {'a date and a duration' if theirs == 'dates' else 'numbers'}",
            )
        if isinstance(start, float):
            with np.errstate(over="ignore"):  # overflow to infinity lies after all steps
                places = np.floor((times - start) / period)
        else:
            places = (times - start) // period
        return np.clip(places, -1, _FARTHEST).astype(np.int64)
