import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from sfumato.report.plots.curves import curve, epsilon_ticks, heat_map, recall_curve, roc_file

ROWS = [
    {"step": step, "epsilon": 0.3 * math.sqrt(step), "accuracy": step / 200, "loss": 2 - step / 100}
    for step in range(10, 101, 10)
]


@pytest.mark.parametrize("key", ["accuracy", "loss"])
def test_a_curve_is_one_element_in_the_colours_of_the_page_with_its_numbers_as_text(key):
    svg = curve(ROWS, key)
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert root.get("role") == "img"
    assert key in (root.get("aria-label") or "")
    texts = ["".join(text.itertext()) for text in root.iter("text")]
    assert {"steps", "epsilon spent", "100"} <= set(texts)
    assert ("50.0%" if key == "accuracy" else "1") in texts
    assert "var(--" in svg
    assert "#0" not in svg
    assert "http" not in svg
    assert "<style" not in svg


def test_a_curve_without_figures_is_nothing_and_not_finite_ones_are_passed_over():
    assert curve([], "loss") == ""
    assert curve([{"step": 1, "loss": math.nan}, {"step": 2, "epsilon": 1.0}], "loss") == ""
    assert "at step 10 and" in curve([*ROWS, {"step": 110, "loss": math.inf}], "loss")


def test_ten_thousand_measurements_stay_small_and_keep_the_last():
    rows = [{"step": step, "epsilon": step / 1e4, "loss": math.sin(step)} for step in range(1, 10_001)]
    svg = curve(rows, "loss")
    assert len(svg) < 40_000
    assert "step 10,000" in svg


def test_the_epsilon_spent_by_each_quarter_is_shown_and_never_rounded_down():
    rows = [{"step": step, "epsilon": 2.9912 * math.sqrt(step / 500)} for step in range(5, 501, 5)]
    assert epsilon_ticks(rows) == [(125.0, "1.50"), (250.0, "2.12"), (375.0, "2.60"), (500.0, "3.00")]
    assert epsilon_ticks(rows[-1:]) == [(500.0, "3.00")], "nothing is known of the steps before"
    assert epsilon_ticks([{"step": 3, "loss": 1.0}]) == []


def test_two_plots_of_a_page_share_no_id():
    def ids(svg: str) -> set[str]:
        return {identity for node in ElementTree.fromstring(svg).iter() if (identity := node.get("id"))}

    first, second = curve(ROWS, "accuracy"), curve(ROWS, "loss")
    assert ids(first)
    assert not ids(first) & ids(second)
    for svg in (first, second):
        for node in ElementTree.fromstring(svg).iter():
            if (target := node.get("href", "")).startswith("#"):
                assert target[1:] in ids(svg)
            if clip := node.get("clip-path"):
                assert clip.removeprefix("url(#").removesuffix(")") in ids(svg)


@pytest.mark.parametrize("classes", [21, 251])
def test_a_heat_map_of_many_classes_is_small(classes):
    draw = np.random.default_rng(classes)
    confusion = draw.poisson(30 / classes, (classes, classes)) + 20 * np.eye(classes, dtype=int)
    svg = heat_map(confusion.tolist())
    assert svg.count("data:image/png;base64,") == 1
    assert f"{classes:,} true classes" in svg
    assert len(svg) < 80_000


CURVE = [(0.0, 0.0), (0.1, 0.7), (1.0, 1.0)]


def test_names_are_text_whatever_they_hold():
    names = ("<script>alert(1)</script>", '--><b onload="x">', "_hidden", "$x^2$")
    for name in names:
        found = ElementTree.fromstring(roc_file(name, CURVE, 0.8, (0.1, 0.7)))
        shown = [one.text for one in found.iter() if one.tag.rpartition("}")[2] in ("text", "tspan") and one.text]
        assert any(name[:10] in text for text in shown)
        assert not {one.tag.rpartition("}")[2] for one in found.iter()} & {"script", "b"}


POINTS = [{"at_far": 10.0**power, "recall": 1 + power / 10} for power in range(-5, 1)]


def texts(svg):
    return {"".join(text.itertext()) for text in ElementTree.fromstring(svg).iter("text")}


def test_rates_stand_on_a_logarithmic_axis_and_the_marked_recall_is_written_down():
    svg = recall_curve(POINTS, marked=1e-3)
    root = ElementTree.fromstring(svg)
    assert (root.tag, root.get("role")) == ("svg", "img")
    assert root.get("aria-label") == (
        "Line: recall against the false accept rate, 50.0% at 10⁻⁵, 70.0% at 0.001, 100% at 1."
    )
    assert {"false accept rate", "10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1", "1", "100%", "70.0%"} <= texts(svg)
    assert "70.0%" not in texts(recall_curve(POINTS))
    assert svg == recall_curve(POINTS, marked=1e-3)
