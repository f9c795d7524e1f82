"""The validation part: each record by itself, and none on both sides.

The cap on each user's records: at most G stay, chosen by the user's own records alone.
"""

import hmac
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.data import Records, Source, cap_per_user, hold_out, open_source
from sfumato.data.record_users import codes_of
from sfumato.data.subsets import one_per_user

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def source():
    return open_source("digits", owner_key=KEY)


def contents(records):
    return [image.tobytes() for image in records.images]


def with_train(source, keep):
    train = source.train
    return replace(source, train=Records(images=train.images[keep], labels=train.labels[keep]))


def test_every_record_is_on_one_side(source):
    rest, held_out = hold_out(source, KEY, 0.2)
    assert sorted(contents(rest.train) + contents(held_out)) == sorted(contents(source.train))
    assert not set(contents(rest.train)) & set(contents(held_out))
    assert abs(len(held_out) / len(source.train) - 0.2) < 0.04
    assert rest.test is source.test


def test_the_promise_counts_a_public_number(source):
    rest, _ = hold_out(replace(source, examples=1000), KEY, 0.1)
    assert rest.examples == 900


def test_a_record_moves_no_other_and_order_does_not_matter(source):
    _, held_out = hold_out(source, KEY, 0.2)
    generator = np.random.default_rng(0)
    for keep in (np.arange(1, len(source.train)), generator.permutation(len(source.train))[:-100]):
        _, again = hold_out(with_train(source, keep), KEY, 0.2)
        left = {source.train.images[place].tobytes() for place in keep}
        assert set(contents(again)) == set(contents(held_out)) & left


def test_the_part_is_bound_to_the_data_and_the_share(source):
    found = {
        hold_out(source, KEY, 0.2)[0].fingerprint,
        hold_out(source, KEY, 0.1)[0].fingerprint,
        hold_out(replace(source, fingerprint="0" * 64), KEY, 0.2)[0].fingerprint,
        source.fingerprint,
    }
    assert len(found) == 4


def test_a_share_that_leaves_nothing_is_refused_without_a_count(source):
    few = with_train(source, np.arange(3))
    with pytest.raises(SfumatoError, match=r"validation 1e-06 holds out none of the training examples"):
        hold_out(few, KEY, 1e-6)
    for share in (0, 1, "a"):
        with pytest.raises(SfumatoError, match="validation"):
            hold_out(source, KEY, share)


IMAGES = np.random.default_rng(0).integers(256, size=(12, 4, 4, 1), dtype=np.uint8)
CODES = codes_of(KEY, IMAGES, IMAGES)

Record = tuple[str, int, int]
"""User, image, label."""
records = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 11), st.integers(0, 1)), min_size=1, max_size=40)
most = st.integers(1, 6)


def source_of(listed: Sequence[Record], **others) -> Source:
    users, images, labels = (np.array(column) for column in zip(*listed, strict=True))
    train = Records(images=IMAGES[images], codes=CODES[images], labels=labels.astype(np.int64), users=users.astype(str))
    facts = {"classes": ("x", "y"), "size": 4, "channels": 1, "examples": 1000, "public": False}
    whole = {"kind": "npz", "read": (), "fingerprint": "0" * 64, "size_rule": "declared"} | facts | others
    return Source(train=train, test=train, users=len({*users}), **whole)


def listed_in(part: Records) -> list[Record]:
    places = [int(np.flatnonzero((image == IMAGES).all((1, 2, 3)))[0]) for image in part.images]
    assert part.users is not None
    return list(zip(part.users.tolist(), places, part.labels.tolist(), strict=True))


def kept(listed: Sequence[Record], at_most: int, key: bytes = KEY) -> list[Record]:
    return listed_in(cap_per_user(source_of(listed), key, at_most).train)


def plainly(listed: Sequence[Record], at_most: int) -> list[Record]:
    """User by user, and each user's records in the order of their hashes."""
    stay = []
    for user in {user for user, *_ in listed}:
        own = [(place, record) for place, record in enumerate(listed) if record[0] == user]

        def rank(one: tuple[int, Record]) -> tuple[bytes, int, int]:
            place, (_, image, label) = one
            return hmac.digest(KEY, b"cap" + CODES[image, :16].tobytes(), "sha256"), label, place

        stay += [place for place, _ in sorted(own, key=rank)[:at_most]]
    return [listed[place] for place in sorted(stay)]


@settings(max_examples=15)
@given(records, most)
def test_the_first_of_each_users_records_by_their_keyed_hash_stay_in_their_order(listed, at_most):
    """So a user who leaves, and the order of records, change nothing for the others."""
    assert kept(listed, at_most) == plainly(listed, at_most)


def test_which_stay_is_not_known_without_the_key():
    everything = [("a", image, 0) for image in range(12)]
    chosen = {tuple(kept(everything, 3, key)) for key in (KEY, bytes(32), bytes(31) + b"x", b"y" * 32)}
    assert len(chosen) > 2


def test_it_is_bound_to_the_data_and_to_the_cap():
    one, other = source_of([("a", 1, 0), ("b", 2, 1)]), source_of([("a", 1, 0), ("b", 2, 1)], fingerprint="1" * 64)
    found = {
        cap_per_user(*given).fingerprint
        for given in ((one, KEY, 1), (one, KEY, 2), (other, KEY, 1), (one, bytes(32), 1))
    }
    assert len(found | {one.fingerprint}) == 5


def test_the_number_that_stays_is_declared_or_read_off_the_data():
    source = source_of([("a", image, 0) for image in range(9)] + [("b", 0, 1)], read=("size",))
    counted, declared = cap_per_user(source, KEY, 4), cap_per_user(source, KEY, 4, examples=6)
    assert (counted.examples, counted.read) == (5, ("examples", "size"))
    assert (declared.examples, declared.read) == (6, ("size",))
    assert cap_per_user(replace(source, read=("examples", "size")), KEY, 4, examples=6).read == ("size",)

    assert counted.users == 2
    assert counted.test is source.test


def test_that_files_were_left_out_stays_named():
    source = source_of([("a", 0, 0), ("b", 0, 1)], read=("size", "left_out"))
    assert cap_per_user(source, KEY, 1).read == ("examples", "size", "left_out")


def test_everything_that_is_known_of_a_record_stays_with_it(tmp_path):
    """Larger images, groups and labels."""
    images = np.arange(40, dtype=np.uint8)[:, None, None] + np.zeros((1, 16, 16), np.uint8)
    arrays = {"x": images, "y": np.arange(40) % 2, "users": np.arange(40) % 3, "groups": np.arange(40) % 3 + 7}
    np.savez(tmp_path / "a.npz", **arrays)
    source = open_source(f"npz:{tmp_path}/a.npz", owner_key=KEY, size=8, zoom=1.5, test_fraction=0.3)
    smaller = cap_per_user(source, KEY, 5)
    assert smaller.zoomed is not None
    numbers = smaller.train.images[:, 0, 0, 0].astype(int)
    assert len(numbers) == 5 * smaller.users < len(source.train)
    for part in (smaller.train, smaller.zoomed):
        assert np.array_equal(part.images[:, 0, 0, 0], numbers)
        assert part.users.tolist() == [str(number % 3) for number in numbers]
        assert part.groups.tolist() == [str(number % 3 + 7) for number in numbers]
        assert np.array_equal(part.labels, numbers % 2)


def test_what_cannot_be_capped_is_refused():
    source = source_of([("a", 1, 0), ("b", 2, 1)])
    with pytest.raises(SfumatoError, match="at_most must be at least 1, got 0; give the number of records to keep"):
        cap_per_user(source, KEY, 0)
    with pytest.raises(SfumatoError, match="does not name the user of each record; give a table with the column user"):
        cap_per_user(open_source("digits", owner_key=KEY), KEY, 3)


@settings(max_examples=30)
@given(records, st.sampled_from("abcd"))
def test_one_record_of_each_user_is_chosen_and_a_user_more_or_less_changes_no_other(listed, person):
    def chosen(some: Sequence[Record]) -> list[Record]:
        part = source_of(some).train
        return listed_in(part.select(one_per_user(part, KEY)))

    whole, rest = chosen(listed), [record for record in listed if record[0] != person]
    assert sorted(user for user, *_ in whole) == sorted({user for user, *_ in listed})
    assert whole == kept(listed, 1)
    if rest:
        assert chosen(rest) == [record for record in whole if record[0] != person]
