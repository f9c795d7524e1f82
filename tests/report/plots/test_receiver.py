"""The plot of ROC curves."""

from __future__ import annotations

from xml.etree import ElementTree

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
