"""Which steps' weights a run keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sfumato.averaging import kept_count_by_rule, kept_steps


@given(st.integers(1, 500), st.integers(0, 60))
def test_half_are_the_last_ones_and_the_others_lie_spaced_in_the_second_half(steps, count):
    kept = kept_steps(steps, count)
    assert len(kept) == min(count, steps)
    assert list(kept) == sorted(set(kept))
    assert all(1 <= step <= steps for step in kept)
    if kept:
        last = (len(kept) + 1) // 2
        assert kept[-last:] == tuple(range(steps - last + 1, steps + 1))
    if steps >= 4 * count:
        assert not kept or kept[0] >= steps // 2


@given(st.integers(1, 1 << 30))
def test_by_rule_they_fit_into_64_mib_or_there_are_none(size):
    count = kept_count_by_rule(size)
    assert count == 0 or (4 <= count <= 20 and count * size <= 64 << 20)
    assert (count == 0) == (4 * size > 64 << 20)
