from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import pytest

from sfumato import PrivacyPlan, SfumatoError
from sfumato.privacy.planning.tradeoff import Frontier, Point
from sfumato.report.plots.tradeoff import check, draw


def made(batch_size: int) -> Frontier:
    """A frontier that nobody solved: what an image needs are its numbers."""

    def point(sigma: float, rule: str | None = None) -> Point:
        plan = PrivacyPlan.calibrate(
            examples=50_000, batch_size=batch_size, steps=int(300 * sigma**2), noise_multiplier=sigma, delta=1e-5
        )
        return Point(plan=plan, rule=rule)

    points = (point(1.0), point(2.0, "steps"), point(3.0, "noise"), point(4.0, "epochs"), point(8.0))
    return Frontier(epsilon=8.0, limit=points[-1].signal_to_noise_run * 1.01, points=points)


FRONTIERS = [made(1024), made(4096)]
BEST = FRONTIERS[1].best


def texts(path: Path) -> str:
    root = ElementTree.fromstring(path.read_bytes())
    return "\n".join("".join(node.itertext()) for node in root.iter() if node.tag.endswith("text"))


@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_suffix_decides_and_the_same_numbers_give_the_same_bytes(tmp_path, suffix, magic):
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix.upper()}"
    draw(FRONTIERS, str(first), best=BEST, epochs=150.0)
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "lines.linestyle": "--"}):
        draw(FRONTIERS, str(second), best=BEST, epochs=150.0)
        assert matplotlib.rcParams["font.size"] == 30
    assert first.read_bytes().startswith(magic)
    assert first.read_bytes() == second.read_bytes()


def test_the_image_says_what_it_shows_and_where_its_rules_come_from(tmp_path):
    draw(FRONTIERS, str(tmp_path / "a.svg"), best=BEST, epochs=150.0)
    shown = texts(tmp_path / "a.svg")
    for said in (
        "Within epsilon 8 at delta 1e-05, N = 50,000",
        "batch size 1,024",
        "batch size 4,096",
        "steps: rule of De et al. 2022, found on CIFAR-10",
        "noise: rule of the same",
        "most steps in the epochs allowed",
        "take this",
        "flat: 95%",
        "150 allowed",
        "noise multiplier",
        "expected epochs",
    ):
        assert said in shown


def test_what_is_not_there_is_not_in_the_legend(tmp_path):
    points = tuple(point for point in FRONTIERS[0].points if point.rule in (None, "steps"))
    single = Frontier(epsilon=8.0, limit=FRONTIERS[0].limit, points=points)
    draw([single], str(tmp_path / "a.svg"), best=single.best)
    shown = texts(tmp_path / "a.svg")
    assert "steps: rule" in shown
    for left_out in ("noise: rule", "epochs allowed", "batch size 4,096", " allowed"):
        assert left_out not in shown


def test_a_single_point_and_many_batch_sizes_can_be_drawn(tmp_path):
    single = Frontier(epsilon=8.0, limit=1e5, points=(BEST,))
    draw([single] * 9, str(tmp_path / "a.svg"), best=BEST)
    assert texts(tmp_path / "a.svg").count("batch size 4,096") == 9


@pytest.mark.parametrize(
    ("name", "match"),
    [("a.jpg", "plot must end with one of .svg, .png, .pdf"), ("svg", "plot must end"), ("no/a.svg", "folder")],
)
def test_a_file_that_cannot_be_drawn_is_refused(tmp_path, monkeypatch, name, match):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SfumatoError, match=match):
        check(name)
    with pytest.raises(SfumatoError, match=match):
        draw(FRONTIERS, name, best=BEST)
    assert not list(tmp_path.iterdir())
