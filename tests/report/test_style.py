"""Whatever is drawn or written looks alike, in light and in dark."""

import re
from xml.etree import ElementTree

import matplotlib
import pytest

from sfumato.report import curve_of_budgets, sweep_panels
from sfumato.report.plots.drawing import DARK, LIGHT, PAPER, render, stylesheet
from studies import more_users, pairs

FILES = {
    "sweep": lambda: sweep_panels(
        [{"accuracy": 0.5 + rate / 9, "rate": rate} for rate in (0.1, 1.0, 3.0, 4.0, 5.0, 6, 7, 8)], ["rate"]
    ),
    "budgets": lambda: curve_of_budgets([{"epsilon": 1.0, "accuracy": 0.5}, {"epsilon": 8.0, "accuracy": 0.7}], 0.9),
    "extrapolated": lambda: more_users.draw_curves(
        [
            {"users": 10**n, "epsilon": 1.0, "accountant": "pld", "norms": 1, "batch_size": 10 ** (n - 1)}
            for n in (3, 4, 6)
        ]
    ),
    "compared": lambda: pairs.draw_bars(
        [
            {
                "participation": "poisson",
                "mechanism": "gaussian",
                "adjacency": "add-or-remove",
                "epsilon": 3.0,
                "noise_in_weights": 4.0,
                "noise_in_final_weights": 2.0,
                "buffers": 0,
            }
        ]
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_palette_s_colours_alone_and_takes_the_dark_ones_on_a_dark_screen(name):
    svg = FILES[name]()
    ElementTree.fromstring(svg)
    before, dark = svg.split("@media (prefers-color-scheme: dark)")
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", before + dark[dark.index("</style>") :]))
    assert {LIGHT["paper"], LIGHT["rule"], LIGHT["first"]} <= used <= set(LIGHT.values())
    for colour in used:
        other = DARK[next(name for name, value in LIGHT.items() if value == colour)]
        assert f'[style*="fill: {colour}"]{{fill:{other}!important}}' in dark
    assert "mathdefault" not in svg, "powers of ten are written out"


def test_the_reader_s_own_matplotlib_settings_change_nothing():
    name = "budgets"
    first = FILES[name]()
    with matplotlib.rc_context({"font.size": 30, "lines.linestyle": "--", "axes.facecolor": "red"}):
        assert FILES[name]() == first


def test_every_page_has_the_sheet_and_every_colour_three_forms():
    assert set(DARK) == set(LIGHT) > set(PAPER)
    sheet = stylesheet()
    for part, colours in (("dark", DARK), ("print", LIGHT | PAPER)):
        rules = sheet[sheet.index(part) :]
        for name, value in colours.items():
            assert f"--{name}: {value};" in rules
    assert sheet in render("pairs.html.jinja", title="t", summary="s", more=0, pairs=[])


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colours", [LIGHT, DARK, LIGHT | PAPER], ids=["light", "dark", "paper"])
def test_text_stands_out_from_its_ground(colours):
    """A contrast of 4.5 to 1, as the Web Content Accessibility Guidelines 2.1 ask of text (1.4.3)."""
    for name in set(colours) - {"paper", "raised", "rule"}:
        one, other = sorted((luminance(colours[name]), luminance(colours["paper"])))
        assert (other + 0.05) / (one + 0.05) >= 4.5, name
