"""The split by keyed hash: each record alone, with the share that was asked for."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data import hold_out, open_source
from sfumato.data.record_users import in_test, keyed_position

contents = st.lists(st.binary(max_size=20), max_size=20)
keys = st.binary(min_size=32, max_size=32)


@settings(max_examples=15)
@given(contents, keys, st.binary(max_size=20), st.integers(0, 20))
def test_a_record_more_moves_no_other(records, key, another, place):
    before = [in_test(key, record, 0.3) for record in records]
    longer = [*records[:place], another, *records[place:]]
    after = [in_test(key, record, 0.3) for record in longer]
    del after[min(place, len(records))]
    assert after == before


@settings(max_examples=15)
@given(keys, st.binary(max_size=20))
def test_a_larger_test_part_keeps_its_members(key, record):
    assert in_test(key, record, 0.2) <= in_test(key, record, 0.4)
    assert 0 <= keyed_position(key, record) < 1


def test_places_are_uniform_and_depend_on_the_key():
    records = [number.to_bytes(4, "big") for number in range(20_000)]
    places = {key: [keyed_position(bytes([key]) * 32, record) for record in records] for key in (1, 2)}
    for values in places.values():
        for share in (0.1, 0.2, 0.5):
            found = sum(value < share for value in values) / len(values)
            assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / len(values))
    both = sum(a < 0.5 and b < 0.5 for a, b in zip(*places.values(), strict=True)) / len(records)
    assert abs(both - 0.25) < 0.016


def test_a_record_has_one_code_whatever_is_made_of_it(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 12, 12), np.uint8)
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(40) % 2)
    small, whole = (open_source(f"npz:{tmp_path / 'a.npz'}", owner_key=bytes(32), size=size) for size in (6, 12))
    assert small.fingerprint != whole.fingerprint
    assert small.stored_digest == whole.stored_digest
    assert np.array_equal(small.train.codes, whole.train.codes)
    sides = [hold_out(source, bytes(32), 0.3)[1].labels.tolist() for source in (small, whole)]
    assert sides[0] == sides[1]
    np.savez(tmp_path / "b.npz", x=images[::-1], y=np.arange(40) % 2)
    assert open_source(f"npz:{tmp_path / 'b.npz'}", owner_key=bytes(32)).stored_digest == whole.stored_digest
    np.savez(tmp_path / "c.npz", x=images[1:], y=np.arange(39) % 2)
    assert open_source(f"npz:{tmp_path / 'c.npz'}", owner_key=bytes(32)).stored_digest != whole.stored_digest
    assert open_source(f"npz:{tmp_path / 'a.npz'}", owner_key=bytes(31) + b"x").stored_digest != whole.stored_digest


@pytest.mark.parametrize(("declared", "share"), [({}, 0.2), ({"test_fraction": 0.35}, 0.35)])
def test_a_source_knows_the_share_that_it_was_split_by(tmp_path, declared, share):
    """A model file keeps it, so that who measures again sets the same records aside."""
    labels = np.arange(400) % 2
    images = np.random.default_rng(0).integers(0, 256, (400, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x=images, y=labels)
    source = open_source(f"npz:{tmp_path / 'a.npz'}", owner_key=bytes(32), **declared)
    assert source.test_fraction == share
    assert abs(len(source.test) / 400 - share) < 5 * math.sqrt(share * (1 - share) / 400)
