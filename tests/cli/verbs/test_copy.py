"""A copy of an unfinished run on the command line: refused, or resumed with --copy and counted."""

from __future__ import annotations

import json
import shutil

import pytest

from sfumato.privacy import Ledger


def test_a_copy_is_refused_or_counted(call, quick, monkeypatch):
    class StopError(Exception):
        pass

    inner = Ledger.append

    def stopping(self, kind, body):
        if kind == "release" and body["step"] == 1:
            raise StopError
        return inner(self, kind, body)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", stopping)
        with pytest.raises(StopError):
            call(f"train digits --private {quick} --output run")
    shutil.copytree("run", "copy")
    call("train run")
    refused = call("train copy", status=1)
    assert "another copy of it went on, or this one comes from a backup" in refused
    assert "give --copy, which counts the steps" in refused
    assert "3 steps, and 2 more that a copy of this run may have taken, of the" in call("train copy --copy")
    one, two = (json.loads(call(f"verify {name} --json"))["holds"] for name in ("run", "copy"))
    assert (one, two) == (True, True)
    (total,) = json.loads(call("spent digits --json"))["together"]
    assert total["runs"] == 2
