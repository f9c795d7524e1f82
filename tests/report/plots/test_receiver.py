"""The plot of ROC curves."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from sfumato.report import roc
from sfumato.report.plots.receiver import receiver

CURVE = [(0.0, 0.0), (0.1, 0.7), (1.0, 1.0)]


def test_the_curves_of_the_classes_hardest_to_tell_apart_are_drawn():
    names = ["a", "b", "c", "d", "e", "f"]
    areas = dict(zip(names, (0.99, 0.7, 0.95, 0.6, 0.8, 0.97), strict=True))
    drawn = receiver(dict.fromkeys(names, CURVE), areas)
    assert "areas 60.0% of d, 70.0% of b, 80.0% of e, 95.0% of c." in drawn
    assert "f  " not in drawn
    assert drawn == receiver(dict.fromkeys(names, CURVE), areas)


def test_of_two_classes_one_curve_is_drawn_and_of_none_nothing():
    assert "areas 80.0% of sick." in receiver({"well": CURVE, "sick": CURVE}, {"well": 0.81, "sick": 0.8})
    assert receiver({}, {}) == ""


def test_names_are_text_whatever_they_hold():
    names = ("<script>alert(1)</script>", '--><b onload="x">', "_hidden", "$x^2$")
    drawn = receiver(dict.fromkeys(names, CURVE), dict.fromkeys(names, 0.8))
    found = ElementTree.fromstring(drawn)
    assert {one.tag.rpartition("}")[2] for one in found.iter()} <= {
        "svg",
        "g",
        "path",
        "text",
        "defs",
        "clipPath",
        "rect",
        "use",
        "tspan",
    }
    shown = " ".join(filter(None, (one.text for one in found.iter())))
    assert all(name[:10] in shown for name in names)


POINTS = [{"at_far": 10.0**power, "recall": 1 + power / 10} for power in range(-5, 1)]


def texts(svg):
    return {"".join(text.itertext()) for text in ElementTree.fromstring(svg).iter("text")}


def test_rates_stand_on_a_logarithmic_axis_and_the_marked_recall_is_written_down():
    svg = roc(POINTS, marked=1e-3)
    root = ElementTree.fromstring(svg)
    assert (root.tag, root.get("role")) == ("svg", "img")
    assert root.get("aria-label") == (
        "Line: recall against the false accept rate, 50.0% at 10⁻⁵, 70.0% at 0.001, 100% at 1."
    )
    assert {"false accept rate", "10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1", "1", "100%", "70.0%"} <= texts(svg)
    assert "70.0%" not in texts(roc(POINTS))
    assert svg == roc(POINTS, marked=1e-3)


def test_it_has_the_colours_of_the_page_and_brings_nothing():
    svg = roc(POINTS, marked=1e-3)
    assert "var(--first)" in svg
    assert "#0" not in svg
    assert "http" not in svg


@pytest.mark.parametrize("recall", [0.0, 0.4, 1.0])
def test_one_point_is_enough_and_none_is_nothing(recall):
    assert f"rate, {recall:.0%}" in roc([{"at_far": 1e-3, "recall": recall}], marked=1e-3).replace(".0%", "%")
    assert roc([]) == ""
