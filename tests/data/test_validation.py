"""The validation part: each record by itself, and none on both sides."""

from dataclasses import replace

import numpy as np
import pytest

from sfumato._checks import SfumatoError
from sfumato.data import Records, hold_out, open_source

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
