"""The split by keyed hash: each record alone, with the share that was asked for."""

import math

from hypothesis import given
from hypothesis import strategies as st

from sfumato.data.split import in_test, position

contents = st.lists(st.binary(max_size=20), max_size=20)
keys = st.binary(min_size=32, max_size=32)


@given(contents, keys, st.binary(max_size=20), st.integers(0, 20))
def test_a_record_more_moves_no_other(records, key, another, place):
    before = [in_test(key, record, 0.3) for record in records]
    longer = [*records[:place], another, *records[place:]]
    after = [in_test(key, record, 0.3) for record in longer]
    del after[min(place, len(records))]
    assert after == before


@given(keys, st.binary(max_size=20))
def test_a_larger_test_part_keeps_its_members(key, record):
    assert in_test(key, record, 0.2) <= in_test(key, record, 0.4)
    assert 0 <= position(key, record) < 1


def test_places_are_uniform_and_depend_on_the_key():
    records = [number.to_bytes(4, "big") for number in range(20_000)]
    places = {key: [position(bytes([key]) * 32, record) for record in records] for key in (1, 2)}
    for values in places.values():
        for share in (0.1, 0.2, 0.5):
            found = sum(value < share for value in values) / len(values)
            assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / len(values))
    both = sum(a < 0.5 and b < 0.5 for a, b in zip(*places.values(), strict=True)) / len(records)
    assert abs(both - 0.25) < 0.016
