"""sfumato plan with mechanisms and participations: what it finds is what train then runs, and how pairs compare."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from sfumato.cli import main

NUMBERS = "--examples 1438 --batch-size 360 --steps 16 --delta 1e-5"
COMPARED = f"plan {NUMBERS} --epsilon 3 --compare"


def answer(capsys, command: str) -> dict:
    assert main(shlex.split(command)) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("pair", ["--mechanism blt", "--participation cyclic --groups 3", "--order position --bands 5"])
def test_the_next_command_runs_the_plan_that_is_shown(pair, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    pair = pair.replace("--bands", "--mechanism banded --bands")
    shown = answer(capsys, f"plan {NUMBERS} --epsilon 3 {pair} --json")
    assert main(shlex.split(f"plan {NUMBERS} --epsilon 3 {pair}")) == 0
    printed = capsys.readouterr()
    assert "copies of the model" in printed.out
    (line,) = (line for line in printed.err.splitlines() if line.startswith("next: sfumato train SOURCE "))
    options = line.removeprefix("next: sfumato train SOURCE ")
    planned = answer(capsys, f"train digits {options} --dry-run --json")["plan"]
    assert planned["fingerprint"] == shown["fingerprint"]
    assert ("adjacency            zero-out" in printed.out) == ("position" in pair)
    assert ("order                place in the file" in printed.out) == ("position" in pair)
    assert ("sampling probability" in printed.out) == ("cyclic" in pair)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    place = tmp_path_factory.mktemp("plots") / "compared.svg"
    return shlex.split(f"{COMPARED} --plot {place}"), place


def test_pairs_are_compared_and_drawn(compared, capsys):
    command, place = compared
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = [pair for pair in found["pairs"] if "why_not" not in pair]
    assert [pair["noise_in_final_weights"] for pair in known] == sorted(p["noise_in_final_weights"] for p in known)
    assert all(2.9 < pair["epsilon"] <= 3 for pair in known)
    assert {pair["adjacency"] for pair in known if pair["participation"] == "truncated"} == {"zero-out"}
    assert found["take_without_sampling"]["participation"] == "fixed-order"
    first = place.read_bytes()
    assert first.startswith(b"<?xml")
    assert main(command) == 0
    printed = capsys.readouterr()
    assert place.read_bytes() == first
    assert printed.out.count("fixed-order") == 4
    assert "<- take" in printed.out
    assert "different promises" in printed.err
    assert "left out: full-batch with gaussian" in printed.err
    best = found["take"]
    assert f"next: sfumato train SOURCE --participation {best['participation']} --mechanism {best['mechanism']}" in (
        printed.err
    )


@pytest.mark.parametrize("order", ["position", "time"])
def test_pairs_are_compared_within_the_order_that_the_data_have(order, capsys):
    """What cannot be drawn at random is not told to draw, and the command that trains keeps the order."""
    command = f"plan {NUMBERS.replace('16', '4')} --epsilon 3 --compare --order {order}"
    found = answer(capsys, f"{command} --json")
    assert {pair["participation"] for pair in found["pairs"] if "why_not" not in pair} == {"fixed-order"}
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr()
    assert "cyclic" not in printed.out
    assert f"left out: poisson with gaussian: who takes part is decided by {order}" in printed.err
    assert f"--participation fixed-order --mechanism {found['take']['mechanism']} --order {order} " in printed.err
    assert ("--start TIME --period DURATION" in printed.err) == (order == "time")


def test_a_clock_goes_on_to_the_command_that_trains(capsys):
    timed = "plan --examples 1438 --batch-size 360 --steps 4 --epsilon 3 --order time"
    assert main(shlex.split(f"{timed} --start 2026-01-01 --period 1d")) == 0
    assert "--order time --start 2026-01-01 --period 1d\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--compare --batch-size 9 --steps 5 --epsilon 1 --plot x.png", "--plot must end with .svg, got 'x.png'"),
        ("--batch-size 9 --steps 5 --epsilon 1 --start 0 --period 1", "--start and --period are given without --order"),
        ("--batch-size 9 --steps 5 --epsilon 1 --order sideways", "--order must be one of random, position, time"),
        ("--batch-size 1 --steps 101 --epsilon 1 --order time", "got 101; give at most 100 steps\n"),
        ("--compare --steps 5", "--compare needs --batch-size, --steps and --epsilon, got --steps"),
        ("--plot x.svg --batch-size 9 --steps 5 --epsilon 1", "--plot is given without --compare"),
        ("--compare --batch-size 9 --steps 5 --epsilon 1 --mechanism blt", "--compare and a single --mechanism"),
        ("--batch-size 9 --steps 5 --epsilon 1 --participation shuffling", "no theorem here covers the participation"),
        (
            "--batch-size 9 --steps 5 --epsilon 1 --participation poisson --mechanism tree",
            "no theorem here covers tree",
        ),
    ],
)
def test_what_cannot_be_compared_or_planned_is_refused(options, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(f"plan --examples 100 {options}")) in (1, 2)
    assert words in capsys.readouterr().err
    assert not list(Path().iterdir())
