"""The parser of a verb: what its help lists, what it reads, and one line for what it cannot read."""

import re
from dataclasses import fields

import pytest

from sfumato.cli import main, parser
from sfumato.cli.parser import COMMON
from sfumato.cli.registry import VERBS, load
from sfumato.cli.verbs.train import Train

MOST = 45
"""Lines of help that fit on a screen."""
NEEDED = ["--epsilon", "--delta", "--examples", "--unit", "--model", "--pretrained", "--output", "--dry-run", "--json"]


def options(verb: str) -> dict[str, parser.Option]:
    """The options and arguments of a verb by their names."""
    positional, groups = parser.page_of(load(verb))
    return {one.name: one for listed in (positional, *groups.values()) for one in listed}


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_shown_once_and_says_what_it_is_for(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([verb, "--help-all"]) == 0
    printed = capsys.readouterr().out
    listed = options(verb)
    assert sorted(listed) == sorted(field.name for field in fields(load(verb)))
    assert all(one.purpose for one in listed.values())
    for one in listed.values():
        usage = one.metavar if one.positional else f"{one.flag} {one.metavar}".rstrip()
        assert len(re.findall(rf"^  {re.escape(usage)}(?:  |$)", printed, re.MULTILINE)) == 1, usage


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_the_common_options_of_a_verb_with_many_on_one_screen(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([verb, "--help-all"]) == 0
    every = capsys.readouterr().out
    assert (verb in COMMON) == (len(every.splitlines()) > MOST)
    assert main([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    if verb not in COMMON:
        assert printed == every
        return
    assert len(printed.splitlines()) <= MOST + 10
    shown = re.findall(r"^  --([a-z-]+)(?: .*)?$", printed, re.MULTILINE)
    assert sorted(shown) == sorted(name.replace("_", "-") for name in COMMON[verb])
    assert printed.endswith(f"\n\nsfumato {verb} --help-all shows every option.\n")


def test_the_short_page_of_train_has_what_most_need(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", "-h"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("usage: sfumato train [OPTIONS] SOURCE|RECIPE|RUN\n\nTrain an image classifier privately")
    assert re.findall(r"^\w+:$", page, re.MULTILINE) == ["budget:", "data:", "model:", "run:"]
    assert "  --delta DELTA         Probability with which the epsilon bound may fail.\n" in page
    assert set(NEEDED) <= set(re.findall(r"--[a-z-]+", page))


def test_values_and_defaults_are_spelt_as_they_are_given():
    train = options("train")
    assert train["epsilon"].metavar == "EPSILON[,EPSILON...]"
    assert train["epsilon"].text().endswith("one model for each. (default: 3)")
    assert (train["dry_run"].metavar, train["dry_run"].default) == ("", "")
    assert train["output"].default == "(default: runs/ and the source's name)"
    assert "(required)" in options("features")["backbone"].text()
    assert options("predict")["top"].text().endswith("(default: 3)")


@pytest.mark.parametrize(("columns", "every"), [(40, True), (200, False)])
def test_no_line_is_wider_than_the_terminal_or_than_can_be_read(monkeypatch, columns, every):
    monkeypatch.setenv("COLUMNS", str(columns))
    longest = max(map(len, parser.parser_of(Train, every=every).format_help().splitlines()))
    assert longest <= max(parser.NARROWEST, min(columns - 2, parser.WIDEST)) + 24, "long spellings are not cut"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("train digits --epsilon 1,2 --steps 5", {"what": "digits", "epsilon": (1.0, 2.0), "steps": 5}),
        ("train --steps=5 digits --json", {"what": "digits", "steps": 5, "json": True, "epsilon": None}),
        ("train digits --flip False --classes a b", {"flip": False, "classes": ("a", "b")}),
        ("train digits --weight-decay -1", {"weight_decay": -1.0}),
        ("train digits --window -160,240 --json", {"window": (-160, 240), "json": True}),
        ("predict run --top 2 a.png b.png", {"run_directory": "run", "images": ("a.png", "b.png"), "top": 2}),
        ("runs", {"what": "runs"}),
        ("runs --json elsewhere", {"what": "elsewhere", "json": True}),
        ("export run --to torch-export", {"to": "torch-export"}),
        ("sweep digits --vary a=1 b=2 --vary c=3", {"vary": (("a=1", "b=2"), ("c=3",))}),
    ],
)
def test_options_are_read_wherever_they_stand(given: str, read: dict):
    name, *words = given.split()
    verb = parser.parse(load(name), words)
    assert {field: getattr(verb, field) for field in read} == read


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("evaluate", "the following arguments are required: RUN, SOURCE"),
        ("features digits", "the following arguments are required: --backbone"),
        ("train digits --steps", "--steps expected one argument"),
        ("train digits --steps 2.5", "--steps must be a whole number, got '2.5'"),
        ("train digits --flip maybe", "--flip must be True or False, got 'maybe'"),
        ("train digits --window 5", "--window must be two integers separated by a comma, got '5'"),
        ("export run --to x", "--to must be onnx or torch-export, got 'x'"),
        ("train digits --epsilo 3", "unknown option --epsilo; perhaps you meant --epsilon"),
        ("train digits --eps 3", "unknown option --eps; perhaps you meant --epsilon"),
        ("train --lr=0.5 digits", "unknown option --lr"),
        ("train digits -o here", "unknown option -o"),
        ("train folder pictures", "one argument too many: pictures"),
    ],
)
def test_what_cannot_be_read_is_one_line(given: str, line: str, capsys):
    assert main(given.split()) == 2
    assert capsys.readouterr().err == f"error: {line}; see sfumato {given.split()[0]} --help\n"
