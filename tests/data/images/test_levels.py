"""What is declared of pixels of 16 bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.data.levels import HIGHEST, LOWEST, Levels, undeclared


@pytest.mark.parametrize("bits", [1, 8, 12, 16])
def test_all_bits_reach_from_black_to_white(bits):
    values = np.arange(2**bits)
    greys = Levels(bit_depth=bits).apply(values, "image")
    assert greys.dtype == np.uint8
    assert np.abs(greys - values * 255 / (2**bits - 1)).max() <= 0.5
    for beyond in (-1, 2**bits):
        with pytest.raises(SfumatoError, match=f"^image holds the value {beyond}, but {bits} bits hold 0 to "):
            Levels(bit_depth=bits).apply(np.array([0, beyond]), "image")


@settings(max_examples=25)
@given(st.integers(LOWEST, HIGHEST - 1), st.data())
def test_a_window_is_linear_inside_and_flat_outside(low, data):
    high = data.draw(st.integers(low + 1, HIGHEST))
    values = np.arange(LOWEST, HIGHEST + 1)
    greys = Levels(window=(low, high)).apply(values, "image")
    assert set(greys[values <= low]) == {0}
    assert set(greys[values >= high]) == {255}
    inside = (values >= low) & (values <= high)
    assert np.abs(greys[inside] - (values[inside] - low) * 255 / (high - low)).max() <= 0.5001


@pytest.mark.parametrize("form", ["<u2", ">i2"])
def test_a_window_does_not_depend_on_how_the_values_are_stored(form):
    values = np.array([0, 100, 30_000]).astype(form)
    assert Levels(window=(0, 200)).apply(values, "image").tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"bit_depth": 12, "window": (0, 1)}, "bit_depth=12 and window=0,1 are both given"),
        ({"bit_depth": 0}, "bit_depth must be at least 1, got 0; give the number of bits that the values use"),
        ({"bit_depth": 17}, "bit_depth must be at most 16, got 17"),
        ({"window": (1, 1)}, "window must be a number of at least -32768 and a larger one of at most 65535"),
        ({"window": (-40_000, 0)}, "window must be a number .* got -40000,0"),
        ({"window": "0,1"}, "window must be two integers, got '0,1'"),
        ({"window": (0.5, 2)}, r"window must be two integers, got \(0.5, 2\)"),
    ],
)
def test_what_cannot_be_meant_is_refused(declared, message):
    with pytest.raises(SfumatoError, match=message):
        Levels(**declared)


def test_the_refusal_without_a_declaration_names_both_options():
    assert "`bit_depth`" in undeclared("image").remedy
    assert "`window`" in undeclared("image").remedy
    assert Levels.from_declared(None, None) is None
