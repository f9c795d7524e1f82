"""Next-word prediction from the command line, from a table of people's texts to a statement that holds."""

import json
import shlex

import pytest

QUICK = "--model lstm,embedding=4,hidden=6 --threads 1 --device cpu"
USERS = "--unit user --batch-size 6 --participation fixed-order --mechanism tree --noise-multiplier 1"
WORDS = ("the", "cat", "dog", "sees", "a")


@pytest.fixture
def table(workplace):
    rows = [f"the {'cat' if n % 3 else 'zebra'} sees a dog {n % 7},p{n // 2 % 20}" for n in range(80)]
    (workplace / "t.csv").write_text("\n".join(["said,person", *rows]) + "\n")
    (workplace / "words.txt").write_text("\n".join(WORDS))
    return "csv:t.csv --task next-word --text-column said --user-column person --words words.txt --length 8"


def test_from_a_table_to_a_statement(call, table, workplace):
    shown = call(f"train {table} {QUICK} {USERS} --steps 6 --keep 4 --learning-rate 0.5 --output run")
    assert "test accuracy" in shown
    assert "for each single person" in shown
    assert "The statement follows from the record" in call("verify run")
    found = json.loads(call("evaluate run csv:t.csv --text-column said --user-column person --json"))
    stored = json.loads((workplace / "run" / "evaluation.json").read_text())
    assert found["accuracy"] == pytest.approx(stored["accuracy"])
    assert found["users"] == stored["users"] < found["texts"]
    shown = call("evaluate run csv:t.csv --text-column said --user-column person --part all")
    assert all(f"\n{name} " in shown for name in ("accuracy of all", "majority", "perplexity"))
    row = json.loads(call('predict run "the cat" --top 2 --interval 0.9 --json'))["predictions"][0]
    assert row["label"] in ("<pad>", "<unk>", *WORDS, "<s>", "</s>")
    assert len(row["scores"]) == 2
    assert row["logit_low"] < row["logit_high"]
    call("aggregate run --method opa --last 3")
    assert "accuracy of all" in call(
        "evaluate run/aggregate-opa.safetensors csv:t.csv --text-column said --user-column person"
    )
    assert "zebra" not in call("report run --public")
    assert "for which there is no format" in call("export run --to torch-export", status=1)


def test_an_unfinished_run_goes_on(call, table, workplace, monkeypatch):
    from sfumato.training.steps import PrivateTrainingSteps

    begun = shlex.split(f"train {table} {QUICK} {USERS} --steps 6 --seed 1 --keep 0")
    call(shlex.join([*begun, "--output", "whole"]))
    take = PrivateTrainingSteps.__call__

    def cut(self, step, state):
        if step == 4:
            raise KeyboardInterrupt
        return take(self, step, state)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateTrainingSteps, "__call__", cut)
        call(shlex.join([*begun, "--output", "cut"]), status=130)
    call("train cut")
    cut_model, whole = ((workplace / name / "model.safetensors").read_bytes() for name in ("cut", "whole"))
    assert cut_model == whole
    call("verify cut")


@pytest.mark.parametrize(
    ("command", "match"),
    [
        (
            "train csv:t.csv --task next-word --text-column said",
            "give --words, a file with one per line, such as the most",
        ),
        ("train {} --classes a b", "--classes is given, and task next-word predicts words instead of labels"),
        ("train {} --views 2", "views 2 is for images; texts have no views"),
        ("train {} --model bag", "model of next words must be one of lstm"),
        ("train {} --report-epsilon 1", "needs one class for each record"),
        ("train {} --loss sigmoid", "loss is sigmoid, but each record of the source has words to predict"),
        ("train digits --task next-word --words words.txt", "says something of texts"),
    ],
)
def test_what_is_refused(call, table, command, match):
    assert match in call(command.format(table), status=1)


def test_an_audit_of_its_steps_finds_no_fault(call, table):
    call(f"train {table} {QUICK} --batch-size 20 --steps 2 --noise-multiplier 2 --keep 0 --output run")
    assert json.loads(call("audit run --observations 60 --json"))["run"] == "run"
