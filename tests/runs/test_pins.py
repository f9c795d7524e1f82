"""What a run pins of its machine: the refusal names both processors, or says that the run recorded none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sfumato._checks import SfumatoError
from sfumato.runs import pins

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
stepping\t: 8

processor\t: 1
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 207
"""
NAMED = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz (GenuineIntel, family 6, model 143)"
AMD = "AMD EPYC (AuthenticAMD, family 25, model 17)"
THERE = {"version of torch": "2.15.0", "processor": "x86_64 AVX512", "processor's model": NAMED}
HERE = THERE | {"processor's model": AMD}
OLD = {name: value for name, value in THERE.items() if name != "processor's model"}


@pytest.fixture(autouse=True)
def unknown():
    pins.processor_model.cache_clear()
    yield
    pins.processor_model.cache_clear()


def test_the_first_processor_of_a_linux_machine_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pins, "LISTING", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(INTEL)
    assert pins.processor_model() == NAMED
    assert pins.environment()["processor's model"] == NAMED


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ({"brand_string": "Apple M3 Pro"}, "Apple M3 Pro"),
        (
            {"brand_string": "Intel(R) Core(TM)  i7-9750H", "vendor": "GenuineIntel", "family": "6", "model": "158"},
            "Intel(R) Core(TM) i7-9750H (GenuineIntel, family 6, model 158)",
        ),
        ({}, "arm"),
    ],
)
def test_other_systems_are_asked_in_their_way(tmp_path, monkeypatch, answers, named):
    def sysctl(command: list[str], **_):
        name = command[-1].removeprefix("machdep.cpu.")
        if name not in answers:
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0, stdout=f"{answers[name]}\n")

    monkeypatch.setattr(pins, "LISTING", tmp_path / "none")
    monkeypatch.setattr(pins.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(pins.platform, "processor", lambda: "arm")
    monkeypatch.setattr(pins.subprocess, "run", sysctl)
    assert pins.processor_model() == named


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no /proc/cpuinfo here")
def test_this_machine_s_processor_is_named():
    named = pins.processor_model()
    assert named
    assert "\n" not in named


def test_the_refusal_names_vendor_and_model_of_both_sides():
    with pytest.raises(SfumatoError) as refused:
        pins.compare_environment(THERE, HERE, remedy="go back", where="runs/a")
    assert refused.value.problem == (
        f"what began in runs/a differs in its environment: processor's model was {NAMED} and is {AMD}"
    )


def test_a_variable_that_changes_rounding_is_pinned(monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    before = pins.environment()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    with pytest.raises(SfumatoError, match="variable MKL_CBWR was absent and is COMPATIBLE"):
        pins.compare_environment(before, pins.environment(), remedy="unset it", where="runs/a")


def test_a_run_that_recorded_no_processor_is_compared_in_what_it_recorded():
    pins.compare_environment(OLD, HERE, remedy="go back", where="runs/a")
    with pytest.raises(SfumatoError, match=r"environment: processor was x86_64 AVX512 and is x86_64 AVX2; "):
        pins.compare_environment(OLD, HERE | {"processor": "x86_64 AVX2"}, remedy="", where="runs/a")


@pytest.mark.parametrize(
    ("recorded", "named"),
    [(THERE, f"processor's model was {NAMED} and is {AMD}"), (OLD, f"processor's model was not recorded and is {AMD}")],
)
def test_a_model_that_computes_otherwise_on_another_processor_is_not_just_another_model(recorded, named):
    record = {"model": {"function": "ab" * 32}, "environment": recorded}
    present = {"model": {"function": "cd" * 32}, "environment": HERE}
    with pytest.raises(SfumatoError) as refused:
        pins.compare_model(record, present, where="runs/a")
    assert "function was abab" in refused.value.problem
    assert refused.value.problem.endswith(f"where rounding may be all that differs: {named}")
    pins.compare_model(record, present | {"model": record["model"]}, where="runs/a")


def test_another_model_on_the_same_machine_is_another_model():
    record = {"model": {"function": "ab" * 32}, "environment": HERE}
    with pytest.raises(SfumatoError, match=r"give the model that the run began with") as refused:
        pins.compare_model(record, record | {"model": {"function": "cd" * 32}}, where="runs/a")
    assert "rounding" not in str(refused.value)
