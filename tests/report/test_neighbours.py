"""Images beside the most similar ones."""

import base64
import io
import re

import numpy as np
from PIL import Image

from sfumato.report import png
from sfumato.report.plots.drawing import render


def image(value, side=8, channels=1):
    return np.full((side, side, channels), value, dtype=np.uint8)


def neighbours(rows):
    return render("neighbours.html.jinja", embedding={"neighbours": rows})


def row(name="a <b>", side=8, channels=1):
    found = [
        {"png": png(image(2, side, channels)), "name": name, "similarity": 0.98765},
        {"png": png(image(3, side, channels)), "name": "c & d", "similarity": 0.9},
    ]
    return {"png": png(image(1, side, channels)), "name": name, "found": found}


def test_each_line_holds_the_image_and_what_was_found_in_their_order():
    html = neighbours([row(channels=3), row("e")])
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))).flat[0]
        for text in re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    ]
    assert shown == [1, 2, 3, 1, 2, 3]
    assert html.count('class="samples neighbours"') == 2


def test_names_are_escaped_and_classes_told_by_words_and_not_by_colour_alone():
    html = neighbours([row()])
    assert "a &lt;b&gt;" in html
    assert "<b>a <b>" not in html
    assert "✗ c &amp; d" in html
    assert (html.count("✓ same"), html.count('class="right"'), html.count('class="wrong"')) == (1, 1, 1)
    assert "similarity 0.988" in html
    assert 'alt="Similar image of class c &amp; d"' in html


def test_small_images_keep_their_pixels_and_nothing_is_fetched_or_run():
    assert neighbours([row(side=64)]).count("class=small") == 3
    assert "class=small" not in neighbours([row(side=65)])
    assert "http" not in neighbours([row()])
    assert "<script" not in neighbours([row()])
    assert neighbours([]) == ""
