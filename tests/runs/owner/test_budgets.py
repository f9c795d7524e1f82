"""Budgets: what is fixed when they are set, and lines of which none may be changed or lost."""

from __future__ import annotations

import json
import re

import pytest

from sfumato import FullBatch, Gaussian, PrivacyPlan, SfumatoError, read_budget, set_budget
from sfumato.runs.owner import account, budgets
from sfumato.runs.owner.reserving import Coming, reserving


def plan(sigma: float = 8.0, **others) -> PrivacyPlan:
    return PrivacyPlan(
        population=1000, participation=FullBatch(), mechanism=Gaussian(noise_multiplier=sigma), steps=1, delta=1e-5
    )


def reserve(name: str, run: str, use: PrivacyPlan, **others) -> None:
    with reserving(name, Coming(run=run, place=f"runs/{run}", use=use, **others)):
        pass


def lines_of(home) -> list[bytes]:
    return [line for line in (home / "budgets" / "faces.jsonl").read_bytes().split(b"\n") if line]


def test_a_budget_is_set_once_and_found_again(home):
    made = set_budget("faces", epsilon=8, delta=1e-5)
    assert read_budget("faces") == made == set_budget("faces", epsilon=8, delta=1e-5, unit="example")
    assert (made.used, made.epsilon, made.in_advance()) == (0, 0, None)
    assert len(lines_of(home)) == 1
    assert (home / "budgets" / "faces.jsonl").stat().st_mode & 0o777 == 0o600
    assert budgets.names() == ["faces"]


def test_what_is_fixed_stays_fixed():
    set_budget("faces", epsilon=8, delta=1e-5)
    for changed in ({"delta": 1e-6}, {"unit": "user"}, {"adjacency": "zero-out"}, {"accounting": "gaussian"}):
        (name,) = changed
        with pytest.raises(SfumatoError, match=f"{name} of the budget faces was fixed when it was set"):
            set_budget("faces", epsilon=8, **changed)
    with pytest.raises(SfumatoError, match="plans of the budget faces was fixed"):
        set_budget("faces", epsilon=8, plans=(plan(),))
    with pytest.raises(SfumatoError, match="delta is missing of the budget others"):
        set_budget("others", epsilon=8)
    assert budgets.names() == ["faces"], "nothing was set"


def test_a_total_is_raised_with_its_date_and_never_below_what_is_spent(home):
    order = set_budget("faces", epsilon=8, delta=1e-5).filter.order
    reserve("faces", "a", plan(2.0))
    before = read_budget("faces")
    raised = set_budget("faces", epsilon=9)
    assert [total.epsilon for total in raised.totals] == [8, 9]
    assert raised.filter.order == order, "the order of the first total, whatever the present one is"
    assert raised.costs == before.costs
    assert raised.used < before.used
    with pytest.raises(
        SfumatoError, match=r"epsilon 1 is a budget below what was spent: 1 run under faces come to "
    ) as low:
        set_budget("faces", epsilon=1)
    least = re.search(r"give at least ([\d.]+)", str(low.value))
    assert least is not None
    assert set_budget("faces", epsilon=float(least[1])).used <= 1
    assert len(lines_of(home)) == 4


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a b", "a" * 101, "ä"])
def test_a_name_is_a_plain_word(name):
    with pytest.raises(SfumatoError, match="budget must be a name of letters"):
        set_budget(name, epsilon=8, delta=1e-5)


def test_a_budget_that_there_is_not_is_refused_with_those_that_there_are(home):
    with pytest.raises(SfumatoError, match="there is no budget faces; set it first"):
        read_budget("faces")
    set_budget("letters", epsilon=8, delta=1e-5)
    with pytest.raises(SfumatoError, match="there is no budget faces; there is letters"):
        reserve("faces", "a", plan())
    assert not (home / "budgets" / "faces.jsonl").exists(), "a name that was misspelt makes no file"


def test_a_line_that_was_changed_or_is_gone_is_refused(home):
    set_budget("faces", epsilon=8, delta=1e-5)
    for run in "ab":
        reserve("faces", run, plan())
    path = home / "budgets" / "faces.jsonl"
    lines = lines_of(home)
    cheaper = json.loads(lines[2]) | {"cost": 0.0}
    for changed in (
        [lines[0].replace(b'"epsilon": 8', b'"epsilon": 80'), *lines[1:]],
        [lines[0], lines[2]],
        [lines[0], lines[2], lines[1]],
        [*lines[:2], json.dumps(cheaper).encode()],
        [*lines[:2], b"{}"],
        [*lines[:2], b"[]"],
        lines[1:],
    ):
        path.write_bytes(b"\n".join(changed) + b"\n")
        with pytest.raises(SfumatoError, match=r"line \d of the budget .* cannot be read"):
            read_budget("faces")
        with pytest.raises(SfumatoError, match=r"line \d of the budget .* cannot be read"):
            reserve("faces", "c", plan())
    path.write_bytes(b"\n".join(lines))
    assert len(read_budget("faces").reservations) == 2


def test_the_file_of_one_budget_is_not_that_of_another_owner(home):
    set_budget("faces", epsilon=8, delta=1e-5)
    (home / "owner.key").write_text("22" * 32)
    with pytest.raises(SfumatoError, match="and the owner's key beside it"):
        read_budget("faces")


def test_a_torn_last_line_was_no_reservation(home):
    set_budget("faces", epsilon=8, delta=1e-5)
    reserve("faces", "a", plan())
    path = home / "budgets" / "faces.jsonl"
    whole = path.read_bytes()
    reserve("faces", "b", plan())
    line = lines_of(home)[-1]
    for end in (1, 10, len(line) // 2, len(line) - 1):
        path.write_bytes(whole + b"\n" + line[:end])
        assert [one.run for one in read_budget("faces").reservations] == ["a"]
    reserve("faces", "b", plan())
    assert [one.run for one in read_budget("faces").reservations] == ["a", "b"]


def test_the_history_says_what_each_took_and_what_choosing_one_after_the_other_costs():
    set_budget("faces", epsilon=8, delta=1e-5)
    for run in "abc":
        reserve("faces", run, plan())
    found = read_budget("faces")
    rows = account.history(found)
    assert [row["run"] for row in rows] == ["runs/a", "runs/b", "runs/c"]
    assert rows[0]["epsilon"] == plan().epsilon()
    assert rows[-1]["used"] == found.used == pytest.approx(3 * rows[0]["share"])
    in_advance = plan(8.0 / 3**0.5).epsilon()
    assert found.in_advance() == pytest.approx(in_advance)
    assert found.epsilon > in_advance, "the price"
    assert account.to_dict(found)["history"] == rows
    json.dumps(account.to_dict(found))


def test_clocks_may_go_back(monkeypatch):
    set_budget("faces", epsilon=8, delta=1e-5)
    for run, date in (("a", "2031-01-01T00:00:00+00:00"), ("b", "1999-01-01T00:00:00+00:00")):
        monkeypatch.setattr("sfumato.runs.owner.reserving.now", lambda date=date: date)
        reserve("faces", run, plan())
    assert [one.run for one in read_budget("faces").reservations] == ["a", "b"]
