"""Who is grouped with whom does not depend on who else there is; ways in which it would are found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato import RunKey, SfumatoError
from sfumato.embedding import assign_by_group, assign_randomly
from sfumato.embedding.rounds import assign_evenly

KEY = RunKey.from_seed(3)
ALL = np.arange(50)
GROUPS = np.array([f"site {number % 40}" for number in range(50)])


def test_clients_are_uniform_and_independent_of_each_other_and_of_the_round():
    assigned = assign_randomly(KEY, 50, clients=8)
    drawn = np.array([assigned(step, ALL) for step in range(400)])
    assert drawn.dtype == np.int64
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=8)).pvalue > 1e-6
    for first, second in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):
        pairs = np.bincount((8 * first + second).ravel(), minlength=64)
        assert stats.chisquare(pairs).pvalue > 1e-6


def test_a_replayed_round_has_the_same_clients():
    for assigned in (assign_randomly(KEY, 50, clients=8), assign_by_group(KEY, GROUPS, clients=8)):
        assert (assigned(4, ALL) == assigned(4, ALL)).all()
        assert (assigned(4, ALL) != assigned(5, ALL)).any()


@pytest.mark.parametrize("fixed", [False, True])
@settings(max_examples=30)
@given(left=st.sets(st.integers(0, 49), max_size=49))
def test_a_group_s_client_does_not_depend_on_who_else_is_there(fixed, left):
    there = np.array([number not in left for number in range(50)])
    whole = assign_by_group(KEY, GROUPS, clients=4, fixed=fixed)(2, ALL)
    assert (
        assign_by_group(KEY, GROUPS[there], clients=4, fixed=fixed)(2, np.arange(there.sum())) == whole[there]
    ).all()


def test_users_of_a_group_are_together_and_groups_are_spread_evenly():
    names = np.array([str(number) for number in range(2000)])
    assigned = assign_by_group(KEY, np.concatenate([names, names]), clients=8)(0, np.arange(4000))
    assert (assigned[:2000] == assigned[2000:]).all()
    assert stats.chisquare(np.bincount(assigned[:2000], minlength=8)).pvalue > 1e-6


def test_fixed_groups_stay_for_the_run_and_follow_the_key():
    assigned = assign_by_group(KEY, GROUPS, clients=8, fixed=True)
    assert (assigned(0, ALL) == assigned(9, ALL)).all()
    assert (assigned(0, ALL) != assign_by_group(RunKey.from_seed(4), GROUPS, clients=8, fixed=True)(0, ALL)).any()


@given(drawn=st.sets(st.integers(0, 999), min_size=1, max_size=60), clients=st.integers(1, 12))
def test_even_clients_have_as_many_users_as_each_other(drawn, clients):
    """And follow who is drawn alone, in whose place nobody's records have a part."""
    numbers = np.array(sorted(drawn))
    assigned = assign_evenly(KEY, clients=clients)(3, numbers)
    sizes = np.bincount(assigned, minlength=clients)
    assert sizes.max() - sizes.min() <= 1
    assert (assigned == assign_evenly(KEY, clients=clients)(3, numbers)).all()


def test_what_cannot_be_assigned_is_refused():
    with pytest.raises(SfumatoError, match="clients must be at least 1"):
        assign_randomly(KEY, 5, clients=0)
    with pytest.raises(SfumatoError, match=r"groups must hold a text for each user, got int64 of shape \(3,\)"):
        assign_by_group(KEY, np.arange(3), clients=2)


def test_each_user_of_a_round_is_in_any_even_client_alike():
    found = np.array([assign_evenly(KEY, clients=4)(step, ALL) for step in range(400)])
    assert stats.chisquare(np.bincount(found[:, 7], minlength=4)).pvalue > 1e-6
    together = (found[:, 0] == found[:, 1]).mean()
    assert abs(together - 12 / 49) < 0.12
