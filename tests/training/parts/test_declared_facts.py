"""Training in the order of time: each record's own time stamp decides its step, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import date, timedelta
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato import PrivacyPlan, RunKey, SfumatoError, Source, open_source, train, verify
from sfumato.data import Clock, hold_out
from sfumato.experiment import Settings
from sfumato.privacy import FixedOrder
from sfumato.randomness import NoiseState
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop, run
from sfumato.training.parts.declared_facts import steps_by_time, unassigned_note
from sfumato.training.preparation import from_record
from sfumato.training.preparation.prepare import prepare
from sfumato.training.steps import PrivateTrainingSteps

STEPS = 5
SETTINGS = Settings(model="linear", optimizer="sgd", learning_rate=1.0, ema=0.0, seed=5)
START = np.datetime64("2026-01-01", "us")
CLOCK = Clock(start="2026-01-01", period="1d")


@cache
def in_order(assignment="time", examples=200) -> PrivacyPlan:
    size = examples // 10
    rule = FixedOrder(batch_size=size, assignment=assignment)
    return PrivacyPlan.calibrate(
        examples=examples,
        batch_size=size,
        participation=rule,
        steps=STEPS,
        noise_multiplier=2.0,
        delta=1e-3,
        adjacency=rule.adjacencies[0],
    )


@pytest.fixture(scope="module")
def days() -> np.ndarray:
    """The day that each record is from, -1 to 6: a step is a day, so those of the first and last two take no part."""
    return np.random.default_rng(0).integers(-1, 7, 200)


@pytest.fixture(scope="module")
def times(days) -> np.ndarray:
    return (
        START + days * np.timedelta64(1, "D") + np.random.default_rng(1).integers(24, size=200) * np.timedelta64(1, "h")
    )


def with_times(source: Source, times: np.ndarray | None) -> Source:
    return replace(source, train=replace(source.train, times=times))


def archive(path, arrays, times) -> str:
    """The spots with time stamps."""
    np.savez(path, **np.load(arrays.removeprefix("npz:")), time_train=times)
    return f"npz:{path}"


def gradients(source: Source, clock: Clock = CLOCK) -> list[torch.Tensor]:
    """What each step would release, all at the same weights and with the same noise."""
    job = prepare(None, source, in_order(), SETTINGS, threads=1, clock=clock, key=RunKey.from_seed(0))
    steps = PrivateTrainingSteps(job, job.key)
    found = [steps(step, NoiseState(step=step))[0] for step in range(STEPS)]
    return [torch.cat([value.flatten() for value in one.values()]) for one in found]


@pytest.fixture(scope="module")
def moved(spots, times):
    """The steps whose releases are others than those of the spots at their times, by other times or another clock."""
    whole = gradients(with_times(spots, times))

    def steps(others: np.ndarray, clock: Clock = CLOCK) -> list[int]:
        both = zip(whole, gradients(with_times(spots, others), clock), strict=True)
        return [step for step, (one, another) in enumerate(both) if not torch.equal(one, another)]

    return steps


# -- who takes part in which step ------------------------------------------------------------------------------------


def test_a_record_that_moves_in_time_moves_its_own_steps_alone(times, days, moved):
    """Nobody else's step depends on it; before the start and after the last step it takes part in none."""
    for former, later in [(1, 3), (4, 0), (3, -1), (0, 6), (-1, 2), (-1, 5)]:
        shifted = times.copy()
        shifted[np.flatnonzero(days == former)[0]] += (later - former) * np.timedelta64(1, "D")
        assert moved(shifted) == sorted({former, later} & set(range(STEPS)))
    within = times.copy()
    within[np.flatnonzero(days == 2)[0]] = START + np.timedelta64(2, "D")
    assert moved(within) == []


def test_records_beyond_the_plan_s_steps_take_no_part(times, days, moved):
    inside = (days >= 0) & (days < STEPS)
    assert moved(np.where(inside, times, START - np.timedelta64(9, "D"))) == []
    before = np.full(200, START - np.timedelta64(1, "us"))
    one = np.flatnonzero(days == 0)[0]
    before[one] = times[one]
    assert moved(before) == list(range(STEPS))


def test_the_clock_decides(spots, times, days, moved):
    assert moved(times, Clock(start="2026-01-02", period="1d")) == list(range(STEPS))
    steps = steps_by_time(with_times(spots, times), in_order(), Clock(start="2026-01-02", period="2d"))
    assert steps.tolist() == np.maximum(-1, (days - 1) // 2).tolist()


def test_time_stamps_stay_with_what_is_not_held_out(spots, times):
    """Each record goes to the step that it had in the whole."""
    stream = with_times(spots, times)
    smaller, _ = hold_out(stream, bytes(32), 0.2)
    whole = dict(zip((image.tobytes() for image in stream.train.images), CLOCK.steps_of(times), strict=True))
    left = steps_by_time(smaller, in_order(examples=smaller.examples), CLOCK)
    assert left.tolist() == [whole[image.tobytes()] for image in smaller.train.images]


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_plan_by_time_needs_time_stamps_and_a_clock(spots, times, tmp_path):
    stream, options = with_times(spots, times), {"settings": SETTINGS, "threads": 1}

    def refusal(source, plan, **declared):
        with pytest.raises(SfumatoError) as told:
            train(None, source, plan, directory=tmp_path / "run", **declared, **options)
        assert not (tmp_path / "run").exists()
        return str(told.value)

    clock = {"start": "2026-01-01", "period": "1d"}
    assert refusal(stream, in_order()) == (
        "the plan orders records by their time stamps, but no start and period are given; "
        "declare both, such as start=2026-01-01 and period=1d"
    )
    assert refusal(spots, in_order(), **clock) == (
        "the plan orders records by their time stamps, but the source has none; "
        "give a csv with the column time, an npz with the array time_train, or another order"
    )
    for assignment in ("random", "position"):
        assert refusal(stream, in_order(assignment), **clock) == (
            "start 2026-01-01 and period 1d are given, but the plan is not over time; "
            "leave both out, or give order=time"
        )
    assert "start is given without period" in refusal(stream, in_order(), start="2026-01-01")
    assert "time stamps are dates, and start 0 is a number" in refusal(stream, in_order(), start=0, period=1)


def test_data_of_which_no_record_lies_in_a_step_are_refused(spots, times):
    with pytest.raises(
        SfumatoError, match="none of the records' time stamps lies within the 5 steps from 2026-03-01 on"
    ):
        steps_by_time(with_times(spots, times), in_order(), Clock(start="2026-03-01", period="1d"))


def test_the_owner_alone_is_told_how_many_records_lie_in_no_step(spots, times, days, tmp_path, heard):
    """On the terminal, and in no file of the run; by position those behind the last bin that is used."""
    stream, options = with_times(spots, times), {"settings": SETTINGS, "threads": 1, "progress": heard}
    outside = int(((days < 0) | (days >= STEPS)).sum())
    found = train(None, stream, in_order(), start=date(2026, 1, 1), period=timedelta(1), directory=tmp_path, **options)
    line = next(line for line in heard.lines if "are in no step of the plan" in line)
    assert line.startswith(f"note: {outside} of the 200 training records are")
    assert not any(b"in no step of the plan" in path.read_bytes() for path in found.directory.rglob("*.*"))
    assert json.loads((tmp_path / "settings.json").read_text())["clock"] == asdict(CLOCK)
    page = (tmp_path / "report.html").read_text()
    assert ">2026-01-01<" in page
    assert "time stamp" in page
    by_place = in_order("position")
    assert (unassigned_note(spots, by_place, None) or "").startswith("note: 100 of the 200 training records")
    assert unassigned_note(spots, replace(by_place, steps=10), None) is None
    assert unassigned_note(spots, in_order("random"), None) is None


# -- runs ------------------------------------------------------------------------------------------------------------


class StopError(BaseException):
    """Ends the process's work, as a kill would."""


@pytest.fixture
def begun(arrays, times, tmp_path, monkeypatch, killed_at):
    """A run that was cut after two steps, and how it goes on."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    source = open_source(archive(tmp_path / "stream.npz", arrays, times), owner_key=bytes(32))
    options = {"directory": tmp_path / "run", "settings": SETTINGS, "threads": 1}

    def go_on(source=source, start="2026-01-01", period="1d"):
        return train(None, source, in_order(), start=start, period=period, **options)

    with killed_at(3):
        go_on()
    return go_on


def test_a_run_goes_on_by_the_clock_that_it_began_with(begun, arrays, times, tmp_path):
    with pytest.raises(
        SfumatoError, match="differs in its clock: start was 2026-01-01 and is 2026-01-02; give the original"
    ):
        begun(start="2026-01-02")
    with pytest.raises(SfumatoError, match="differs in its clock: period was 1d and is 24h"):
        begun(period="24h")
    later = times.copy()
    later[7] += np.timedelta64(1, "D")
    other = open_source(archive(tmp_path / "later.npz", arrays, later), owner_key=bytes(32))
    with pytest.raises(SfumatoError, match="differs in its data: fingerprint"):
        begun(source=other)
    record = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert record["clock"] == {"start": "2026-01-01", "period": "1d"}
    (tmp_path / "run" / "settings.json").write_text(json.dumps(record | {"clock": {"start": "0", "period": "1"}}))
    with pytest.raises(SfumatoError, match="differs in its clock"):
        begun()
    (tmp_path / "run" / "settings.json").write_text(json.dumps(record | {"clock": asdict(CLOCK) | {"period": "2d"}}))
    with pytest.raises(SfumatoError, match="does not match this run, in: settings commitment"):
        begun(period="2d")
    (tmp_path / "run" / "settings.json").write_text(json.dumps(record))
    assert begun().steps == STEPS


def test_under_one_seed_clocks_have_keys_of_their_own(spots, times):
    """Noise that two releases share is gone from their difference."""
    stream = with_times(spots, times)
    clocks = CLOCK, Clock(start="2026-01-02", period="1d"), Clock(start="2026-01-01", period="2d")
    jobs = [prepare(None, stream, in_order(), SETTINGS, threads=1, clock=clock) for clock in (*clocks, CLOCK)]
    secrets = [job.key._secret for job in jobs]
    assert len(set(secrets)) == 3
    assert secrets[0] == secrets[3]


def test_a_stream_in_a_table_gives_a_model_and_a_statement(tmp_path):
    generator = np.random.default_rng(2)
    lines = ["path,label,time,split"]
    for number in range(120):
        pixels = generator.integers(0, 60, (8, 8), dtype=np.uint8)
        pixels[:, 4 * (number % 2) : 4 * (number % 2) + 4] += 150
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        part = "test" if number % 6 == 0 else "train"
        lines.append(f"{number}.png,{'ab'[number % 2]},{START + number * np.timedelta64(1, 'h')}+00:00,{part}")
    (tmp_path / "stream.csv").write_text("\n".join(lines) + "\n")
    plan = PrivacyPlan.calibrate(
        examples=100,
        batch_size=20,
        participation=FixedOrder(batch_size=20, assignment="time"),
        steps=5,
        noise_multiplier=0.5,
        delta=1e-3,
    )
    found = train(
        "linear",
        f"csv:{tmp_path}/stream.csv",
        plan,
        start="2026-01-01",
        period="1d",
        directory=tmp_path / "run",
        learning_rate=1.0,
        averaging=None,
        threads=1,
    )
    assert found.accuracy > 0.9
    assert "decided by its own time stamp" in found.statement.sentence
    assert verify(found.directory).holds
    written = [path.read_bytes() for path in found.directory.rglob("*.*")]
    assert not any(
        b"2026-01-0" in text.replace(b'"start": "2026-01-01"', b"").replace(b">2026-01-01<", b"") for text in written
    )


# -- what is asked for -----------------------------------------------------------------------------------------------


def test_a_run_is_resumed_from_its_own_record_by_its_clock(arrays, times, tmp_path, monkeypatch):
    """As `sfumato train RUN` does it."""
    from sfumato.randomness import owner_key

    spec = archive(tmp_path / "stream.npz", arrays, times)
    source = open_source(spec, owner_key=owner_key())
    job = prepare(None, source, in_order(), SETTINGS, threads=1, clock=CLOCK, request={"source": {"spec": spec}})
    with monkeypatch.context() as patch:
        patch.setattr(run, "take_remaining_steps", lambda *_, **__: (_ for _ in ()).throw(StopError))
        with pytest.raises(StopError):
            run.execute(job, RunDirectory(tmp_path / "run"))
    again, directory = from_record.job_from_record(str(tmp_path / "run"), trust_code=False)
    assert again.key_facts == {"clock": CLOCK.to_dict()}
    assert np.array_equal(again.sampler_inputs["times"], CLOCK.steps_of(times))
    assert run.execute(again, directory).steps == STEPS
