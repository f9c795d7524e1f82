"""Rows of recipes: one is chosen by its label, over what all rows share, and its epsilon is never exceeded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sfumato._checks import SfumatoError
from sfumato.cli import main
from sfumato.cli.options import recipe
from sfumato.data import open_source
from sfumato.randomness import owner_key

KNOWN = {"source", "model", "epsilon", "noise_multiplier", "batch_size", "steps", "views", "threads", "device"}
ROWS = """
source = "digits"
model = "linear"
views = 1
batch-size = 64
threads = 1
device = "cpu"

[[row]]
epsilon = 1
noise-multiplier = 8.0
steps = 3
about = { accuracy = "some" }

[[row]]
epsilon = 2.5
noise_multiplier = 4.0
steps = 2
batch-size = 32
[row.about]
note = "either form will do"
"""


@pytest.fixture
def rows() -> str:
    Path("rows.toml").write_text(ROWS)
    return "rows.toml"


def read(what: str, **given: Any) -> dict[str, Any]:
    return recipe.read(what, given, KNOWN)


def test_a_row_s_options_go_over_those_of_all_rows(rows: str):
    shared = {"source": "digits", "model": "linear", "views": 1, "threads": 1, "device": "cpu"}
    first = {"epsilon": 1, "noise_multiplier": 8.0, "steps": 3, "batch_size": 64}
    second = {"epsilon": 2.5, "noise_multiplier": 4.0, "steps": 2, "batch_size": 32}
    assert read(rows, epsilon=1.0, steps=99) == shared | first
    assert read(rows, epsilon=2.5) == shared | second
    assert read(rows, epsilon=(2.5, 1.0)) == shared | {"batch_size": 64}
    assert recipe.row_option(rows) == "epsilon"
    for wrong in (None, 2.0, (1.0, 2.0)):
        with pytest.raises(SfumatoError, match=r"rows by --epsilon, but none.*; give --epsilon 1 or 2\.5$"):
            read(rows, epsilon=wrong)


def test_any_option_may_be_the_label_and_a_single_row_is_taken():
    Path("one.toml").write_text('source = "digits"\nepsilon = [1, 2]\n[[row]]\nbatch-size = 1048576\n')
    assert read("one.toml", epsilon=3.0) == {"source": "digits", "epsilon": (1, 2), "batch_size": 1048576}
    with pytest.raises(SfumatoError, match=r"none for 4096; give --batch-size 1048576$"):
        read("one.toml", batch_size=4096)


@pytest.mark.parametrize(
    "wrong",
    [
        "row = 3",
        "[[row]]",
        "[[row]]\nepsilon = 1\n[[row]]\nepsilon = 1.0",
        "[[row]]\nepsilon = 1\n[[row]]\nsteps = 2\nepsilon = 2",
    ],
)
def test_rows_without_labels_are_refused(wrong: str):
    Path("wrong.toml").write_text(f'source = "digits"\n{wrong}\n')
    with pytest.raises(SfumatoError, match="must all begin with the same option"):
        read("wrong.toml", epsilon=1.0)


def test_options_and_tables_that_no_row_can_have_are_refused(rows: str):
    for odd in ("stepz = 3", "sweep = { steps = [1] }"):
        Path(rows).write_text(ROWS.replace("steps = 3", odd))
        with pytest.raises(SfumatoError, match=f"unknown options: {odd.split()[0]}"):
            read(rows, epsilon=1)


def test_a_misspelt_option_is_told_what_was_probably_meant():
    Path("wrong.toml").write_text('source = "digits"\nlearnin-rate = 0.5\n')
    with pytest.raises(SfumatoError, match="unknown options: learnin_rate; did you mean learning_rate"):
        recipe.read("wrong.toml", {}, {*KNOWN, "learning_rate"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 100_000, r"is not valid TOML \(nested too deeply\); correct"),
        ("steps = " + "9" * 50_000, r"is not valid TOML \(Exceeds the limit \(4300 digits\).*; correct"),
        ('source = "digits"\nepsilon = ' + "9" * 3_000, r"--epsilon must be a finite number, got 9+\.\.\.; "),
        ('"\\u001b[2J\\nsteps" = 3', r"unknown options: \\x1b\[2J steps; "),
    ],
    ids=["deep", "long", "large", "escape"],
)
def test_a_hostile_recipe_is_refused_in_one_line(text: str, words: str, capsys):
    Path("r.toml").write_text(text)
    assert main(["train", "r.toml", "--output", "r"]) == 1
    said = capsys.readouterr().err
    assert re.search(words, said), said
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert len(said) < 400


def test_a_row_is_planned_as_it_stands_and_says_what_its_noise_comes_to(rows: str, capsys):
    assert main(["train", rows, "--epsilon", "1", "--dry-run", "--json"]) == 0
    printed = capsys.readouterr()
    plan = json.loads(printed.out)["plan"]
    assert [plan[name] for name in ("noise_multiplier", "steps", "batch_size")] == [8.0, 3, 64]
    assert 0 < plan["epsilon"] < 1
    assert re.search(r"^note: noise multiplier 8 gives epsilon 0\.\d{3}, within 1$", printed.err, re.MULTILINE)


def test_its_epsilon_is_a_bound_whatever_else_is_changed(rows: str, call):
    """The noise of a row meets its epsilon for its own steps, batch size and data alone."""
    for change in ("--steps 4000", "--batch-size 1400 --steps 40", "--noise-multiplier 0.5"):
        told = call(f"train {rows} --epsilon 1 {change} --output a", status=1)
        assert "above epsilon 1; give more noise, fewer steps or a smaller batch" in told
        assert not Path("a").exists()


def test_each_of_several_budgets_has_its_own_row(rows: str, call):
    found = json.loads(call(f"train {rows} --epsilon 2.5,1 --output b --json"))
    assert found["budgets"] == [1, 2.5]
    assert [(row["noise_multiplier"], row["steps"], row["batch_size"]) for row in found["rows"]] == [
        (8.0, 3, 64),
        (4.0, 2, 32),
    ]
    assert all(row["epsilon"] < budget for row, budget in zip(found["rows"], found["budgets"], strict=True))
    assert "none for 2;" in call(f"train {rows} --epsilon 1,2 --output c", status=1)


def test_a_dry_run_of_several_budgets_answers_for_each_row(rows: str, call):
    private = f"train {rows} --private"
    told = json.loads(call(f"{private} --epsilon 2.5,1 --output b --dry-run --json"))
    assert told["budgets"] == [1, 2.5]
    assert [run["plan"]["noise_multiplier"] for run in told["rows"]] == [8.0, 4.0]
    assert [run["run"] for run in told["rows"]] == ["b/epsilon-1", "b/epsilon-2.5"]
    assert all(run["estimate"]["seconds"] > 0 for run in told["rows"])
    assert not Path("b").exists(), "nothing is begun"
    words = call(f"{private} --epsilon 2.5,1 --output b --dry-run")
    assert words.index("epsilon 1\n") < words.index("epsilon 2.5\n") < words.index("These would be 2 releases")
    assert "With your other known runs" not in words, "nothing was spent"
    found = json.loads(call(f"{private} --epsilon 2.5,1 --output b --json"))
    for name in ("epsilon_of_all", "delta", "adjacency", "epsilon_of_all_uses", "adjacency_of_all_uses"):
        assert found[name] == told[name], "as it is said afterwards"
    again = json.loads(call(f"{private} --epsilon 2.5,1 --output c --dry-run --json"))
    assert again["epsilon_of_all"] == told["epsilon_of_all"] < again["epsilon_of_all_uses"]
    stands = json.loads(call(f"{private} --epsilon 2.5,1 --output b --dry-run --json"))
    assert [run["would"] for run in stands["rows"]] == ["stand", "stand"]
    assert stands["epsilon_of_all_uses"] == told["epsilon_of_all"], "none is counted twice"


def test_a_search_of_a_row_ends_with_a_recipe_of_its_own(rows: str, call):
    Path(rows).write_text(ROWS.replace("[[row]]", "[sweep]\nlearning-rate = [0.1, 0.5]\n[[row]]", 1))
    call(f"sweep {rows} --epsilon 1 --output s")
    call("train s/best.toml --output best")
    assert json.loads(Path("best/plan.json").read_text())["noise_multiplier"] == 8.0


SIZED = """
source = "digits"
examples = 1438
batch-size = 719
steps = 2
noise-multiplier = 8.0
model = "linear"
threads = 1
device = "cpu"
"""


def test_a_source_of_another_size_is_refused_with_the_options_that_scale_the_recipe(call, spots_folder):
    Path("sized.toml").write_text(SIZED)
    spots = f"folder:{spots_folder}"
    held = len(open_source(spots, owner_key=owner_key()).train)
    told = call(f"train sized.toml --source {spots} --output run --dry-run", status=1)
    scaled = f"--examples {held} --batch-size {round(held / 2)}"
    assert told.splitlines()[-1] == (
        f"error: the recipe sized.toml is for 1438 examples, but the source has {held}; give {scaled}, the same share "
        "of them in each step"
    )
    call(f"train sized.toml --source {spots} --output run --dry-run {scaled}")
    call("train sized.toml --output run --dry-run")
    Path("sized.toml").write_text(SIZED.replace("batch-size = 719", "") + "[[row]]\nbatch-size = 40\n")
    told = call(f"train sized.toml --source {spots} --output run --dry-run --batch-size 40", status=1)
    assert told.splitlines()[-1].endswith(f"; give --examples {held}"), "the batch size selects the row"
