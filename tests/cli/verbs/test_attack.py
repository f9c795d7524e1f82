"""sfumato audit RUN --attack SHADOWS."""

import json
from pathlib import Path


def files(run):
    return {path.name: path.read_bytes() for path in Path(run).iterdir() if path.is_file()}


def test_a_run_is_attacked_and_nothing_is_written_down(call, quick, run):
    """By the owner whose key has split the records; whoever has another one does not know who is in it."""
    call(f"train digits {quick} --output own")
    before = files("own")
    found = json.loads(call("audit own --attack 4 --json"))
    assert found["shadows"] == 4
    assert found["exceeds"] is False
    assert [rate["false_positives"] for rate in found["rates"]] == [0.001, 0.01]
    assert "a stranger who has the model file" in found["sentence"]
    assert "train more shadow models" in call("audit own --attack 2", status=1)
    assert files("own") == before
    assert "trained on other records than those of digits" in call(f"audit {run} --attack 4", status=1)


def test_what_is_no_run_or_of_another_audit_is_refused(call):
    assert "is for a model file, but recipe:digits is a recipe" in call("audit recipe:digits --attack 4", status=1)
    assert "--observations 10 and --attack are both given" in call("audit own --attack 4 --observations 10", status=1)
    assert "shadows must be" in call("audit own --attack 0", status=1)
