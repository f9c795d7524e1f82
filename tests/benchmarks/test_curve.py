"""The picture of accuracy against epsilon has each data set that was measured, and nothing but means and their runs."""

import re
import statistics

from benchmarks.accuracy import curve


def test_the_picture_is_of_what_was_measured():
    found = curve.collected()
    assert found.keys() == curve.SETS.keys()
    assert found["digits"].keys() >= set(curve.EPSILONS)
    drawn = curve.draw(found)
    dots = sum(len(runs) for by_epsilon in found.values() for runs in by_epsilon.values())
    for text in (drawn, curve.PICTURE.read_text("utf-8")):  # where the second fails: draw it again
        assert all(f"{name}, {images:,} images" in text for name, images in curve.SETS.items())
        assert len(re.findall(r"<use [^>]*fill-opacity: 0.6", text)) == dots


def test_the_readme_says_what_the_picture_shows():
    readme = (curve.PICTURE.parents[2] / "README.md").read_text("utf-8")
    for name in ("MNIST", "CIFAR-10"):
        row = re.findall(rf"\| {name} [^|]*\| ([\d.]+)% \| ([\d.]+)% \|", readme)[0]
        for epsilon, accuracy in zip((1.0, 3.0), row, strict=True):
            assert abs(100 * statistics.mean(curve.collected()[name][epsilon]) - float(accuracy)) < 0.11
