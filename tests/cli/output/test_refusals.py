"""What other tools call otherwise, or have and this one has not, is answered by what it is here."""

from __future__ import annotations

import dataclasses
import re

import pytest

from sfumato._choices import SYNONYMS
from sfumato.cli import parse
from sfumato.cli.registry import VERBS, load
from sfumato.experiment import foreign_options


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--gpus 2", "--device cuda uses one GPU"),
        ("--amp", "--precision bfloat16"),
        ("--class-weights 1", "--class-prevalence"),
        ("--early-stopping", "there is none"),
        ("--lora", "--trainable selects the weights"),
        ("--resume runs/a", "name the run directory"),
        ("--epochs 3 --batch-size 103 --examples=1438", "give --steps 42: 3 epochs of 1438 examples are 42 steps"),
        ("--num-workers 4", "--threads N sets the CPU threads"),
        ("--target-epsilon 3", "perhaps you meant --epsilon"),
        ("--max-grad-norm 1", "perhaps you meant --max-norm"),
        ("--accumulate-grad-batches 2", "--micro-batch N is the largest number of examples"),
        ("--data-dir pictures", "such as folder:pictures"),
    ],
)
def test_it_is_called_by_its_name_here(option: str, meant: str, capsys):
    assert parse(["train", "digits", *option.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Unrecognized options: ")
    assert meant in line


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["gpus", "epochs"])
def test_no_verb_offers_what_it_has_not(verb: str, name: str, capsys):
    known = {field.name for field in dataclasses.fields(load(verb))}
    if name in known:  # sfumato tradeoff knows epochs
        return
    assert parse([verb, f"--{name.replace('_', '-')}", "3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    offered = {word.replace("-", "_") for word in re.findall(r"--([a-z-]+)", line.partition(";")[2])}
    # what other verbs have is said with their names: sfumato train --processes, sfumato sweep --search
    assert offered <= known | {"help", "processes", "search"}


def test_every_option_that_is_offered_exists():
    known = {field.name for verb in VERBS for field in dataclasses.fields(load(verb))} | {"source", "directory"}
    assert {of for one in foreign_options.ANSWERS.values() for of in one.needs} <= known
    assert set(foreign_options.ALIASES.values()) <= {*foreign_options.ANSWERS, foreign_options.EPOCHS}
    assert set(SYNONYMS) <= known


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("evaluate", "RUN and SOURCE are missing"),
        ("compare a", "an argument is missing: 2 are needed"),
        ("evaluate runs/a --gpus 2", "Unrecognized options: --gpus; --device cuda uses one GPU"),
        ("plan --gpus 2", "Unrecognized options: --gpus, 2; see sfumato plan --help"),
    ],
)
def test_what_is_missing_is_named(given: str, line: str, capsys):
    assert parse(given.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")
