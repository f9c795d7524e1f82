from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib
import numpy as np
import pytest

from sfumato.report.plots.curves import curve, epsilon_ticks, heat_map, surer_of_mistakes

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


def test_recall_is_drawn_against_rounds_in_percent():
    svg = curve([{"step": step, "recall": step / 200, "epsilon": step / 10} for step in (20, 100, 180)], "recall")
    assert "recall on the test split, 10.0% at round 20 and 90.0% at round 180, against rounds, with the epsilon" in svg
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter("text")]
    assert {"rounds", "epsilon spent", "90.0%"} <= set(texts)
    assert "steps" not in texts


def test_one_measurement_is_enough_for_a_curve():
    assert "50.0% at step 7" in curve([{"step": 7, "epsilon": 1.0, "accuracy": 0.5}], "accuracy")


def test_ten_thousand_measurements_stay_small_and_keep_the_last():
    rows = [{"step": step, "epsilon": step / 1e4, "loss": math.sin(step)} for step in range(1, 10_001)]
    svg = curve(rows, "loss")
    assert len(svg) < 40_000
    assert "step 10,000" in svg


def test_epsilon_stands_where_it_was_spent():
    ticks = epsilon_ticks([{"step": step, "epsilon": step / 100} for step in range(1, 401)])
    assert [label for _, label in ticks] == ["0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4.00"]
    for step, label in ticks:
        assert step == pytest.approx(100 * float(label))


def test_the_last_epsilon_is_never_rounded_down_and_ticks_keep_their_distance():
    ticks = epsilon_ticks([{"step": step, "epsilon": 2.9912 * math.sqrt(step / 500)} for step in range(5, 501, 5)])
    assert ticks[-1] == (500.0, "3.00")
    steps = [step for step, _ in ticks]
    assert all(right - left >= 500 / 8 - 1e-9 for left, right in pairwise(steps))
    assert epsilon_ticks([{"step": 3, "loss": 1.0}]) == []


def test_the_readers_own_matplotlib_settings_change_nothing_and_are_left_alone():
    before = curve(ROWS, "loss")
    with matplotlib.rc_context({"font.size": 30, "lines.linestyle": "--", "axes.spines.bottom": False}):
        assert curve(ROWS, "loss") == before
        assert matplotlib.rcParams["font.size"] == 30


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


@pytest.mark.parametrize("classes", [21, 250, 251, 1000])
def test_a_heat_map_of_many_classes_is_small(classes):
    draw = np.random.default_rng(classes)
    confusion = draw.poisson(30 / classes, (classes, classes)) + 20 * np.eye(classes, dtype=int)
    svg = heat_map(confusion.tolist())
    assert svg.count("data:image/png;base64,") == 1
    assert f"{classes:,} true classes" in svg
    assert len(svg) < 80_000


@pytest.mark.parametrize(
    ("losses", "accuracies", "step"),
    [
        ((0.5, 0.2, 0.4), (0.7, 0.9, 0.9), 2),
        ((0.5, 0.006, 0.0071), (0.7, 1.0, 1.0), None),  # 150 of 150 are right
        ((0.5, 0.2, 0.4), (0.7, 0.9, 1.0), None),
        ((0.5, 0.01, 0.02), (0.7, 0.99, 0.99), None),  # all of it is small
        ((0.5, 0.2, 0.4), (0.7, 0.9, 0.8), None),
    ],
)
def test_a_model_becomes_surer_of_mistakes_only_where_it_makes_some(losses, accuracies, step):
    rows = [{"step": n, "loss": a, "accuracy": b} for n, (a, b) in enumerate(zip(losses, accuracies, strict=True), 1)]
    assert surer_of_mistakes(rows) == step
