"""What a run pins of its machine: the refusal names both processors, or says that the run recorded none."""

from __future__ import annotations

import subprocess

import pytest

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


def recorded(environment, digest="ab" * 32):
    return {"environment": environment, "performance": {"device": "cpu", "threads": 1}, "model": {"function": digest}}


def test_vendor_and_model_of_both_sides_are_named():
    assert pins.changes_since(recorded(THERE), recorded(HERE)) == [f"processor's model was {NAMED} and is {AMD}"]


def test_a_variable_that_changes_rounding_is_recorded(monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    before = pins.environment()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    found = pins.changes_since(recorded(before), recorded(pins.environment()))
    assert found == ["variable MKL_CBWR was absent and is COMPATIBLE"]


def test_a_model_that_computes_otherwise_is_named_and_a_run_is_compared_with_where_it_was_last():
    record, present = recorded(THERE), recorded(HERE, "cd" * 32)
    assert f"digest of function was {'ab' * 8} and is {'cd' * 8}" in pins.changes_since(record, present)
    record["went_on"] = [{"step": 2, **pins.compute_record(present)}]
    assert pins.changes_since(record, present) == []
