"""The plot of recall against the false accept rate."""

import xml.etree.ElementTree as ElementTree

import pytest

from sfumato.report import roc

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
