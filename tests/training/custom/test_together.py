"""Own loops that several processes take together, against those of one."""

from pathlib import Path

from sfumato import verify
from sfumato.privacy.ledger import read
from sfumato.runs.directory import RunDirectory

SCRIPT = str(Path(__file__).with_name("own_loops_of_ranks.py"))
SENTENCE = "computed by 2 processes of one machine that see unprotected sums"


def test_two_processes_leave_the_same_bytes_as_one_and_pay_each_step_once(tmp_path, ranks):
    for count, place in enumerate(("one", "two"), start=1):
        done = ranks(count, [SCRIPT, str(tmp_path / place)], SFUMATO_HOME=str(tmp_path / "home"))
        assert [one.returncode for one in done] == [0] * count, [one.stderr for one in done]
        assert [one.stdout for one in done] == ["leads\n", "follows\n"][:count]
    for kind in ("records", "users", "tree"):
        one, two = (RunDirectory(tmp_path / place / kind) for place in ("one", "two"))
        assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
        assert verify(two.path).holds
        assert two.read_json("statement.json")["computed"]["sentence"] == SENTENCE
        assert "computed" not in one.read_json("statement.json")
        entries = read(two / "ledger.jsonl")
        assert [entry.body["step"] for entry in entries if entry.kind == "release"] == list(range(4))
        assert [entry.kind for entry in entries].index("workers") < [entry.kind for entry in entries].index("release")
        assert not (two / "workers.token").exists()
