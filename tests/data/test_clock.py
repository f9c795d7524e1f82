"""Time stamps: what is read of them, that they stay with their records, and which step each belongs to."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import Clock, Source, hold_out, open_source, write_without
from sfumato.data.clock import time_stamp
from sfumato.data.identity.fingerprint import fingerprint
from sfumato.data.readers import files

GENERATOR = np.random.default_rng(0)
DATES = np.datetime64("2026-01-01", "us") + GENERATOR.permutation(40) * np.timedelta64(7, "h")
NUMBERS = GENERATOR.permutation(40) / 4
IMAGES = np.arange(40, dtype=np.uint8)[:, None, None] + GENERATOR.integers(200, size=(1, 16, 16), dtype=np.uint8)
"""Image i is the first one, brighter by i: it tells its number."""
LABELS = np.arange(40) % 2

both_kinds = pytest.mark.parametrize("times", [DATES, NUMBERS], ids=["dates", "numbers"])


def table(path: Path, times: np.ndarray, parts: bool) -> str:
    lines = ["path,label,time" + ",split" * parts]
    for number in range(40):
        Image.fromarray(IMAGES[number]).save(path / f"{number}.png")
        part = f",{'train' if number % 4 else 'test'}" * parts
        lines.append(f"{number}.png,{'ab'[LABELS[number]]},{times[number]}{part}")
    (path / "t.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{path}/t.csv"


def archive(path: Path, times: np.ndarray, parts: bool) -> str:
    if parts:
        train, test = np.arange(40) % 4 > 0, np.arange(40) % 4 == 0
        arrays = {"x_train": IMAGES[train], "y_train": LABELS[train], "x_test": IMAGES[test], "y_test": LABELS[test]}
        np.savez(path / "a.npz", **arrays, time_train=times[train])
    else:
        np.savez(path / "a.npz", x=IMAGES, y=LABELS, time=times)
    return f"npz:{path}/a.npz"


both_sources = pytest.mark.parametrize("make", [table, archive])


def numbers(source: Source) -> np.ndarray:
    """Of each training record, its number."""
    return source.train.take(slice(None))[:, 0, 0, 0].astype(int) - IMAGES[0, 0, 0]


def aligned(source: Source, times: np.ndarray) -> bool:
    found = source.train.times
    return found is not None and found.dtype == times.dtype and np.array_equal(found, times[numbers(source)])


# -- they stay with their records ------------------------------------------------------------------------------------


@both_sources
@pytest.mark.parametrize(
    ("times", "parts", "share"), [(DATES, True, 0.5), (NUMBERS, False, 0), (NUMBERS, True, 0), (DATES, False, 0.5)]
)
def test_each_record_keeps_its_time_stamp_and_its_place(make, parts, share, times, key, tmp_path, monkeypatch):
    """Through the split, the larger images of a zoom, what is held out, and whatever is chosen of them; in order."""
    monkeypatch.setattr(files, "MEMORY_SHARE", share)
    spec = make(tmp_path, times, parts)
    source = open_source(spec, owner_key=key)
    assert 0 < len(source.test) < 20
    assert aligned(source, times)
    assert (np.diff(numbers(source)) > 0).all()
    zoomed = open_source(spec, owner_key=key, size=8, zoom=1.5)
    assert zoomed.zoomed is not None
    assert np.array_equal(zoomed.zoomed.times, source.train.times)
    smaller, validation = hold_out(source, key, 0.3)
    assert 0 < len(validation) < len(source.train)
    assert aligned(smaller, times)
    assert (np.diff(numbers(smaller)) > 0).all()
    assert aligned(replace(source, train=validation), times)


@both_kinds
def test_what_is_left_of_a_filtered_source_keeps_its_time_stamps(times, key, tmp_path):
    source = open_source(archive(tmp_path, times, True), owner_key=key)
    parts = {"train": source.train, "test": source.test}
    left = open_source(write_without(parts, source.classes, {0, 3, 35}, tmp_path / "left", marked=True), owner_key=key)
    assert len(left.train) == 28
    assert aligned(left, times)


def test_other_time_stamps_are_other_data(key, tmp_path):
    """A run is bound to its data by their fingerprint, so it goes on with none whose records belong to other steps."""
    later = DATES.copy()
    later[5] += np.timedelta64(1, "us")
    prints = {open_source(table(tmp_path, times, True), owner_key=key).fingerprint for times in (DATES, later, NUMBERS)}
    assert len(prints) == 3
    train = open_source(archive(tmp_path, DATES, True), owner_key=key).train
    without = replace(train, times=None)
    assert fingerprint(key, train, train, ("a", "b")) != fingerprint(key, without, without, ("a", "b"))


# -- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("2026-01-31", np.datetime64("2026-01-31")),
        ("2026-01-31T01:02:03.5", np.datetime64("2026-01-31T01:02:03.5")),
        ("2026-01-31 01:02Z", np.datetime64("2026-01-31T01:02")),
        ("2026-01-31T01:02+02:00", np.datetime64("2026-01-30T23:02")),
        ("0001-01-01", np.datetime64("0001-01-01")),
        ("17", 17.0),
        ("-0.25", -0.25),
        ("20260131", 20260131.0),
    ],
)
def test_numbers_and_dates(text, meaning):
    assert time_stamp(text) == meaning


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "1e999", "31.1.2026", "2026-02-30", "noon", "0001-01-01T00:00+02:00"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        time_stamp(text)


@pytest.mark.parametrize("dtype", ["datetime64[D]", "datetime64[ns]", "uint8", "float32"])
def test_arrays_of_any_unit_and_width(dtype, key, tmp_path):
    times = np.arange(40).astype(dtype)
    found = open_source(archive(tmp_path, times, True), owner_key=key).train.times
    assert found.dtype == ("datetime64[us]" if times.dtype.kind == "M" else np.float64)
    assert np.array_equal(found, times[np.arange(40) % 4 > 0].astype(found.dtype))


# -- which step they belong to ---------------------------------------------------------------------------------------

SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))


@settings(max_examples=40)
@given(st.lists(moments, min_size=1), moments, st.integers(1, 999), st.sampled_from("wdhms"), st.integers(-12, 12))
def test_steps_of_dates_are_exact(times, start, count, unit, offset):
    period = timedelta(seconds=count * SECONDS[unit])
    written = start.replace(tzinfo=timezone(timedelta(hours=offset))).isoformat()
    steps = Clock(start=written, period=f"{count}{unit}").steps_of(np.array([time_stamp(f"{t}") for t in times]))
    origin = start - timedelta(hours=offset)
    assert steps.tolist() == [max(-1, (time - origin) // period) for time in times]


WHOLE = st.integers(-(10**6), 10**6)


@settings(max_examples=40)
@given(st.lists(WHOLE, min_size=1), WHOLE, st.sampled_from([0.25, 1.0, 3.0]))
def test_steps_of_numbers_are_floors(times, start, period):
    steps = Clock(start=f"{start}", period=f"{period}").steps_of(np.array(times, float))
    assert steps.tolist() == [max(-1, int((time - start) // Fraction(period))) for time in times]


def test_what_is_beyond_all_steps_stays_beyond():
    steps = Clock(start="-1e308", period="1e-300").steps_of(np.array([-1.7e308, -1e308, 1e308]))
    assert steps.tolist() == [-1, 0, 2**53]
    assert Clock(start="0001-01-01", period="9999999w").steps_of(DATES).tolist() == [0] * 40


@both_kinds
def test_another_record_moves_nobody_else_s_step(times):
    clock = Clock(start="2026-01-02", period="1d") if times is DATES else Clock(start="1", period="2")
    whole = clock.steps_of(times)
    assert -1 in whole
    assert len(set(whole)) > 3
    assert np.array_equal(clock.steps_of(times[1:]), whole[1:])
    moved = times.copy()
    moved[7] = times.max() + (times.max() - times.min())
    assert np.flatnonzero(clock.steps_of(moved) != whole).tolist() == [7]


@pytest.mark.parametrize(
    ("start", "period", "words"),
    [
        ("soon", "1d", "start must be a date by ISO 8601 or a number, got 'soon'"),
        (True, "1", "start must be a date"),
        ("2026-01-01", "0d", "period must be a duration or a number above 0, got '0d'"),
        ("2026-01-01", "1 month", "period must be a duration"),
        ("0", "inf", "period must be a duration"),
        ("2026-01-01", 7, "start 2026-01-01 is a date, and period 7 a number"),
        (0, "1d", "start 0 is a number, and period 1d a duration"),
        ("2026-01-01", None, "start is given without period; give period as well, or neither"),
        (None, "1d", "period is given without start"),
    ],
)
def test_clocks_that_are_none_are_refused(start, period, words):
    with pytest.raises(SfumatoError, match=words):
        Clock.from_declared(start, period)


def test_declared_as_text_or_as_what_gives_it():
    assert Clock.from_declared(None, None) is None
    assert Clock.from_declared(datetime(2026, 1, 1).date(), "1d") == Clock(start="2026-01-01", period="1d")
    assert Clock.from_declared(0, 2.5) == Clock(start="0", period="2.5")
    assert Clock(**Clock(start="0", period="2").to_dict()) == Clock(start="0", period="2")


def test_dates_and_numbers_do_not_go_together():
    with pytest.raises(
        SfumatoError, match="time stamps are dates, and start 0 is a number; give start and period as a"
    ):
        Clock(start="0", period="1").steps_of(DATES)
    with pytest.raises(SfumatoError, match="time stamps are numbers, but start 2026-01-01 is a date"):
        Clock(start="2026-01-01", period="1d").steps_of(NUMBERS)
