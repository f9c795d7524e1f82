"""Documents for authorities: what stands in them, what they mark, and that their pages are plain."""

from __future__ import annotations

from dataclasses import replace

from sfumato import Gaussian, Poisson, PrivacyPlan, Statement
from sfumato.privacy import Circumstances, NoisyTable, reconstruction_rates
from sfumato.privacy.noisy_table import FINE
from sfumato.report import DocumentFacts, GroupScore
from sfumato.report.documents import BLANK
from sfumato.report.papers import GUESSES, anonymity, html_of, technical_documentation

PLAN = PrivacyPlan(
    population=1000,
    participation=Poisson(batch_size=100),
    mechanism=Gaussian(noise_multiplier=2.0),
    steps=50,
    delta=1e-5,
)
SAID = Statement(plan=PLAN, circumstances=Circumstances()).to_dict()
FACTS = DocumentFacts(
    title="Spots & <blots>",
    task="image-classification",
    model="linear",
    data="npz",
    classes=("a_b", "c"),
    inputs="images of 8 x 8 pixels, grey",
    statement=SAID,
    person_lines=["A person with 2 records: epsilon 9."],
)
EVIDENCE = {
    "heading": {},
    "reconstruction": reconstruction_rates(PLAN, GUESSES),
    "audits": (),
    "joint_costs": (),
    "public_test": False,
    "test_rate": None,
    "record": ["Model: SHA-256 `00`"],
}
FILLED = {
    "heading": {},
    "model": "00",
    "software": "torch 2",
    "computing": "device cpu",
    "settings": "model linear",
    "origins": (),
    "figures": {},
    "figures_of": "",
    "groups": (),
    "changes": (),
    "record": ["Model: SHA-256 `00`"],
}


def test_evidence_has_the_bounds_and_marks_what_a_record_cannot_know():
    text = anonymity(FACTS, **EVIDENCE)
    for words in (
        SAID["sentence"],
        *SAID["not_covered"],
        *FACTS.person_lines,
        r"# Anonymity of the model: Spots & \<blots\>",
    ):
        assert words in text
    for false, true in SAID["true_positives"].items():
        assert f"| {float(false):.1%} | at most {true:.2%} |" in text
    bounds = text.partition("## 5. ")[2].partition("## 6. ")[0]
    for guess, found in zip(GUESSES, EVIDENCE["reconstruction"], strict=True):
        (line,) = (line for line in bounds.splitlines() if line.startswith(f"| {100 * guess:g}% |"))
        shown = float(line.split("at most ")[1].split("%")[0]) / 100
        assert found <= shown * (1 + 1e-9)
        assert shown <= 1.01 * found
    for element in ("exfiltration", "regurgitation of training data", "model inversion", "reconstruction"):
        assert f"| {element} |" in text
    assert "No audit was run on this model" in text
    assert "Conclusion of the controller: **TO BE FILLED IN**" in text
    assert text.count(BLANK) == 20


def test_evidence_is_of_the_run_at_hand():
    heading = {"owner": "Ward 3", "purpose": "a trial"}
    more = {"audits": [["Of 100 canaries, 20 were guessed in."]], "joint_costs": ["Two runs."], "heading": heading}
    text = anonymity(FACTS, **EVIDENCE | more)
    for words in ("- Of 100 canaries, 20 were guessed in.", "- Two runs.", "audits: 1", "Controller: Ward 3"):
        assert words in text
    assert text.count(BLANK) == 18
    assert "No audit was run" not in text
    table = NoisyTable(epsilon=0.5, classes=2, predictions=True, edges=FINE, temperature=False)
    published = Statement(plan=PLAN, circumstances=Circumstances(figures=table)).to_dict()
    text = anonymity(replace(FACTS, statement=published), **EVIDENCE | {"test_rate": 0.0165})
    assert "cost each of them epsilon 0.5 (delta 0)" in text
    assert "at most 1.65% of the cases at 1% false alarms" in text
    own = Statement(plan=PLAN, circumstances=Circumstances(own_loop=True)).to_dict()
    assert "What it did with other records" in anonymity(replace(FACTS, statement=own), **EVIDENCE)


def test_annex_iv_is_filled_in_as_far_as_a_run_can_and_marked_elsewhere():
    text = technical_documentation(FACTS, **FILLED)
    for number in range(1, 10):
        assert f"\n## {number}. " in text
    for words in (
        SAID["sentence"],
        "torch 2",
        "device cpu",
        "model linear",
        "the model with SHA-256 `00`",
        "none on record",
    ):
        assert words in text
    assert "Accuracy: not published." in text
    assert text.count(BLANK) == 28
    heading = {"owner": "Ward 3", "purpose": "a trial", "date": "2026-03-01", "about_data": "X-rays of 2019"}
    filled = technical_documentation(FACTS, **FILLED | {"heading": heading})
    assert filled.count(BLANK) == 24
    group = GroupScore(
        name="men",
        records=(11, 11, 11),
        accuracy=(0.9, 0.6, 0.98),
        auc=(0.9, 0.8, 1.0),
        calibration_error=(0.1, 0.0, 0.2),
    )
    measured = {"figures": {"accuracy": (0.91, 0.88, 0.94)}, "figures_of": "on public data", "groups": [group]}
    text = technical_documentation(FACTS, **FILLED | measured)
    assert "with 95% intervals, on public data:" in text
    assert "- accuracy: 91.0% (88.0% to 94.0%)" in text
    assert "- men (about 11 records): accuracy 90.0% (60.0% to 98.0%)" in text
    assert "“men”, is too small to say anything" in text
    assert text.count(BLANK) == 27


def test_a_page_has_the_document_s_tables_and_no_html_of_its_own():
    page = html_of(anonymity(FACTS, **EVIDENCE))
    assert "<title>Anonymity of the model: Spots &amp; &lt;blots&gt; · sfumato report</title>" in page
    assert page.count("<table") == page.count('<table class="listing">') == 4
    assert "<strong>TO BE FILLED IN</strong>" in page
    assert "|---" not in page
    assert "| --- |" not in page
    assert "<script>" not in html_of("# A title\n\n<script>alert(1)</script>\n")
