"""The attacker's curve: what it says is what the bounds are, never less."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.privacy import gaussian_true_positive_rates
from sfumato.privacy.statements.display import ceiling, percent_up
from sfumato.report import RATES, Attack


def attack(epsilon: float = 3.0, **changes) -> Attack:
    described = {
        "detections": gaussian_true_positive_rates(epsilon, 1e-5, RATES),
        "delta": 1e-5,
        "subject": "person, with all of their images,",
        "others": "all images of the other persons",
        "question": "a person's images were used",
    }
    return Attack(**{**described, **changes})


@given(st.floats(0, 1))
def test_a_bound_is_never_printed_below_itself(share):
    printed = float(percent_up(share).removesuffix("%")) / 100
    assert share - 1e-9 <= printed <= share + 0.0001 + 1e-9
    assert percent_up(ceiling(share, 4)) == percent_up(share), "a figure that is already rounded up stays as it is"


@pytest.mark.parametrize("epsilon", [0.1, 3.0, 30.0])
def test_words_and_picture_hold_the_bounds_of_this_plan(epsilon):
    found = attack(epsilon)
    at = [float(share) / 100 for share in re.findall(r"at most ([\d.]+)%", found.description)]
    bounds = gaussian_true_positive_rates(epsilon, 1e-5, [1e-3, 1e-2])
    assert at == pytest.approx(bounds, rel=0.15)
    assert all(printed >= bound - 1e-9 for printed, bound in zip(at, bounds, strict=True))
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(found.picture).iter("text")]
    for share in bounds:
        assert percent_up(share) in texts
    shown = {f"epsilon {one}" for one in (1, 3, 8)} - {f"epsilon {epsilon:g}"}
    assert shown <= set(texts), "the scale; a line that this plan's covers has no words of its own"


def test_the_words_speak_of_the_unit():
    words = attack().description
    assert words.startswith("For every single person, with all of their images: an attacker")
    assert "all images of the other persons included, and who asks whether a person's images were used" in words
