"""The owner's lists against their count and against each other: what was lost is named, and stays so."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from sfumato import FullBatch, Gaussian, PrivacyPlan, SfumatoError, set_budget
from sfumato.randomness import owner_key
from sfumato.runs.owner import compared, history, overlap, standing, uses
from sfumato.runs.owner.reserving import Coming, reserving

PLAN = PrivacyPlan(
    population=1000, participation=FullBatch(), mechanism=Gaussian(noise_multiplier=8.0), steps=1, delta=1e-5
)


def use(run: str, data: str = "a", budget: str | None = None) -> None:
    """What the beginning of a run leaves on the lists."""
    overlap.remember_codes([data], np.full((3, 32), len(run), np.uint8))
    uses.record([data], run, PLAN, name=f"runs/{run}", budget=budget)


@pytest.fixture
def three(home):
    """Three runs, one of them under a budget."""
    set_budget("faces", epsilon=8, delta=1e-5)
    for run in "xy":
        use(run)
    with reserving("faces", Coming(run="z", place="runs/z", use=PLAN, materials=["a"])):
        use("z", budget="faces")
    assert [*compared.disagreements()] == []
    return home


def lines_of(home) -> list[bytes]:
    return [line for line in (home / uses.FILE).read_bytes().split(b"\n") if line]


def test_a_list_of_runs_that_loses_its_end_is_named(three):
    lines = lines_of(three)
    edited = json.dumps(json.loads(lines[2]) | {"data": "b"}).encode()
    for left, words in (
        (lines[:2], "uses.jsonl lacks 1 of 3 entries"),
        (lines[:1], "uses.jsonl lacks 2 of 3 entries"),
        ([*lines[:2], edited], "uses.jsonl lacks 1 of 3 entries"),
        ([], "uses.jsonl lacks 3 of 3 entries"),
        (None, "uses.jsonl is gone"),
    ):
        if left is None:
            (three / uses.FILE).unlink()
        else:
            (three / uses.FILE).write_bytes(b"\n".join(left) + b"\n")
        assert words in [*compared.disagreements()]
        assert words in history.spent(["a"]).disagreements
        (note,) = overlap.notes_of_codes(["a"], [], None)
        assert note.startswith(f"note: your lists disagree: {words}")


def test_a_list_that_goes_on_after_a_loss_lacks_it_still(three):
    whole = (three / uses.FILE).read_bytes()
    (three / uses.FILE).write_bytes(b"\n".join(lines_of(three)[:1]) + b"\n")
    for run in ("u", "v"):
        use(run)
    assert "uses.jsonl lacks 2 of 5 entries" in [*compared.disagreements()]
    (three / uses.FILE).write_bytes(whole)  # the old one lacks what came since
    assert "uses.jsonl lacks 2 of 5 entries" in [*compared.disagreements()]


@pytest.mark.parametrize("lost", ["the count", "both"])
def test_without_a_count_the_other_lists_tell(three, lost):
    (three / standing.FILE).unlink()
    if lost == "both":
        (three / uses.FILE).unlink()
    (first, *rest) = compared.disagreements()
    assert first == "their count (lists.json) is missing"
    assert rest == ([] if lost == "the count" else ["uses.jsonl lacks 1 of the runs in budgets/faces.jsonl", *rest[1:]])
    assert len(rest) == (0 if lost == "the count" else 2)
    use("u")
    assert next(compared.disagreements()).startswith("their count (lists.json) was missing and begun anew on ")


def test_list_and_count_of_an_old_copy_lack_what_the_others_have(three, tmp_path):
    kept = {name: (three / name).read_bytes() for name in (uses.FILE, standing.FILE)}
    with reserving("faces", Coming(run="w", place="runs/w", use=PLAN, materials=["b"])):
        use("w", "b", budget="faces")
    assert [*compared.disagreements()] == []
    for name, content in kept.items():
        (three / name).write_bytes(content)
    assert [*compared.disagreements()] == [
        "uses.jsonl lacks 1 of the runs in budgets/faces.jsonl",
        "uses.jsonl has no run on 1 of the data sets in used-records",
    ]


def test_budgets_and_records_that_lose_something_are_named(three, tmp_path):
    shutil.copytree(three, tmp_path / "kept")
    budget = three / "budgets" / "faces.jsonl"
    budget.write_bytes(b"\n".join([line for line in budget.read_bytes().split(b"\n") if line][:1]) + b"\n")
    assert [*compared.disagreements()] == ["budgets/faces.jsonl lacks 1 of 2 entries"]
    budget.unlink()
    assert [*compared.disagreements()] == ["budgets/faces.jsonl is gone"]
    shutil.copy(tmp_path / "kept" / "budgets" / "faces.jsonl", budget)
    records = three / "used-records" / "a.npy"
    before = records.read_bytes()
    overlap.remember_codes(["a"], np.full((2, 32), 200, np.uint8))
    assert [*compared.disagreements()] == []
    records.write_bytes(before)
    assert [*compared.disagreements()] == ["used-records/a.npy lacks 2 of 5 entries"]
    records.unlink()
    assert [*compared.disagreements()] == [
        "used-records/a.npy is gone",
        "used-records lacks 1 of the data sets in uses.jsonl",
    ]


def test_a_run_that_is_killed_between_its_line_and_the_count_is_no_loss(three, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(standing, "moved", lambda *_, **__: None)
        use("u", "b")
    assert [*compared.disagreements()] == []
    use("w")
    assert [*compared.disagreements()] == []


def test_the_first_list_is_killed_before_it_is_counted_and_the_count_is_not_begun_anew(home, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(standing, "moved", lambda *_, **__: None)
        use("u")
    use("w")
    assert [*compared.disagreements()] == []


def test_a_count_that_was_changed_or_is_of_another_key_is_refused(three):
    path = three / standing.FILE
    whole = path.read_bytes()
    for changed in (whole.replace(b'["uses.jsonl"', b"[["), b"{}", b"[]", whole.replace(b": [3, ", b": [2, ")):
        path.write_bytes(changed)
        if changed == whole:
            continue
        with pytest.raises(SfumatoError, match=r"the count of your lists .* cannot be read"):
            [*compared.disagreements()]
    path.write_bytes(whole)
    (three / "owner.key").write_text("22" * 32)
    lines = lines_of(three)
    with pytest.raises(SfumatoError, match=r"made under another owner's key.*sfumato doctor --new-key"):
        use("u")
    assert lines_of(three) == lines, "it is refused before a line is written"


def test_a_lost_key_is_not_made_anew_in_silence_and_by_name_its_lists_are_laid_aside(three):
    (three / "owner.key").unlink()
    with pytest.raises(
        SfumatoError, match=r"owner.key is missing, but lists that depend on it are there \(lists.json, uses.jsonl"
    ):
        owner_key()
    assert not (three / "owner.key").exists()
    aside = standing.new_key()
    assert sorted(path.name for path in aside.iterdir()) == ["budgets", "lists.json", "used-records", "uses.jsonl"]
    use("u")
    assert [*compared.disagreements()] == [f"those of a lost key lie in {aside.name}"]
    with pytest.raises(SfumatoError, match="there are no lists of a lost owner's key"):
        standing.new_key()


def test_lists_of_another_key_are_laid_aside_and_the_key_that_is_there_stays(three):
    (three / "owner.key").write_text("22" * 32)
    standing.new_key()
    assert (three / "owner.key").read_text() == "22" * 32
    assert uses.plans(["a"]) == []


def test_a_run_that_begins_while_the_lists_are_read_is_no_loss(three, monkeypatch):
    trainings = uses.trainings

    def meanwhile():
        monkeypatch.setattr(uses, "trainings", trainings)
        with reserving("faces", Coming(run="w", place="runs/w", use=PLAN, materials=["b"])):
            use("w", "b", budget="faces")
        return trainings()

    monkeypatch.setattr(uses, "trainings", meanwhile)
    assert [*compared.disagreements()] == []


def test_codes_that_were_cut_are_damage(three):
    records = three / "used-records" / "a.npy"
    records.write_bytes(records.read_bytes()[:-7])
    with pytest.raises(SfumatoError, match=r"the list of records .* is damaged"):
        [*compared.disagreements()]
