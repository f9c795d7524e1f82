"""The one renderer: plain data as JSON, or what is declared to be shown of them; and what is said meanwhile."""

import json
import time

import pytest

from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note, Table
from sfumato.observers import progress

DATA = {"accuracy": 0.5, "top5": None, "epsilon": 2.99961, "epsilon_rdp": 3.1, "steps": 2000, "kept": [], "run": "a"}
ROWS = [{"noise": 1.5, "run": "runs/a"}, {"noise": None, "run": "b"}]


@pytest.mark.parametrize(
    ("parts", "out", "err"),
    [
        (("a line {as it is}", None, ""), "a line {as it is}\n\n", ""),
        ((Note("note: for the reader"),), "", "note: for the reader\n"),
        (
            (Facts(DATA),),
            "accuracy        0.5\nepsilon         3.000\nepsilon by RDP  3.100\n"
            "steps           2000\nrun             a\n",
            "",
        ),
        (
            (
                Facts(
                    {
                        "each": {"a_b": 0.25, "c": None},
                        "curve": [[0, 0]] * 40,
                        "of": [{"name": "x", "auc": [0.5, 0.4, 0.6]}],
                    }
                ),
            ),
            "each\n  a_b  0.25\nof\n  x    auc 0.5000 (0.4000 to 0.6000)\n",
            "",
        ),
        ((Facts([("{a_b}", "words")]),), "{a_b}  words\n", ""),
        ((Table(ROWS, {"noise": "{noise:.2f}", "run": "{run}"}),), "noise  run\n 1.50  runs/a\n       b\n", ""),
        ((Table(ROWS, [("run", "{run}"), ("", "{noise}")], texts=1),), "run\nruns/a  1.5\nb\n", ""),
    ],
)
def test_each_part_is_shown_in_its_own_way(parts, out, err, capsys):
    console.show(DATA, *parts, json=False)
    assert capsys.readouterr() == (out, err)


def test_json_holds_the_data_and_nothing_else_is_said(capsys):
    console.show(DATA, "a line", Note("a note"), json=True)
    printed = capsys.readouterr()
    assert (json.loads(printed.out), printed.err) == (DATA, "")


def test_off_a_terminal_a_line_says_what_takes_long_and_nothing_what_does_not(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.05)
    with console.bar("calibrating"):
        time.sleep(0.5)
    with console.bar("comparing"):
        pass
    time.sleep(0.2)
    assert capsys.readouterr().err == "calibrating ...\n"
