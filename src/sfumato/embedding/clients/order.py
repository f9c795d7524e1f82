"""The order in which a client sees its records: shuffled, repeated, cut off, in batches.

In the same order of operations as the authors of DP-FedEmb (google-research/federated, `tff_input.py`): so batches run
on from one epoch into the next, the cap counts what is seen and not what there is, and the last batch may be smaller.
"""

from __future__ import annotations

import numpy as np


def batches(
    records: int,
    generator: np.random.Generator,
    *,
    epochs: int,
    batch_size: int,
    examples: int | None = None,
    shuffle_buffer: int | None = None,
) -> list[np.ndarray]:
    """The batches of a client's local training, as positions among its records.

    Args:
        records: how many the client has.
        generator: the client's own.
        epochs: how often each record is seen where nothing is cut off.
        batch_size: of all batches but the last.
        examples: how many are seen at most over all epochs; None for all.
        shuffle_buffer: as in `shuffled`.

    >>> [len(batch) for batch in batches(5, np.random.default_rng(0), epochs=2, batch_size=4)]
    [4, 4, 2]
    """
    wanted = records * epochs if examples is None else min(examples, records * epochs)
    seen = [shuffled(records, generator, shuffle_buffer) for _ in range(-(-wanted // max(1, records)))]
    stream = np.concatenate([*seen, np.empty(0, np.int64)])[:wanted]
    return [stream[start : start + batch_size] for start in range(0, wanted, batch_size)]


def shuffled(records: int, generator: np.random.Generator, buffer: int | None) -> np.ndarray:
    """The positions 0 to `records` - 1, int64, in an order as `tf.data.Dataset.shuffle` gives it.

    Args:
        buffer: so many wait at a time, and each next one is any of them with equal probability; the next in line takes
            its place. None, or at least `records`, for a uniform order; 0 or 1 for none.

    >>> shuffled(4, np.random.default_rng(0), 0).tolist()
    [0, 1, 2, 3]
    """
    if buffer is None or buffer >= records:
        return generator.permutation(records)
    size = max(1, buffer)
    waiting, order = np.arange(size), np.empty(records, np.int64)
    for place, slot in enumerate(generator.integers(size, size=records - size)):
        order[place] = waiting[slot]
        waiting[slot] = place + size
    order[records - size :] = generator.permutation(waiting)
    return order
