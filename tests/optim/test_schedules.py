import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.optim import SCHEDULES, schedule


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
    ],
)
def test_values(name, expected):
    rate = schedule(name, steps=4)
    assert [rate(step) for step in range(4)] == pytest.approx(expected)
    warmed = schedule(name, steps=6, warmup=2)
    assert [warmed(step) for step in range(6)] == pytest.approx([0.5, 1, *expected])


@given(name=st.sampled_from(SCHEDULES), steps=st.integers(1, 200), data=st.data())
def test_every_step_has_a_multiplier_above_zero_and_at_most_one(name, steps, data):
    warmup = data.draw(st.integers(0, steps - 1))
    rate = schedule(name, steps=steps, warmup=warmup)
    values = [rate(step) for step in range(steps)]
    assert all(0 < value <= 1 for value in values)
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)


def test_unknown_name_lists_the_names():
    with pytest.raises(SfumatoError, match=r"constant, cosine, linear, step.*'stepwise'"):
        schedule("stepwise", steps=3)


@pytest.mark.parametrize("warmup", [-1, 3, 1.0, True])
def test_bad_warmup_is_refused(warmup):
    with pytest.raises(SfumatoError, match="warmup"):
        schedule("constant", steps=3, warmup=warmup)


def test_step_past_the_last_is_refused():
    with pytest.raises(SfumatoError, match="between 0 and 2"):
        schedule("constant", steps=3)(3)
