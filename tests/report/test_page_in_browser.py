"""The page as a browser lays it out."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sfumato.report import Evaluation, page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# The page runs no script and allows none, so a page around it measures it in a frame of the width wanted.
HARNESS = """<!DOCTYPE html><body>
<iframe style="border:0; width:{width}px; height:900px" srcdoc="{page}"></iframe>
<script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const plots = [...inside.querySelectorAll("svg.plot")].map(svg => svg.getBoundingClientRect());
  const first = inside.querySelector(".headline").getBoundingClientRect();
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify({{
    summary: inside.querySelector("#summary").innerText,
    promise: inside.querySelector("#promise").innerText,
    headline_bottom: first.bottom,
    plots: plots.map(box => [box.width, box.height]),
    bars: [...inside.querySelectorAll(".bars .fill")].map(bar => bar.getBoundingClientRect().width),
    images: [...inside.images].map(image => image.naturalWidth),
    width: inside.documentElement.scrollWidth,
    colour: getComputedStyle(inside.querySelector("svg.plot text")).fill,
  }});
  document.body.append(found);
}};
</script>"""


def dump(path: Path, profile: Path) -> str:
    assert BROWSER
    command = [
        BROWSER,
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
        *(f"--user-data-dir={profile}", "--dump-dom", path.as_uri()),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
@pytest.mark.parametrize("width", [320, 1280])
def test_a_browser_shows_the_statement_and_the_plots_and_nothing_overflows(facts, tmp_path, width):
    given = facts()
    names = ["a class with a rather long name", "Donaudampfschifffahrtsgesellschaft" * 2, *map(str, range(10))]
    confusion = [[4000 if row == column else row + column for column in range(12)] for row in range(12)]
    wide = Evaluation(accuracy=0.9, loss=0.3, classes=names, confusion=confusion, samples=given.evaluation.samples)
    framed = tmp_path / "frame.html"
    framed.write_text(HARNESS.format(width=width, page=html.escape(page(facts(evaluation=wide)))), encoding="utf-8")
    dumped = dump(framed, tmp_path / "profile")
    match = re.search(r'<pre id="found">(.*?)</pre>', dumped, flags=re.DOTALL)
    assert match, dumped[-2000:]
    found = json.loads(html.unescape(match[1]))
    assert given.statement["sentence"] in found["promise"]
    assert given.statement["plain"][1] in found["promise"]
    assert given.attack.description in found["summary"]
    assert "95% interval" in found["summary"]
    assert found["headline_bottom"] < 700, "accuracy and epsilon stand on the first screen, of a phone too"
    assert len(found["plots"]) == 3
    assert all(plot_width > 0.4 * min(width, 672) and height > 100 for plot_width, height in found["plots"])
    assert len(found["bars"]) == 12
    assert min(found["bars"]) > 20
    assert found["images"] == [8, 8]
    assert found["width"] <= width
    assert found["colour"] in {"rgb(102, 97, 90)", "rgb(168, 161, 150)"}
