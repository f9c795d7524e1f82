"""What other tools call otherwise, or have and this one has not, is answered by what it is here."""

from __future__ import annotations

import pytest

from sfumato.cli import parse
from sfumato.cli.output import refusals
from sfumato.cli.registry import VERBS, load


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--gpus 2", "--device cuda computes on a GPU"),
        ("--amp", "--precision bfloat16"),
        ("--fp16", "--precision bfloat16"),
        ("--class-weights 1", "--class-prevalence"),
        ("--config a.yaml", "name the .toml file"),
        ("--early-stopping", "there is none"),
        ("--patience 3", "there is none"),
        ("--lora", "--trainable says which weights"),
        ("--resume runs/a", "name the run directory"),
    ],
)
def test_it_is_called_by_its_name_here(option: str, meant: str, capsys):
    assert parse(["train", "digits", *option.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Unrecognized options: ")
    assert meant in line


def test_what_a_verb_does_not_have_is_not_offered(capsys):
    assert parse(["verify", "runs/a", "--lora"]) == 2
    assert "--trainable" not in capsys.readouterr().err


def test_every_option_that_is_offered_exists():
    import dataclasses

    known = {field.name for verb in VERBS for field in dataclasses.fields(load(verb))}
    assert {of for of, _ in refusals.HERE.values()} <= known
    assert set(refusals.ALIASES.values()) <= set(refusals.HERE)
