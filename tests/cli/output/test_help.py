"""What `sfumato VERB --help` shows: every option once, in groups, the budget first."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from sfumato.cli import main
from sfumato.cli.output import help as pages
from sfumato.cli.registry import VERBS, load
from sfumato.cli.verbs.train import Train


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_shown_once_and_says_what_it_is_for(verb, capsys):
    assert main([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    positional, options = pages.paged(load(verb))
    spelt = [one for group in options.values() for one in group]
    assert sorted(one.name for one in (*positional, *spelt)) == sorted(
        [*(field.name for field in fields(load(verb))), "help"]
    )
    assert all(one.words for one in (*positional, *spelt))
    for one in spelt:
        assert len(re.findall(rf"^  {re.escape(one.usage)}(?:  |$)", printed, re.MULTILINE)) == 1


def test_the_groups_stand_in_their_order_and_name_real_options():
    assert list(pages.paged(Train).options) == ["budget", "data", "model", "training", "run"]
    assert pages.paged(Train).options["budget"][0].name == "epsilon"
    grouped = [name for names in pages.GROUPS.values() for name in names]
    known = {field.name for verb in VERBS for field in fields(load(verb))}
    assert len(set(grouped)) == len(grouped)
    assert set(grouped) <= known


def test_values_and_defaults_are_spelt_as_they_are_given():
    by_name = {one.name: one for group in pages.paged(Train).options.values() for one in group}
    assert by_name["epsilon"].usage == "--epsilon EPSILON[,EPSILON...]"
    assert by_name["epsilon"].words.endswith("a run for each. (default: 3)")
    assert by_name["dry_run"].usage == "--dry-run"
    assert "default" not in by_name["dry_run"].words
    features = {one.name: one for group in pages.paged(load("features")).options.values() for one in group}
    assert "(required)" in features["backbone"].words
    predict = {one.name: one for group in pages.paged(load("predict")).options.values() for one in group}
    assert predict["top"].words.endswith("(default: 3)")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal_or_than_can_be_read(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    longest = max(map(len, pages.shown(Train).splitlines()))
    assert longest <= max(pages.NARROWEST, min(columns - 2, pages.WIDEST)) + 16, "long spellings are not cut"
