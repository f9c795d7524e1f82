"""Each parser reads or refuses what was made to do harm: a few files here, and for long in benchmarks/trust/fuzz.py."""

import pytest

from benchmarks.shared import hostile
from benchmarks.trust import fuzz
from sfumato import SfumatoError

NEEDS = {"dicom": "pydicom", "parquet": "pyarrow"}
SLOW = {"run": 2, "unfinished run": 2, "figures": 2}
"""Parsers that take long, with how many files they get."""


@pytest.mark.parametrize("name", fuzz.PARSERS)
def test_a_hostile_file_is_read_or_refused(name, tmp_path, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    found = fuzz.fuzz(name, tmp_path, files=SLOW.get(name, 10))
    assert found["findings"] == {}
    assert found["files"] == found["read"] + found["refused"]


def test_what_a_parser_must_not_come_to_is_named(monkeypatch):
    monkeypatch.setattr(hostile, "SECONDS", 0.05)

    def raising(error):
        def read():
            raise error

        return read

    def hang():
        while True:
            pass

    assert hostile.outcome(lambda: None) == "read"
    assert hostile.outcome(raising(SfumatoError("a", "b"))) == "refused"
    assert (
        hostile.outcome(raising(SfumatoError("a\nb\x1b", "c"))) == "refused"
    )  # a refusal is one line, whatever it quotes
    several = SfumatoError("a", "b")
    several.args = ("a\nb; c",)
    assert hostile.outcome(raising(several)).startswith("refused in more than one line")
    assert hostile.outcome(raising(KeyError("a"))).startswith("KeyError at ")
    assert hostile.outcome(hang).startswith("HangError at ")
    with hostile.limited():
        assert hostile.outcome(lambda: bytearray(2 * hostile.MEMORY)).startswith("MemoryError at ")
