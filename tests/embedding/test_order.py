"""The order of a client's records: what `tf.data` does with shuffle, repeat, take and batch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato.embedding.local import batches, shuffled


@given(
    records=st.integers(0, 30),
    epochs=st.integers(1, 4),
    batch_size=st.integers(1, 9),
    examples=st.none() | st.integers(1, 150),
    buffer=st.none() | st.integers(0, 40),
)
def test_batches_are_full_but_the_last_and_see_what_the_cap_allows(records, epochs, batch_size, examples, buffer):
    found = batches(
        records,
        np.random.default_rng(0),
        epochs=epochs,
        batch_size=batch_size,
        examples=examples,
        shuffle_buffer=buffer,
    )
    sizes = [len(batch) for batch in found]
    assert sum(sizes) == min(records * epochs, examples or records * epochs)
    assert all(size == batch_size for size in sizes[:-1])
    assert all(0 < size <= batch_size for size in sizes)
    stream = np.concatenate([*found, np.empty(0, np.int64)])
    for start in range(0, len(stream), max(1, records)):
        epoch = stream[start : start + records]
        assert len(np.unique(epoch)) == len(epoch), "an epoch sees nothing twice"


@given(records=st.integers(1, 30), buffer=st.integers(1, 30))
def test_a_record_leaves_no_earlier_than_the_buffer_lets_it_in(records, buffer):
    order = shuffled(records, np.random.default_rng(0), buffer)
    assert sorted(order) == list(range(records))
    assert (order < np.arange(records) + buffer).all()


def test_a_buffer_gives_every_record_in_it_the_same_chance():
    """With three records and a buffer of two: 0 or 1 first, each with 1/2; then one of the two that are left."""
    generator = np.random.default_rng(0)
    found = [tuple(shuffled(3, generator, 2).tolist()) for _ in range(4000)]
    counts = [found.count(order) for order in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0)]]
    assert sum(counts) == 4000
    assert stats.chisquare(counts).pvalue > 1e-6


def test_epochs_are_shuffled_anew():
    one, two = batches(20, np.random.default_rng(0), epochs=2, batch_size=20)
    assert (one != two).any()
