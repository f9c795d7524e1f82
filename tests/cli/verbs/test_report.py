"""The page from the command line: what is written over it, what all runs cost, and what nobody else may see."""

import hashlib
import html
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def table(workplace) -> str:
    """A private table of two classes of 8 x 8 images."""
    generator = np.random.default_rng(0)
    labels = np.arange(240) % 2
    images = (generator.integers(0, 60, (240, 8, 8)) + 150 * labels[:, None, None]).astype(np.uint8)
    np.savez("spots.npz", x_train=images[:180], y_train=labels[:180], x_test=images[180:], y_test=labels[180:])
    return "npz:spots.npz"


def text(path: str) -> str:
    return html.unescape(Path(path).read_text("utf-8"))


def test_a_title_is_on_every_page_and_the_owner_on_the_own_one_alone(call, table, quick):
    call(f"train {table} {quick} --output run --title 'Spots & blots'")
    assert "<h1>Spots & blots</h1>" in text("run/report.html")
    call("report run --owner 'Ward 3' --date 2026-03-01 --purpose 'a trial'")
    own = text("run/report.html")
    call("report run --public")
    public = text("run/report-public.html")
    for words in ("Ward 3", "2026-03-01", "a trial"):
        assert words in own
        assert words not in public
    assert "<h1>Spots & blots</h1>" in own
    assert "<h1>Spots & blots</h1>" in public
    call("report run --title Dots")
    assert "<h1>Dots</h1>" in text("run/report.html")
    assert "Ward 3" in text("run/report.html"), "what was not given stays"
    call("verify run")


def test_the_owner_s_page_of_a_second_run_says_what_the_terminal_said(call, table, quick):
    call(f"train {table} {quick} --output one")
    printed = call(f"train {table} {quick} --output two")
    (told,) = (line for line in printed.splitlines() if line.startswith("At least 2 runs"))
    assert told in text("two/report.html")
    assert "At least" not in text("one/report.html")
    call("report one")
    assert told in text("one/report.html"), "written again, the first run's page counts the second"
    call("report two --public")
    assert "At least" not in text("two/report-public.html")
    assert "runs of yours" not in text("two/report-public.html")


def test_the_page_says_so_where_the_list_of_runs_cannot_be_read(call, table, quick):
    call(f"train {table} {quick} --output one")
    Path(os.environ["SFUMATO_HOME"], "uses.jsonl").write_text("{}\n{}\n")
    call("report one")
    assert "What your runs on these data cost together is not known: line 1" in text("one/report.html")


def test_what_is_given_with_public_is_published_as_it_was_then(call, table, quick):
    call(f"train {table} {quick} --output run")
    call("report run --purpose 'a secret trial' --owner 'Ward 3'")
    call("report run --public --owner Hospital --contact dpo@example.org --about-data 'X-rays of 2019'")
    public = text("run/report-public.html")
    for words in ("Hospital", "dpo@example.org", "X-rays of 2019", "about data"):
        assert words in public
    for words in ("a secret trial", "Ward 3", "--examples", "→", "--unit user", "you can change"):
        assert words not in public
    assert "→ declare them" in text("run/report.html")
    assert "a secret trial" in text("run/report.html")
    call("report run --contact 'room 7'")
    call("report run --public")
    assert "room 7" not in text("run/report-public.html"), "written again for the owner's page, it is published no more"
    assert "Hospital" in text("run/report-public.html")
    assert "title must be one line" in call("report run --title ' '", status=1)


def test_papers_are_titled_by_the_name_of_the_data_and_show_no_path(call, workplace, table, quick):
    Path("secret ward").mkdir()
    Path("spots.npz").rename("secret ward/moles.npz")
    call(f"train 'npz:secret ward/moles.npz' {quick} --output run")
    for options, name in (("--public", "report-public.html"), ("--model-card", "README.md"), ("--dpia", "dpia.md")):
        call(f"report run {options}")
        assert "moles, linear" in text(f"run/{name}")
        assert "secret" not in text(f"run/{name}")
    assert "- Trained on: moles\n" in text("run/README.md")
    assert "- Source: moles; each record: images of 8 x 8 pixels, grey" in text("run/dpia.md")


def test_a_public_page_says_which_model_it_is_of_and_what_a_person_has(call, table, quick):
    call(f"train {table} {quick} --output run")
    digits = hashlib.sha256(Path("run/model.safetensors").read_bytes()).hexdigest()
    call("report run --public")
    public = text("run/report-public.html")
    assert digits in public
    assert digits in text("run/report.html")
    assert "A person with several images" in public
    assert "A person with several images" in text("run/report.html")
    call("report run --dpia")
    assert "- A person with 2 records: epsilon" in text("run/dpia.md")


def test_a_public_page_has_the_total_where_its_owner_asks_for_it(call, table, quick):
    for name in ("one", "two"):
        call(f"train {table} {quick} --output {name}")
    call("report one --public --total")
    assert "At least 2 runs of the owner's have used these data" in text("one/report-public.html")
    call("report one --public")
    assert "At least" not in text("one/report-public.html")
    assert "--total is for --public" in call("report one --total", status=1)


def test_an_assessment_says_when_a_budget_was_raised(call, table, quick):
    call("budget spots --epsilon 30 --delta 1e-5")
    call(f"train {table} {quick} --output run --budget spots")
    call("budget spots --epsilon 40")
    call("report run --dpia")
    assert re.search(r"Its total was changed from epsilon 30 to 40 on \d{4}-\d\d-\d\d; ", text("run/dpia.md"))


def test_a_model_card_has_no_figure_of_private_data_and_an_assessment_is_the_owner_s(call, table, quick):
    call(f"train {table} {quick} --output run --report-epsilon 4")
    assert "--model-card and --dpia are both given" in call("report run --model-card --dpia", status=1)
    call("report run --dpia --purpose 'a trial' --title Dots")
    own = text("run/dpia.md")
    assert "- Purpose of the processing: a trial" in own
    assert "a trial" in text("run/dpia.html")
    for ending in ("md", "html"):
        assert os.stat(f"run/dpia.{ending}").st_mode & 0o777 == 0o600
    call("report run --model-card")
    card = text("run/README.md")
    assert "# Dots" in card
    assert "a trial" not in card
    assert "from noisy counts, epsilon 4" in card
    assert "- A person with 5 records: epsilon " in card
    call("report run --public --contact dpo@example.org")
    call("report run --model-card")
    assert "- Contact: dpo@example.org" in text("run/README.md"), "what was published stands on the card too"
    assert "a trial" not in text("run/README.md")
    assert "The guarantee has no end date" in text("run/report-public.html")
    measured = json.loads(Path("run/evaluation.json").read_text())
    Path("run/evaluation.json").write_text(json.dumps({**measured, "accuracy": 0.12345}))
    call("report run --model-card")
    assert "0.123" not in text("run/README.md")
    call("verify run")


def test_a_loop_of_the_owner_s_has_papers_too(call, workplace):
    import torch

    import sfumato

    torch.manual_seed(0)
    inputs = torch.randn(200, 8)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (inputs, (inputs.sum(1) > 0).long())
    for _ in sfumato.private_steps(model, optimizer, data, epsilon=3.0, batch_size=50, steps=2, directory="own"):
        pass
    for option in ("--dpia", "--model-card"):
        call(f"report own {option}")
    assert "Linear, trained with private" in text("own/dpia.md")


def test_nothing_is_assessed_of_a_run_without_private_data(call, workplace):
    call("pretrain digits --steps 2 --batch-size 32 --learning-rate 0.1 --threads 1 --output run")
    call("report run --model-card")
    assert "on public data" in text("run/README.md")
    assert "leave out --dpia" in call("report run --dpia", status=1)
