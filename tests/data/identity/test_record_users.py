"""Records of several users: how they are named, the graph they make, and which stay where each user may be on G."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.identity.record_users import (
    UserGraph,
    any_shared,
    canonical_users,
    capped_mask,
    parse_users,
    user_code,
    user_graph,
)

KEY = bytes(range(32))
PEOPLE = "abcdefg"
graphs = st.lists(st.sets(st.sampled_from(PEOPLE), max_size=4), min_size=1, max_size=40)
most = st.integers(1, 4)


def graph_of(records: list[set[str]]) -> UserGraph:
    return user_graph(np.array([canonical_users(";".join([";", *sorted(users)])) for users in records]))


def kept(records: list[set[str]], at_most: int, key: bytes = KEY) -> np.ndarray:
    graph = graph_of(records)
    return capped_mask(graph, [user_code(KEY, name).encode() for name in graph.names.tolist()], key, at_most)


@settings(max_examples=15)
@given(graphs, most)
def test_each_user_is_on_at_most_so_many_and_no_record_more_could_stay(records, at_most):
    stay = kept(records, at_most)
    on = {user: sum(user in users for users, one in zip(records, stay, strict=True) if one) for user in PEOPLE}
    assert max(on.values()) <= at_most
    for users, one in zip(records, stay, strict=True):
        if not one:
            assert any(on[user] == at_most for user in users)


@settings(max_examples=15)
@given(graphs, most)
def test_records_of_nobody_stay_and_count_for_nobody(records, at_most):
    stay = kept([*records, set(), set()], at_most)
    assert stay[-2:].all()
    np.testing.assert_array_equal(stay[:-2], kept(records, at_most))


@settings(max_examples=15)
@given(st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=40), most)
def test_of_one_user_each_as_many_stay_as_under_the_cap_of_single_users(users, at_most):
    stay = kept([{user} for user in users], at_most)
    for user in PEOPLE:
        own = np.array([one == user for one in users])
        assert stay[own].sum() == min(own.sum(), at_most)


def test_those_with_few_users_come_first():
    assert kept([{"a", "b", "c"}, {"a", "b"}, {"a"}, {"b"}], 1).tolist() == [False, False, True, True]


def test_which_stay_is_not_known_without_the_key_and_not_by_the_order_of_the_names():
    records = [set(pair) for pair in permutations("abcd", 2)]
    assert len({tuple(kept(records, 2, bytes([key]) * 32).tolist()) for key in range(12)}) > 3


@settings(max_examples=15)
@given(graphs)
def test_the_graph_has_an_edge_for_each_user_of_each_record(records):
    graph = graph_of(records)
    found = [{*graph.names[graph.users[graph.records == record]].tolist()} for record in range(graph.count)]
    assert found == records
    assert graph.users_per_record.tolist() == [len(users) for users in records]
    assert graph.records_per_user.tolist() == [sum(name in users for users in records) for name in graph.names.tolist()]
    assert graph.shared == any(len(users) != 1 for users in records) == any_shared(_texts(records))


def _texts(records: list[set[str]]) -> np.ndarray:
    return np.array([canonical_users(";".join([";", *users])) for users in records])


@pytest.mark.parametrize(
    ("text", "users", "same"),
    [
        ("ann", ("ann",), "ann"),
        (" ann ", (" ann ",), " ann "),  # one name is taken as it is
        ("bob; ann", ("ann", "bob"), "ann;bob"),
        ("bob;bob", ("bob",), "bob"),
        (";;", (), ";"),
    ],
)
def test_how_users_are_written(text, users, same):
    assert parse_users(text) == users
    assert canonical_users(text) == same
    assert canonical_users(same) == same
