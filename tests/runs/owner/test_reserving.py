"""Reservations: whole plans, before step 0, by processes that race, and never beyond the total."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import threading

import pytest

from sfumato import (
    FullBatch,
    Gaussian,
    PrivacyPlan,
    SfumatoError,
    _systems,
    open_source,
    read_budget,
    record_use,
    set_budget,
)
from sfumato.cli import main
from sfumato.privacy import User
from sfumato.runs.owner import budgets, uses
from sfumato.runs.owner import reserving as reservations
from sfumato.runs.owner.reserving import Coming, notes, reserving
from sfumato.training.parts import budgeted


def plan(sigma: float = 8.0, **others) -> PrivacyPlan:
    given = {"population": 1000, "participation": FullBatch(), "steps": 1, "delta": 1e-5} | others
    return PrivacyPlan(mechanism=Gaussian(noise_multiplier=sigma), **given)


def reserve(name: str, run: str, use: PrivacyPlan, **others) -> None:
    with reserving(name, Coming(run=run, place=f"runs/{run}", use=use, **others)):
        pass


@pytest.fixture
def faces():
    set_budget("faces", epsilon=3, delta=1e-5)
    return "faces"


def test_plans_are_reserved_until_one_does_not_fit(faces):
    own = read_budget(faces).filter
    for number in range(int(own.limit / own.cost(plan(4.0)))):
        reserve(faces, f"{number}", plan(4.0))
    with pytest.raises(SfumatoError, match="the budget faces has epsilon 3 at delta 1e-05") as refused:
        reserve(faces, "one more", plan(4.0))
    found = read_budget(faces)
    assert len(found.reservations) == number + 1
    assert found.used <= 1
    words = re.search(
        r"of which \d+ runs took ([\d.]+)%; this one needs ([\d.]+)% and would bring it to epsilon ([\d.]+); plan for "
        r"at most epsilon ([\d.]+) \(noise multiplier ([\d.]+) at the same steps\)",
        str(refused.value),
    )
    assert words is not None
    used, needed, would, most, sigma = map(float, words.groups())
    assert used + needed > 100
    assert would > 3
    fitting = PrivacyPlan.calibrate(examples=1000, participation=FullBatch(), steps=1, epsilon=most, delta=1e-5)
    for less in (plan(sigma), fitting):  # either can be followed
        assert found.filter.fits([*found.costs, found.filter.cost(less)])
    reserve(faces, "less", plan(sigma))
    with pytest.raises(SfumatoError, match="the budget faces"):
        reserve(faces, "more", plan(sigma))


def test_a_run_is_counted_once_however_often_it_goes_on(faces):
    for _ in range(3):
        reserve(faces, "a", plan(2.5))
    assert len(read_budget(faces).reservations) == 1
    with pytest.raises(SfumatoError, match="the run runs/a has another plan in the budget faces"):
        reserve(faces, "a", plan(2.0))


def test_one_run_is_counted_once_on_its_own_records_alone(faces):
    for _ in range(2):
        reserve(faces, "a", plan(), materials=("these", "those"))
    assert len(read_budget(faces).reservations) == 1
    with pytest.raises(SfumatoError, match="the run runs/a has been reserved in the budget faces on other records"):
        reserve(faces, "a", plan(), materials=("others",))
    set_budget("persons", epsilon=3, delta=1e-5, unit="user")
    known = {"use": plan(unit=User(drawn="users")), "materials": ("these",)}
    reserve("persons", "b", **known, users="one way")
    with pytest.raises(SfumatoError, match="or other users'"):
        reserve("persons", "b", **known, users="another way")


def test_a_run_that_did_not_come_into_being_is_not_counted(faces):
    with pytest.raises(ZeroDivisionError), reserving(faces, Coming(run="a", place="a", use=plan())):
        raise ZeroDivisionError
    assert read_budget(faces).reservations == ()


def test_the_budget_is_held_from_the_look_at_what_is_left_to_the_reservation(faces):
    """Of two runs that fit one by one and not together, the second waits for the first, and is refused."""
    begun, go_on, outcome = threading.Event(), threading.Event(), []
    half = plan(1.6)
    found = read_budget(faces)
    assert found.filter.fits([found.filter.cost(half)])
    assert not found.filter.fits([found.filter.cost(half)] * 2)

    def first() -> None:
        with reserving(faces, Coming(run="a", place="a", use=half)):
            begun.set()
            go_on.wait(30)

    def second() -> None:
        try:
            reserve(faces, "b", half)
        except SfumatoError as error:
            outcome.append(error)

    one, other = threading.Thread(target=first), threading.Thread(target=second)
    one.start()
    assert begun.wait(30)
    other.start()
    other.join(0.5)
    assert other.is_alive(), "it waits"
    go_on.set()
    one.join()
    other.join()
    assert [run.run for run in read_budget(faces).reservations] == ["a"]
    assert len(outcome) == 1


def reserve_many(number: int, start) -> None:
    start.wait(60)
    for count in range(6):
        try:
            reserve("faces", f"{number}-{count}", plan(4.0))
        except SfumatoError:
            os._exit(1)
    os._exit(0)


def test_eight_processes_at_once_do_not_exceed_the_total(faces):
    read_budget(faces).filter.cost(plan(4.0))  # imported before the fork
    context = multiprocessing.get_context("fork")
    start = context.Barrier(8)
    processes = [context.Process(target=reserve_many, args=(number, start)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    found = read_budget(faces)
    assert len(found.reservations) == int(found.filter.limit / found.filter.cost(plan(4.0)))
    assert any(process.exitcode for process in processes), "some were refused"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_a_file_that_cannot_be_locked_reserves_nothing(faces, monkeypatch, number):
    def failing(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("sfumato.runs.owner.chained.held_alone", failing)
    with pytest.raises(SfumatoError, match="cannot be held and extended"):
        reserve(faces, "a", plan())


def test_a_system_without_locks_is_refused(faces, monkeypatch):
    monkeypatch.setattr(_systems, "fcntl", None)
    with pytest.raises(SfumatoError, match=r"without locks \(there are no locks on this system\)"):
        reserve(faces, "a", plan())


def test_a_full_disk_is_said_and_the_run_is_counted_once_when_it_goes_on(faces, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("sfumato.runs.owner.chained.os.fsync", full)
        with pytest.raises(SfumatoError, match=r"No space left on device.*free some space"):
            reserve(faces, "a", plan())
    reserve(faces, "a", plan())
    assert [one.run for one in read_budget(faces).reservations] == ["a"]


def test_refusals_of_a_plan_name_the_budget(faces):
    with pytest.raises(SfumatoError, match="the budget faces is for each single example, but the plan for each single"):
        reserve(faces, "a", plan(unit=User(drawn="users")))


def test_of_a_planned_budget_each_plan_is_for_one_run():
    set_budget("planned", epsilon=3, delta=1e-5, accounting="planned", plans=[plan(4.0), plan(5.0)])
    reserve("planned", "a", plan(4.0))
    with pytest.raises(SfumatoError, match="for 2 plans that were fixed beforehand, and this is none of those"):
        reserve("planned", "b", plan(4.0))
    reserve("planned", "b", plan(5.0))
    assert read_budget("planned").used == 1


def test_users_who_were_told_apart_otherwise_do_not_add_up():
    set_budget("people", epsilon=8, delta=1e-5, unit="user")
    users = plan(unit=User(drawn="users"))
    reserve("people", "a", users, materials=["m"], users="by folder")
    with pytest.raises(SfumatoError, match="for users who were told apart otherwise"):
        reserve("people", "b", users, materials=["m"], users="by file")
    reserve("people", "b", users, materials=["another"], users="by file")
    assert len(read_budget("people").reservations) == 2


def test_what_does_not_count_in_a_budget_is_said(faces):
    source = open_source("digits", owner_key=bytes(32), public=False)
    account, cost = read_budget(faces), 0.1
    assert len(list(notes(account, source, cost))) == 1
    uses.record(source.materials, "earlier", plan(3.0), places=source.places)
    set_budget("letters", epsilon=1, delta=1e-5)
    reserve("letters", "l", plan(20.0), materials=source.materials)
    uses.record(source.materials, "l", plan(20.0), places=source.places)
    said = list(notes(account, source, cost))
    assert "the budget letters has 1 run on these data too" in said[1]
    assert "1 run of yours on these data is under no budget, and comes to epsilon" in said[2]
    reserve(faces, "a", plan(), materials=["others"])
    said = list(notes(read_budget(faces), source, cost))
    assert "these are other records than those that the budget faces was first used for" in said[1]
    assert "too much for it" in next(notes(account, source, 1e9))


def test_several_plans_are_refused_together(faces):
    reservations.refuse_beyond(faces, [plan(8.0)] * 3)
    with pytest.raises(SfumatoError, match=r"the budget faces has 100% left, and 100 runs need"):
        reservations.refuse_beyond(faces, [plan(8.0)] * 100)


def test_a_loop_of_ones_own_is_reserved_too(faces):
    source = open_source("digits", owner_key=bytes(32), public=False)
    known = record_use(source, plan(), budget=faces)
    record_use(source, plan(), run=known.run, budget=faces)
    assert [one.run for one in read_budget(faces).reservations] == [known.run]
    with pytest.raises(SfumatoError, match="the budget faces has epsilon 3"):
        record_use(source, plan(0.5), budget=faces)
    assert len(uses.plans(source.materials)) == 1, "one that is refused is no use"
    with pytest.raises(SfumatoError, match="the data are public, which cost nothing"):
        record_use(open_source("digits", owner_key=bytes(32)), plan(), budget=faces)


def test_a_line_that_a_budget_has_lost_counts_as_the_list_of_uses_has_it(faces, capsys):
    """Cut from the end of the file, or missing in an old copy that was restored: nothing in the file shows it."""
    path = budgets.path_of(faces)
    for run in ("a", "b"):
        with reserving(faces, Coming(run=run, place=f"runs/{run}", use=plan(), materials=("these",))):
            before = path.read_bytes()
            uses.record(["these"], run, plan(), name=f"runs/{run}", budget=faces)
    whole = read_budget(faces)
    assert whole.lost == ()
    path.write_bytes(before)  # without the last line
    found = read_budget(faces)
    assert (found.epsilon, found.lost) == (whole.epsilon, ("runs/b",))
    assert "lacks runs/b" in " ".join(reservations.lost_words(found))
    record = {"budget": {"name": faces}}
    assert "lacks runs/b" in str(budgeted.lines(record))
    assert "runs/b" not in str(budgeted.lines(record, public=True)), "other runs' names are the owner's"
    main(["budget", faces])
    assert "lacks runs/b" in capsys.readouterr().err
    with reserving(faces, Coming(run="b", place="runs/b", use=plan(), materials=("these",))):
        pass  # it goes on: its line is written again, and counts once
    again = read_budget(faces)
    assert (len(again.reservations), again.lost) == (2, ())
    path.write_bytes(before)
    reserve(faces, "c", plan())
    assert [one.run for one in read_budget(faces).reservations] == ["a", "b", "c"]
    path.write_bytes(before)
    with pytest.raises(SfumatoError, match="below what was spent: 2 runs"):
        set_budget(faces, epsilon=whole.epsilon * 0.9)
    path.unlink()
    set_budget(faces, epsilon=3, delta=1e-5)
    assert len(read_budget(faces).reservations) == 2
