"""Budgets: whole plans are reserved before the first step, by processes that race, and never beyond the total."""

from __future__ import annotations

import json
import multiprocessing
import os
import re

import pytest

from sfumato import PrivacyPlan, SfumatoError, open_source, read_budget, record_use, set_budget
from sfumato.privacy import FullBatch, User
from sfumato.runs.owner import budgets, sentences, uses
from sfumato.runs.owner.data_identity import DataIdentity


@pytest.fixture
def faces():
    set_budget("faces", epsilon=3, delta=1e-5)
    return "faces"


def reserved(name: str = "faces") -> list[str]:
    return [one.run for one in read_budget(name).reservations]


def test_a_budget_is_set_once_and_found_again(lines):
    made = set_budget("faces", epsilon=8, delta=1e-5)
    assert read_budget("faces") == made == set_budget("faces", epsilon=8, delta=1e-5, unit="example")
    assert (made.used, made.epsilon, made.epsilon_in_advance()) == (0, 0, None)
    assert len(lines()) == 1
    assert budgets.names() == ["faces"]


def test_what_is_fixed_stays_fixed(whole):
    set_budget("faces", epsilon=8, delta=1e-5)
    for changed in ({"delta": 1e-6}, {"unit": "user"}, {"adjacency": "zero-out"}, {"accounting": "gaussian"}):
        (name,) = changed
        with pytest.raises(SfumatoError, match=f"{name} of the budget faces was fixed when it was set"):
            set_budget("faces", epsilon=8, **changed)
    with pytest.raises(SfumatoError, match="plans of the budget faces was fixed"):
        set_budget("faces", epsilon=8, plans=(whole(),))
    with pytest.raises(SfumatoError, match="the budget others needs a delta"):
        set_budget("others", epsilon=8)
    assert budgets.names() == ["faces"], "nothing was set"


def test_a_total_is_raised_with_its_date_and_never_below_what_is_spent(use):
    order = set_budget("faces", epsilon=8, delta=1e-5).filter.order
    use("a", sigma=2.0, budget="faces")
    before = read_budget("faces")
    raised = set_budget("faces", epsilon=9)
    assert [total.epsilon for total in raised.totals] == [8, 9]
    assert raised.filter.order == order, "the order of the first total, whatever the present one is"
    assert raised.costs == before.costs
    assert raised.used < before.used
    with pytest.raises(SfumatoError, match=r"epsilon 1 is below what was spent: 1 run under faces comes to ") as low:
        set_budget("faces", epsilon=1)
    least = re.search(r"give at least ([\d.]+)", str(low.value))
    assert least is not None
    assert set_budget("faces", epsilon=float(least[1])).used <= 1


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a b", "a" * 101, "ä"])
def test_a_name_is_a_plain_word(name):
    with pytest.raises(SfumatoError, match="budget must be a name of letters"):
        set_budget(name, epsilon=8, delta=1e-5)


def test_a_budget_that_there_is_not_is_refused_with_those_that_there_are(use):
    with pytest.raises(SfumatoError, match="there is no budget faces; set it first"):
        read_budget("faces")
    set_budget("letters", epsilon=8, delta=1e-5)
    with pytest.raises(SfumatoError, match="there is no budget faces; there is letters"):
        use("a", budget="faces")
    assert uses.earlier_uses(DataIdentity(("a",))).plans == []


def test_the_history_says_what_each_took_and_what_choosing_one_after_the_other_costs(use, whole):
    set_budget("faces", epsilon=8, delta=1e-5)
    for run in "abc":
        use(run, budget="faces")
    found = read_budget("faces")
    rows = found.history()
    assert [row["run"] for row in rows] == ["runs/a", "runs/b", "runs/c"]
    assert rows[0]["epsilon"] == whole().epsilon()
    assert rows[-1]["used"] == found.used == pytest.approx(3 * rows[0]["share"])
    in_advance = whole(8.0 / 3**0.5).epsilon()
    assert found.epsilon_in_advance() == pytest.approx(in_advance)
    assert found.epsilon > in_advance, "the price"
    assert found.to_dict()["history"] == rows
    json.dumps(found.to_dict())


def test_plans_are_reserved_until_one_does_not_fit(faces, use, whole):
    own = read_budget(faces).filter
    for number in range(int(own.limit / own.cost(whole(4.0)))):
        use(f"{number}", sigma=4.0, budget=faces)
    with pytest.raises(SfumatoError, match="the budget faces has epsilon 3 at delta 1e-05") as refused:
        use("one more", sigma=4.0, budget=faces)
    found = read_budget(faces)
    assert len(found.reservations) == number + 1 == len(uses.earlier_uses(DataIdentity(("a",))).plans), (
        "one refused is no use"
    )
    assert found.used <= 1
    words = re.search(
        r"of which \d+ runs took ([\d.]+)%; this one needs ([\d.]+)% and would bring it to epsilon ([\d.]+); plan for "
        r"at most epsilon ([\d.]+) \(noise multiplier ([\d.]+) at the same steps\)",
        str(refused.value),
    )
    assert words is not None
    needed, needs, would, most, sigma = map(float, words.groups())
    assert needed + needs > 100
    assert would > 3
    fitting = PrivacyPlan.calibrate(examples=1000, participation=FullBatch(), steps=1, epsilon=most, delta=1e-5)
    for less in (whole(sigma), fitting):  # either can be followed
        assert found.filter.fits([*found.costs, found.filter.cost(less)])
    use("less", sigma=sigma, budget=faces)
    with pytest.raises(SfumatoError, match="the budget faces"):
        use("more", sigma=sigma, budget=faces)


def test_a_run_is_counted_once_however_often_it_goes_on_on_its_own_records(faces, use, whole):
    for _ in range(3):
        use("a", budget=faces)
    assert reserved() == ["a"]
    with pytest.raises(SfumatoError, match="run a is on the list of uses with another plan"):
        use("a", sigma=2.0, budget=faces)
    with pytest.raises(SfumatoError, match="the run runs/a has another plan in the budget faces"):
        use("a", budget=faces, figures=0.5)
    with pytest.raises(SfumatoError, match="the run runs/a was reserved in the budget faces with other records"):
        use("a", "others", budget=faces)
    set_budget("persons", epsilon=3, delta=1e-5, unit="user")
    known = {"use": whole(unit=User()), "budget": "persons"}
    use("b", users="one way", **known)
    with pytest.raises(SfumatoError, match="or other users"):
        use("b", users="another way", **known)


def begin_many(use, number, start) -> None:
    start.wait(60)
    for count in range(6):
        try:
            use(f"{number}-{count}", sigma=4.0, count=0, budget="faces")
        except SfumatoError:
            os._exit(1)
    os._exit(0)


def test_eight_processes_at_once_do_not_exceed_the_total(faces, use, whole):
    read_budget(faces).filter.cost(whole(4.0))  # imported before the fork
    context = multiprocessing.get_context("fork")
    start = context.Barrier(8)
    processes = [context.Process(target=begin_many, args=(use, number, start)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    found = read_budget(faces)
    assert len(found.reservations) == int(found.filter.limit / found.filter.cost(whole(4.0)))
    assert any(process.exitcode for process in processes), "some were refused"


def test_a_plan_of_another_unit_is_refused_with_the_budgets_name(faces, use, whole):
    with pytest.raises(SfumatoError, match="the budget faces is for each single example, but the plan for each single"):
        use("a", use=whole(unit=User()), budget=faces)


def test_of_a_planned_budget_each_plan_is_for_one_run(use, whole):
    set_budget("planned", epsilon=3, delta=1e-5, accounting="planned", plans=[whole(4.0), whole(5.0)])
    use("a", sigma=4.0, budget="planned")
    with pytest.raises(SfumatoError, match="for 2 plans that were fixed in advance, and this is none of the"):
        use("b", sigma=4.0, budget="planned")
    use("b", sigma=5.0, budget="planned")
    assert read_budget("planned").used == 1


def test_users_who_were_told_apart_otherwise_do_not_add_up(use, whole):
    set_budget("people", epsilon=8, delta=1e-5, unit="user")
    known = {"use": whole(unit=User()), "budget": "people"}
    use("a", users="by folder", **known)
    with pytest.raises(SfumatoError, match="with another assignment to users"):
        use("b", users="by file", **known)
    use("b", "another", users="by file", **known)
    assert reserved("people") == ["a", "b"]


def test_what_does_not_count_in_a_budget_is_said(faces, use, whole):
    data = DataIdentity(("m",))

    def said(budget: str | None = faces, sigma: float = 8.0) -> list[str]:
        return [*sentences.notes_before(data, whole(sigma), seeded=False, budget=budget)]

    assert len(said()) == 1
    use("earlier", "m", sigma=3.0)
    set_budget("letters", epsilon=1, delta=1e-5)
    use("l", "m", sigma=20.0, budget="letters")
    assert "the budget letters also has 1 run on these data" in said()[1]
    assert "1 run of yours on these data is in no budget and comes to a further epsilon" in said()[2]
    use("a", "others", budget=faces)
    assert "the budget faces was first used for other records than these" in said()[1]
    assert "which is too much" in said(sigma=0.5)[0]
    (*_, last) = said(budget=None)
    assert (
        last == "note: runs on these data count in the budget letters, but this one does not, since it names no budget"
    )


def test_several_plans_are_refused_together(faces, whole):
    budgets.refuse_over_budget(faces, [whole()] * 3)
    with pytest.raises(SfumatoError, match=r"the budget faces has 100% left, and 100 runs need"):
        budgets.refuse_over_budget(faces, [whole()] * 100)


def test_a_loop_of_ones_own_is_reserved_too(faces, whole):
    source = open_source("digits", owner_key=bytes(32), public=False)
    known = record_use(source, whole(), budget=faces)
    record_use(source, whole(), run=known.run, budget=faces)
    assert reserved() == [known.run]
    with pytest.raises(SfumatoError, match="the budget faces has epsilon 3"):
        record_use(source, whole(0.5), budget=faces)
    with pytest.raises(SfumatoError, match="the data are public and cost nothing"):
        record_use(open_source("digits", owner_key=bytes(32)), whole(), budget=faces)
