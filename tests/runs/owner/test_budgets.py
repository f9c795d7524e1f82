"""Budgets: whole plans are reserved before the first step, by processes that race, and never beyond the total."""

import json
import multiprocessing
import os
import re
from dataclasses import replace

import dp_accounting
import pytest

from sfumato import PrivacyPlan, SfumatoError, read_budget, set_budget
from sfumato.privacy import FixedOrder, FullBatch, User
from sfumato.runs.owner import budgets, uses
from sfumato.runs.owner.lines import DataIdentity


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


def test_what_is_fixed_stays_fixed():
    set_budget("faces", epsilon=8, delta=1e-5)
    for changed in ({"delta": 1e-6}, {"unit": "user"}, {"adjacency": "zero-out"}):
        (name,) = changed
        with pytest.raises(SfumatoError, match=f"{name} of the budget faces was fixed when it was set"):
            set_budget("faces", epsilon=8, **changed)
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
    with pytest.raises(SfumatoError, match="the run runs/a was reserved in the budget faces with another plan"):
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


def test_a_plan_of_another_unit_is_refused(faces, use, whole):
    with pytest.raises(SfumatoError, match="the budget is for each single example, but the plan for each single"):
        use("a", use=whole(unit=User()), budget=faces)


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
        return [*uses.notes_before(data, whole(sigma), seeded=False, budget=budget)]

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


def test_plans_of_both_adjacencies_are_composed_for_zero_out(plan):
    one = replace(plan(), participation=FixedOrder(batch_size=100))  # a unit takes part in five of 50 steps
    by_position = FixedOrder(batch_size=100, assignment="position")
    other = replace(one, participation=by_position, adjacency="zero-out")
    both = replace(one, participation=FullBatch(), steps=10).epsilon()
    for many in ([one, other], [other, one]):
        assert budgets.joint_cost(many) == (pytest.approx(both), 1e-5)
        assert budgets.adjacency_of(many) == "zero-out"
    assert "under zero-out adjacency, if all were planned in advance" in uses.earlier_runs_note([one], other)
    assert "under add-or-remove adjacency" in uses.earlier_runs_note([one], one)
    assert "under zero-out adjacency" in uses.earlier_runs_note([other], other)
    assert (budgets.adjacency_of([one, one]), budgets.adjacency_of([other])) == ("add-or-remove", "zero-out")


def test_together_is_one_long_run_for_equal_plans(plan):
    epsilon, delta = budgets.joint_cost([plan(50), plan(100)])
    assert epsilon == pytest.approx(plan(150).epsilon(), rel=1e-3)
    assert delta == 1e-5


def test_together_is_more_than_each_and_less_than_the_sum(plan):
    parts = [plan(50), plan(30, sigma=1.5), plan(80, batch_size=50)]
    epsilon, _ = budgets.joint_cost(parts)
    assert max(part.epsilon() for part in parts) < epsilon < sum(part.epsilon() for part in parts)


def test_what_the_owner_is_told_holds_at_the_largest_delta(plan):
    strict = replace(plan(30), delta=1e-7)
    both = plan(80).epsilon(1e-5)
    for order in ([strict, plan(50)], [plan(50), strict]):
        assert budgets.joint_cost(order) == (pytest.approx(both, rel=1e-3), 1e-5)


def test_many_different_plans_are_still_bounded(plan):
    parts = [plan(10, sigma=2.0 + 0.1 * place) for place in range(10)]
    full = PrivacyPlan.calibrate(examples=1000, batch_size=1000, steps=2, noise_multiplier=9.0, delta=1e-5)
    epsilon, delta = budgets.joint_cost([*parts, full])
    exact = full.loss.composed_with(*(part.loss for part in parts)).epsilon(delta, grid=1e-3)
    assert exact <= epsilon <= sum(part.epsilon(delta / 11, grid=1e-3) for part in (*parts, full))
    assert epsilon < 1.2 * exact, "Renyi DP adds them up with little loss"


def test_full_batch_plans_are_composed_exactly_however_many_they_are(plan):
    whole = [
        PrivacyPlan.calibrate(
            examples=1000 + place, batch_size=1000 + place, steps=1 + place, noise_multiplier=9.0 + place, delta=1e-5
        )
        for place in range(12)
    ]
    noise = sum(one.steps / one.noise_multiplier**2 for one in whole) ** -0.5
    assert budgets.joint_cost(whole)[0] == pytest.approx(dp_accounting.get_epsilon_gaussian(noise, 1e-5), rel=1e-9)
    sampled = [plan(10, sigma=2.0 + 0.1 * place) for place in range(7)]
    mixed = budgets.joint_cost([*whole, *sampled])[0]
    assert mixed == pytest.approx(
        whole[0].loss.composed_with(*(one.loss for one in (*whole[1:], *sampled))).epsilon(1e-5), rel=1e-3
    )


def test_many_plans_that_are_each_free_at_delta_are_not_free_together(plan):
    """Each may fail with a chance of delta, so all of them with that of many."""
    parts = [plan(1, sigma=9000.0 + place, batch_size=999) for place in range(9)]
    assert {part.epsilon(1e-4) for part in parts} == {0.0}
    assert min(part.loss.delta(0) for part in parts) > 2e-5
    epsilon, _ = budgets.joint_cost([replace(part, delta=1e-4) for part in parts])
    assert epsilon > 0
