import base64
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from sfumato.report import Evaluation, page

PRIVATE = "Private: not covered by the guarantee"


def section(text: str, part: str) -> str:
    """The section of this id; empty where the page has none."""
    found = re.search(f'<section[^>]*id="{part}".*?</section>', text, flags=re.DOTALL)
    return found[0] if found else ""


class Resources(HTMLParser):
    """Collects whatever a browser would fetch or run."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "srcset", "action", "poster", "data"} or name.startswith("on"):
                self.found.append((tag, name, value or ""))


def test_the_summary_comes_first_and_the_parts_follow_in_their_order(facts):
    text = page(facts(owner={"owner": "Ward 3"}, joint_costs=["Both come to 4.464."]))
    order = [
        "<h1>folder, cnn</h1>",
        "81.2%",
        "95% interval",
        "<dt>epsilon</dt>",
        "What an attacker can find out at most",
        "at most 0.89% of the cases at one false alarm in a thousand",
        "Ward 3",
        "Both come to 4.464.",
        "It is a promise.",
        "It holds for each example.",
        "What is not covered",
        "Earlier runs on the same data.",
        "This model is (3.000, 1e-05)-differentially private",
        "How well it learned",
        "epsilon spent",
        "Class by class",
        "What is taken for what",
        "Some test images",
        "12,345",
        '<th scope="row">learning rate</th><td>0.5</td>',
        "2.11.0",
        "sfumato verify RUN",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert text.startswith("<!DOCTYPE html>")
    assert '<html lang="en">' in text


def test_the_worst_class_is_named_with_what_is_known_of_it(facts):
    text = page(facts())
    assert "The worst class is “newt”: 25.0% of its 16 test images were classified correctly, against 81.2%" in text
    assert "Private training can be unfair to small groups" in text
    first_bar = text[text.index("<tr class=worst>") :]
    assert first_bar.index("newt") < first_bar.index("otter") < first_bar.index("heron")


def test_epsilon_is_never_printed_below_what_was_spent(facts):
    text = page(facts())
    assert "<dt>epsilon</dt><dd>3.000</dd>" in text
    assert "2.999" not in text


def test_every_private_part_is_marked(facts):
    text = page(facts())
    for part in ("summary", "training", "classes", "confusion", "images"):
        assert PRIVATE in section(text, part), part
    for part in ("promise", "record", "check"):
        assert PRIVATE not in section(text, part), part


def test_the_owner_s_part_is_private_and_never_on_a_public_page(facts):
    written = {"owner": "Ward 3", "date": "2026-03-01", "purpose": "a trial"}
    told = facts(owner=written, joint_costs=["Both come to 4.464."], public_test=True)
    own = section(page(told), "owner")
    for words in (*written.values(), "Both come to 4.464.", "left out of the public version"):
        assert words in own
    assert page(told, public=True) == page(facts(public_test=True), public=True)
    assert page(facts(owner=written, joint_costs=["Both"]), public=True) == page(facts(), public=True)
    assert 'id="owner"' not in page(facts())


def test_accuracy_stands_beside_its_interval_chance_and_the_most_frequent_class(facts):
    text = page(facts())
    for part in ("summary", "training"):
        assert all(figure in section(text, part) for figure in ("71.3% to 88.3%", "33.3%", "41.2%")), part
    for part in ("owner", "promise", "record", "check"):
        assert not any(figure in section(text, part) for figure in ("71.3%", "33.3%", "41.2%")), part
    public = page(facts(), public=True)
    assert not any(
        figure in public for figure in ("81.2%", "71.3%", "88.3%", "33.3%", "41.2%", "by chance", "majority")
    )


def test_the_attacker_s_curve_is_on_every_page_since_it_follows_from_the_plan(facts):
    for text in (page(facts()), page(facts(), public=True)):
        assert facts().attack.description in text
        assert 'aria-label="Line: detections against false alarms' in section(text, "summary")
    assert "What an attacker" not in page(facts(attack=None))


def by_a_seed(facts) -> dict[str, Any]:
    """The statement of a run that promises nothing, with its plan's figures."""
    statement = facts().statement
    planned = {name: statement[name] for name in ("epsilon", "delta")}
    said = {"plain": ["It is an experiment.", "Runs share their noise."], "circumstances": {"seeded": True}}
    return {**statement, **said, "promises": False, "epsilon": None, "delta": None, "planned": planned}


@pytest.mark.parametrize(("epsilon", "word"), [(1.0, "strong"), (1.01, "reasonable"), (11, "weak")])
def test_epsilon_is_put_in_a_word_but_never_for_a_seeded_run(facts, epsilon, word):
    statement = {**facts().statement, "epsilon": epsilon}
    assert f"is called {word}" in page(facts(statement=statement))
    assert "is called" not in page(facts(statement=by_a_seed(facts), attack=None))


def test_the_public_page_depends_on_nothing_that_was_measured_on_private_data(facts, evaluation):
    text = page(facts(), public=True)
    assert "Left out of this version" in text
    for trace in ("heron", "otter", "newt", "81.2%", "0.617", "data:image", "<img", PRIVATE, "Accuracy on the"):
        assert trace not in text, trace
    for png, *_ in evaluation.samples:
        assert base64.b64encode(png).decode()[40:60] not in text
    other = Evaluation(accuracy=0.1, loss=9.9, classes=["x"], confusion=[[1]])
    assert text == page(facts(evaluation=other, metrics=[{"step": 1, "accuracy": 0.3}]), public=True)
    assert text == page(facts(evaluation=None, metrics=[]), public=True)


def test_figures_on_public_test_data_stay_and_are_labelled(facts):
    text = page(facts(public_test=True), public=True)
    assert "Measured on public data" in text
    assert PRIVATE not in text
    assert "Left out" not in text
    assert "newt" in text
    assert text.count("<img ") == 2


@pytest.mark.parametrize("public", [False, True])
def test_nothing_is_fetched_and_nothing_runs(facts, public):
    text = page(facts(), public=public)
    resources = Resources(text)
    assert not resources.tags & {"script", "link", "iframe", "object", "embed", "form", "base"}
    for tag, name, value in resources.found:
        assert value.startswith(("data:image/png;base64,", "#")), (tag, name, value[:80])
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\"" in text


def test_hostile_names_stay_text(facts):
    attack = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}'
    hostile = Evaluation(
        accuracy=0.5,
        loss=1.0,
        classes=[attack, "$\\frac{"],
        confusion=[[1, 2], [0, 3]],
        samples=[(b"\x89PNG\r\n\x1a\n" + b"\x00" * 20, attack, attack, 0.5)],
    )
    statement = {**facts().statement, "plain": [attack], "sentence": attack}
    text = page(facts(title=attack, evaluation=hostile, statement=statement, settings={attack: attack}))
    resources = Resources(text)
    assert "script" not in resources.tags
    assert all(not name.startswith("on") for _, name, _ in resources.found)
    assert "&lt;script&gt;" in text
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", text)[0]


def test_a_seeded_run_is_warned_of_before_anything_is_promised(facts):
    text = page(facts(statement=by_a_seed(facts), attack=None))
    assert (
        text.index("Warning: made from a seed, no guarantee")
        < text.index("81.2%")
        < text.index("The guarantee, and who")
    )
    assert "It is an experiment. Its plan, run under a secret key, would be (3.000, 1e-05)-differentially" in text
    assert '<p class="lead">' not in text
    assert "<dt>epsilon</dt><dd>none</dd>" in section(text, "promise")
    assert "How to check" in text
    assert "Warning" not in page(facts())


def test_a_run_that_ended_early_says_so(facts):
    statement = {**facts().statement, "steps_taken": 1200, "steps_planned": 3000}
    assert "The run ended after 1,200 of 3,000 steps." in page(facts(statement=statement))
    assert "The run ended" not in page(facts())


def test_an_unfinished_run_has_a_page(facts):
    text = page(facts(metrics=[], evaluation=None))
    assert "Nothing was measured yet" in text
    assert PRIVATE not in text
    assert "sfumato verify RUN" in text


def test_a_thousand_classes_stay_readable_and_small(facts):
    classes = 1000
    confusion = [[0] * classes for _ in range(classes)]
    for index, row in enumerate(confusion):
        row[index] = 20 + index % 30
        row[(index * 7 + 3) % classes] += 50 - (20 + index % 30)
    many = Evaluation(accuracy=0.7, loss=1.2, classes=[f"class {i}" for i in range(classes)], confusion=confusion)
    text = page(facts(evaluation=many))
    assert len(text.encode()) < 150_000
    assert "The most frequent confusions" in text
    assert "The other 980 classes did better or as well" in text
    assert '<table class="matrix' not in text
