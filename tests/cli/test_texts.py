"""Texts from the command line."""

import io
import json

import pytest

QUICK = "--steps 3 --batch-size 20 --noise-multiplier 4 --threads 1 --device cpu"
WORDS = {"sport": "ball goal match", "money": "bank market price"}


@pytest.fixture
def table(workplace):
    rows = [f'"{WORDS[label]} {number}",{label}' for number in range(40) for label in WORDS]
    (workplace / "t.csv").write_text("\n".join(["title,label", *rows]) + "\n")
    return "csv:t.csv --text-column title --length 6 --vocabulary 50"


def test_train_predict_evaluate_report(call, table, monkeypatch):
    surely = "--steps 20 --batch-size 40 --noise-multiplier 0.5 --threads 1 --device cpu"
    call(f"train {table} {surely} --learning-rate 1 --output run")
    assert "no class of the model" in call("evaluate run digits", status=1)
    one = call('predict run "a goal in the match" "price of a bank" --top 1')
    assert one.splitlines()[0].startswith("a goal in the match  sport")
    monkeypatch.setattr("sys.stdin", io.StringIO("first goal\n\nbank\n"))
    told = json.loads(call("predict run - --json"))
    assert [row["text"] for row in told["predictions"]] == ["first goal", "bank"]
    assert "part                test" in call("evaluate run csv:t.csv --text-column title")
    assert "goal" not in call("report run --public")
    call("verify run")


def test_a_search_holds_texts_out(call, table):
    found = call(f"sweep {table} {QUICK} --vary learning-rate=0.5,1 --search uncovered --output s --json")
    assert len(json.loads(found)["rows"]) == 2


@pytest.mark.parametrize(
    ("command", "match"),
    [
        ("train {} --views 2", "views 2 is for images; texts have no views"),
        ("train {} --model cnn", "model of texts must be one of bag, bilstm"),
        ("dedup csv:t.csv csv:t.csv", "no column 'path'"),
        ("embed csv:texts.csv --epsilon 8", "for embeddings, says something of images"),
    ],
)
def test_what_is_refused(call, table, workplace, command, match):
    (workplace / "texts.csv").write_text((workplace / "t.csv").read_text().replace("title", "text"))
    assert match in call(command.format(table), status=1)
