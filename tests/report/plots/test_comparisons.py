"""Plots of several plans or runs."""

from xml.etree import ElementTree

from sfumato.report import sweep_panels
from sfumato.report.plots.curves import _positions

ROWS = [
    {"accuracy": 0.5 + 0.01 * number, "learning_rate": 0.1 * 1.7**number, "model": f"wrn-16-{number % 2}", "flip": True}
    for number in range(9)
]


def test_the_same_rows_give_the_same_bytes():
    first = sweep_panels(ROWS, ["learning_rate", "model", "flip"])
    assert first == sweep_panels(ROWS, ["learning_rate", "model", "flip"])
    assert first != sweep_panels(ROWS[1:], ["learning_rate", "model", "flip"])
    text = "".join(ElementTree.fromstring(first).itertext())
    assert text  # well-formed


def test_there_is_a_panel_for_each_setting():
    count = 4
    varied = ["learning_rate", "model", "flip", "accuracy"][:count]
    assert sweep_panels(ROWS, varied).count('id="axes_') == count


def test_many_numbers_stand_at_themselves_and_few_side_by_side():
    assert _positions([0.1 * n for n in range(8)]) == ([0.1 * n for n in range(8)], None)
    assert _positions([4.0, 0.5, 4.0]) == ([1.0, 0.0, 1.0], ["0.5", "4"])
    assert _positions([True, False]) == ([0.0, 1.0], ["True", "False"])
    assert _positions([("norm", "classifier"), ("all",)]) == ([0.0, 1.0], ["norm, classifier", "all"])
    assert _positions(["a" * 30])[1] == ["a" * 21 + "..."]
