"""Who has seen sums before their noise: the ledger tells, and the statement follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfumato import Ledger, PrivacyPlan, SfumatoError
from sfumato.privacy import Circumstances, Statement
from sfumato.privacy.ledger import Entry, Record, read
from sfumato.privacy.statements.process_counts import ENTRY, ProcessCounts


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append("begin", {"plan": "p"})
        yield ledger


def test_a_line_is_written_where_more_take_part_than_before(ledger):
    for processes, machines in ((2, 1), (2, 1), (8, 1), (2, 2), (4, 2), (8, 2)):
        ProcessCounts(processes=processes, machines=machines).record(ledger)
        ledger.append("release", {"step": len(ledger.entries)})
    lines = [tuple(entry.body.values()) for entry in read(ledger.path) if entry.kind == ENTRY]
    assert lines == [(1, 2), (1, 8), (2, 2)]
    assert ProcessCounts.from_entries(ledger.entries) == ProcessCounts(processes=8, machines=2)


def test_the_line_survives_a_power_cut(ledger, monkeypatch):
    """Else the run could go on alone, and its statement would know of nobody."""
    written = []
    monkeypatch.setattr(type(ledger), "sync", lambda ledger: written.append(ledger.entries[-1].kind))
    ProcessCounts(processes=2, machines=1).record(ledger)
    assert written == [ENTRY]


def test_a_run_of_one_process_has_none(ledger):
    assert ProcessCounts.from_entries(ledger.entries) is None


def test_steps_are_found_between_such_lines(ledger):
    paid = [ledger.entries[0]]
    for step in range(3):
        ProcessCounts(processes=2 + step, machines=1).record(ledger)
        paid.append(ledger.append("release", {"step": step}))
    assert [ledger.step_entry(steps) for steps in range(4)] == paid


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"processes": 2},
        {"processes": 2, "machines": 1, "more": 0},
        {"processes": 2, "machines": True},
    ],
)
def test_a_line_that_says_something_else_is_refused(body):
    plan = PrivacyPlan.calibrate(examples=200, batch_size=200, steps=2, noise_multiplier=9.0, delta=1e-3)
    digests = ("data_commitment", "settings_commitment", "key_check", "record_commitment")
    known = {"plan": plan.to_dict(), "plan_fingerprint": plan.fingerprint, "record_fields": []}
    begin = Entry.after(None, "begin", {**dict.fromkeys(digests, "0" * 64), **known})
    Record(plan, [begin, Entry.after(begin, ENTRY, {"processes": 2, "machines": 1})])
    with pytest.raises(SfumatoError, match="line 2 of the ledger, workers, cannot stand there with its m"):
        Record(plan, [begin, Entry.after(begin, ENTRY, body)])


@pytest.mark.parametrize("numbers", [(1, 1), (2, 3), (2, 0), (2.0, 1), ("2", 1)])
def test_impossible_numbers_are_refused(numbers):
    with pytest.raises(SfumatoError, match="a run was computed by"):
        ProcessCounts(processes=numbers[0], machines=numbers[1])


def test_the_statement_says_so_and_promises_the_same():
    plan = PrivacyPlan.calibrate(examples=200, batch_size=200, steps=2, noise_multiplier=9.0, delta=1e-3)
    alone = Statement(plan=plan, circumstances=Circumstances())
    two = replace(alone, computed=ProcessCounts(processes=8, machines=2))
    added = {name: value for name, value in two.to_dict().items() if alone.to_dict().get(name) != value}
    assert set(added) == {"computed", "not_covered"}
    assert added["computed"]["sentence"] == "computed on 2 machines that see unprotected sums"
    assert added["not_covered"][1:] == alone.not_covered
    assert "the network between them is neither encrypted nor authenticated" in added["not_covered"][0]
    assert ProcessCounts.from_dict(added["computed"]) == two.computed
    one = ProcessCounts(processes=2, machines=1)
    assert one.sentence == "computed by 2 processes of one machine that see unprotected sums"
