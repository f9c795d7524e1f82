"""Statements about persons: whom they cover, what they count, and what they do not speak of."""

import json
from dataclasses import replace

import pytest

from sfumato import Ledger, PrivacyPlan, SfumatoError, Statement
from sfumato.privacy import Circumstances, User, group_epsilon
from sfumato.privacy.ledger import read
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.statements.wording import ENTRY, ProcessCounts

UNITS = {
    "shown": User(at_most=10, per_step=2),
    "users": User(),
    "capped": User(at_most=1),
    "clients": User(clients=True, at_most=10),
    "groups": User(clients=True, users=54_400, grouped=True),
}
PLAN = PrivacyPlan.calibrate(examples=6800, batch_size=256, steps=20, noise_multiplier=5.0, delta=1e-5)


def said(name: str, **changes) -> Statement:
    return Statement(plan=replace(PLAN, unit=UNITS[name], **changes), circumstances=Circumstances(read=("users",)))


SENTENCES = {
    "shown": (
        "for each single person, with up to 10 images, under add-or-remove adjacency: 20 steps of the",
        "each person drawn into each step with probability",
        "with N = 6800 persons;",
    ),
    "users": ("person, with all of their images, under", "each person drawn into each step", "with N = 6800 persons;"),
    "capped": ("person, with one image, under",),
    "clients": ("clipping norm 1 (one person counts for two), noise multiplier 5",),
    "groups": ("each group drawn into each step", "with N = 6800 groups of 54400 persons;", "counts for two"),
}


@pytest.mark.parametrize("name", UNITS)
def test_the_sentence_says_whom_it_covers(name):
    sentence = said(name).sentence
    for words in SENTENCES[name]:
        assert words in sentence
    assert f"({rounded_up(said(name).plan.epsilon())}, 1e-05)-differentially private" in sentence
    assert ("counts for two" in sentence) == (said(name).plan.unit.drawn == "clients")


@pytest.mark.parametrize("name", UNITS)
def test_plain_words_and_what_is_not_covered_speak_of_persons(name):
    plain, uncovered = said(name).plain, "\n".join(said(name).not_covered)
    assert plain[0].startswith("For every single person, with ")
    assert "as if that person's data had never been used" in plain[0]
    assert "one person's presence" in plain[1]
    assert "whether a person's images were used" in plain[2]
    assert "per example" not in "\n".join(plain)
    assert "Read from the data and treated as public: the number of persons." in uncovered
    assert "One person under two names" in uncovered
    assert "Identity: sfumato trusts the names in your data." in uncovered
    assert "Several records of one person" not in uncovered
    shown = "In each step a person's contribution comes from at most 2 of these images, drawn by chance."
    assert (shown in "\n".join(plain)) == (name == "shown")
    data = json.loads(json.dumps(said(name).to_dict()))
    again = Statement(
        plan=PrivacyPlan.from_dict(data["plan"]), circumstances=Circumstances.from_dict(data["circumstances"])
    )
    assert json.loads(json.dumps(again.to_dict())) == data
    assert data["unit"] == "user"


def test_two_clipping_norms_are_counted_in_plain_words_and_a_group_s_figure_stands_beside():
    assert "so twice the limit was counted" in "\n".join(said("clients").plain)
    figure = rounded_up(group_epsilon(said("groups").plan))
    assert f"If a whole group is removed with all of its persons, epsilon is {figure}" in "\n".join(
        said("groups").plain
    )
    assert "whole group" not in "\n".join(said("clients").plain)


def test_a_delta_above_one_over_the_persons_is_named():
    for delta, named in ((1 / 6700, True), (1 / 6900, False)):
        assert ("Delta is above one over the number of persons" in said("users", delta=delta).sentence) == named


# -- who has seen sums before their noise ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("numbers", [(1, 1), (2, 3), (2, 0), (2.0, 1), ("2", 1)])
def test_impossible_numbers_are_refused(numbers):
    with pytest.raises(SfumatoError, match=r"^(processes|machines) must "):
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
