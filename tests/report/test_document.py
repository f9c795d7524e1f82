"""The model card and the assessment: what stands in them, and what must not."""

import json

from sfumato import PrivacyPlan, Statement
from sfumato.privacy import Circumstances, NoGuarantee, reconstruction_rates
from sfumato.report import DocumentFacts, assessment, model_card
from sfumato.report.document import BLANK, GUESSES, html_of

PLAN = PrivacyPlan.calibrate(examples=1000, batch_size=100, steps=50, noise_multiplier=2.0, delta=1e-5)
SAID = Statement(plan=PLAN, circumstances=Circumstances(kept=(40, 50))).to_dict()
OWNER = {
    "heading": {},
    "joint_costs": (),
    "kept_files": ("settings.json",),
    "reconstruction": reconstruction_rates(PLAN, GUESSES),
    "signed": False,
}


def facts(**parts) -> DocumentFacts:
    usual = {
        "title": "Spots & <blots>",
        "task": "image-classification",
        "model": "linear",
        "data": "npz",
        "classes": ("a_b", "c"),
        "inputs": "images of 8 x 8 pixels, grey",
        "statement": SAID,
    }
    return DocumentFacts(**(usual | parts))


def test_a_card_has_front_matter_and_says_the_promise_and_how_to_check_it():
    card = model_card(facts())
    _, front, body = card.split("---\n", 2)
    assert "library_name: sfumato" in front
    assert "- differential-privacy" in front
    assert "# license: to be chosen by whoever publishes this" in front
    assert "metrics" not in front
    for words in (SAID["sentence"], *SAID["not_covered"], "$ sfumato verify FOLDER", r"# Spots & \<blots\>", r"a\_b"):
        assert words in body
    assert "Not published: figures of private data are for the owner only." in body
    for false, true in SAID["true_positives"].items():
        assert f"| {float(false):.1%} | at most {true:.2%} |" in body


def test_a_card_says_how_to_use_the_model_and_nothing_of_a_gap_that_there_is_not():
    mu = {"mu": 0.7, "except_with": 0.0, "gap": 0.0}
    card = model_card(facts(statement=SAID | {"mu": mu}))
    assert "one Gaussian release of mu 0.7.\n" in card
    assert "overstates true positives by at most 0.01." in model_card(
        facts(statement=SAID | {"mu": mu | {"gap": 0.01}})
    )
    assert "`model.predict(images)`" in card


def test_a_card_of_a_model_without_a_promise_promises_nothing():
    card = model_card(facts(statement=NoGuarantee(published=True).to_dict()))
    assert "This model has no privacy guarantee" in card
    assert "differential-privacy" not in card.split("---")[1]
    assert "What an attacker can do" not in card


def test_an_assessment_says_what_a_record_can_and_marks_what_it_cannot():
    text = assessment(facts(), **OWNER)
    assert text.count(BLANK) == 15
    for words in (
        SAID["sentence"],
        *SAID["not_covered"],
        *SAID["released"],
        "`settings.json`",
        "none (`sfumato sign`)",
    ):
        assert words in text
    filled = assessment(facts(), **OWNER | {"heading": {"purpose": "a trial", "owner": "Ward 3", "date": "2026-03-01"}})
    assert filled.count(BLANK) == 12
    assert "Ward 3" in filled
    more = assessment(facts(person_lines=["Of two."]), **OWNER | {"joint_costs": ["Two runs."], "signed": True})
    for words in ("- Two runs.", "- Of two.", "`signature.json` says who vouches"):
        assert words in more


def test_an_assessment_of_dicom_files_names_data_concerning_health():
    text = assessment(facts(health=True), **OWNER)
    line = next(line for line in text.splitlines() if line.startswith("- Categories of personal data"))
    assert line.endswith(
        f": data concerning health (DICOM files, whose patient identifiers name the persons); others: {BLANK}"
    )
    assert "concerning health" not in assessment(facts(), **OWNER)


def test_an_assessment_bounds_reconstruction_by_figures_that_are_rounded_up():
    bounds = assessment(facts(), **OWNER).partition("## 8. ")[2].partition("## 9. ")[0]
    for guess, found in zip(GUESSES, OWNER["reconstruction"], strict=True):
        (line,) = (line for line in bounds.splitlines() if line.startswith(f"| {100 * guess:g}% |"))
        shown = float(line.split("at most ")[1].split("%")[0]) / 100
        assert found <= shown * (1 + 1e-9)
        assert shown <= 1.01 * found


def test_a_page_has_the_document_s_tables_and_no_html_of_its_own():
    page = html_of(assessment(facts(), **OWNER))
    assert "<title>Data protection impact assessment: Spots &amp; &lt;blots&gt; · sfumato report</title>" in page
    assert page.count("<table") == page.count('<table class="listing">') == 4
    assert "<strong>TO BE FILLED IN</strong>" in page
    assert "|---" not in page
    assert "| --- |" not in page
    assert "<script>" not in html_of("# A title\n\n<script>alert(1)</script>\n")


def test_the_card_of_a_run_by_a_seed_promises_nothing():
    seeded = Statement(plan=PLAN, circumstances=Circumstances(seeded=True)).to_dict()
    card = model_card(facts(statement=json.loads(json.dumps(seeded))))
    assert seeded["sentence"] in card
    assert "so its weights have no privacy guarantee" in card
    assert "What an attacker can do" not in card
    assert "differential-privacy" not in card
