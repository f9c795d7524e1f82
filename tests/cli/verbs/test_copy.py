"""A copy of an unfinished run on the command line: refused, or resumed with --copy and counted."""

import json
import shutil

from sfumato.privacy import Ledger
from tests.killed import before_line, killed


def test_a_copy_is_refused_or_counted(call, quick):
    with killed(Ledger, "append", before_line(1)):
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
