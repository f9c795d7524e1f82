"""sfumato budget, and runs under one, as they are typed."""

import json
import re
from pathlib import Path

import pytest

from sfumato.privacy import Ledger
from tests.killed import before_line, killed


@pytest.fixture
def private(quick) -> str:
    return f"train digits --private {quick}"


def test_a_budget_from_its_first_run_to_its_last(private, call):
    assert "budget faces: 0% of epsilon 3 at delta 1e-05 is used" in call("budget faces --epsilon 3 --delta 1e-5")
    said = call(f"{private} --budget faces --output a")
    assert re.search(
        r"Budget faces: [\d.]+% of epsilon 3 at delta 1e-05 is used, for each single example, by 1 run", said
    )
    alone = call("budget faces")
    assert "so far epsilon" in alone
    assert "that of its plan alone" in alone
    assert "price of choosing" not in alone
    found = json.loads(call("budget faces --json"))
    assert found["epsilon_used"] == found["epsilon_if_planned_in_advance"] < 3
    call(f"{private} --budget faces --output b --report-epsilon 1")
    shown = call("budget faces")
    assert "figures at 1" in shown
    found = json.loads(call("budget faces --json"))
    assert [row["run"] for row in found["history"]] == [f"{Path.cwd().name}/{name}" for name in "ab"]
    assert found["history"][-1]["used"] == found["used"] <= 1
    assert found["epsilon_if_planned_in_advance"] is None, "one publishes figures"
    refused = call(f"{private} --budget faces --output c --report-epsilon 2.5", status=1)
    assert "the budget faces has epsilon 3 at delta 1e-05, of which 2 runs took" in refused
    assert "publish no figures (--report-epsilon), or at a smaller epsilon" in refused
    assert not Path("c").exists()
    assert json.loads(call("budget --json"))["budgets"] == [found]
    assert call("budget").startswith("budget faces: ")


def test_a_run_that_ends_early_or_goes_on_is_counted_once(private, call):
    call("budget faces --epsilon 8 --delta 1e-5")
    for place in "ab":
        with killed(Ledger, "append", before_line(1)):
            call(f"{private} --budget faces --output {place}")
    before = call("budget faces --json")
    assert len(json.loads(before)["history"]) == 2
    call("train a")
    call("finish b")
    assert call("budget faces --json") == before


def test_totals_are_changed_in_the_open(call):
    call("budget faces --epsilon 3 --delta 1e-5")
    shown = call("budget faces --epsilon 4")
    assert re.search(r"\d{4}-\d\d-\d\dT\S+  total changed from epsilon 3 to 4", shown)
    assert "delta of the budget faces was fixed when it was set" in call(
        "budget faces --epsilon 4 --delta 1e-6", status=1
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("budget faces", "there is no budget faces; set it first (sfumato budget faces --epsilon 8 --delta 1e-5)"),
        ("budget faces --epsilon 8", "the budget faces needs a delta"),
        ("budget faces --delta 1e-5", "--delta 1e-05 sets a budget, but --epsilon is not given"),
        ("budget --epsilon 8", "--epsilon 8.0 needs a budget's name; give a name, such as faces"),
        ("budget a/b --epsilon 8 --delta 1e-5", "budget must be a name of letters"),
        ("budget faces --epsilon 8 --delta 1e-5 --unit person", "--unit must be one of example, user"),
        ("train digits --budget faces", "--budget is faces, but the data are public and cost nothing; leave it out"),
        ("train digits --private --budget faces", "there is no budget faces"),
    ],
)
def test_what_it_is_refused_for(call, command, words):
    assert words in call(command, status=1)
