"""The comparison of pairs: predictions agree with replays of the noise, and the pair to take has the least."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato import Noise, RunKey, SfumatoError
from studies import command
from studies.pairs import compare

STEPS, MOMENTUM = 24, 0.8


@pytest.fixture(scope="module")
def pairs():
    return compare(examples=200, batch_size=25, steps=STEPS, epsilon=5.0, delta=1e-5, momentum=MOMENTUM)


def test_every_pair_has_a_plan_within_the_budget_or_a_reason(pairs):
    assert len(pairs) == 8
    for pair in pairs:
        assert (pair.plan is None) == bool(pair.why)
        if pair.plan is not None:
            assert 4.9 < pair.plan.epsilon() <= 5.0
            assert (pair.plan.steps, pair.plan.expected_batch_size) == (STEPS, 25)
    assert [pair.participation for pair in pairs if pair.plan is None] == ["full-batch"]


def test_predictions_are_what_replays_of_the_noise_leave_in_the_weights(pairs):
    """Heavy-ball SGD at rate 1 on noise alone, 20,000 weights at once: within five standard errors."""
    count = 20_000
    for pair in pairs:
        if pair.plan is None:
            continue
        noise = Noise(pair.plan.mechanism, max_norm=1.0, key=RunKey.from_seed(3))
        state, velocity, weights, squares = noise.begin(), np.zeros(count), np.zeros(count), 0.0
        for step in range(STEPS):
            noisy, state = noise.add({"w": torch.zeros(count)}, step, state)
            velocity = MOMENTUM * velocity + noisy["w"].numpy() / 25
            weights = weights - velocity
            squares += float((weights**2).mean()) / STEPS
        assert np.sqrt((weights**2).mean()) == pytest.approx(pair.final, rel=5 / np.sqrt(2 * count))
        assert np.sqrt(squares) == pytest.approx(pair.all_steps, rel=0.03)


def test_more_steps_than_can_be_compared_are_refused():
    with pytest.raises(SfumatoError, match="pairs are compared over at most 1000000 steps, got 1000001"):
        compare(examples=200, batch_size=25, steps=1_000_001, epsilon=5.0, delta=1e-5)


NUMBERS = "pairs --examples 200 --batch-size 25 --delta 1e-5 --epsilon 5"


def test_pairs_are_printed_and_drawn(study, capsys, pairs, monkeypatch, tmp_path):
    monkeypatch.setattr("studies.pairs.compare", lambda **_: pairs)
    place = tmp_path / "pairs.svg"
    line = f"{NUMBERS} --steps {STEPS} --plot {place}"
    found = json.loads(study(f"{line} --json"))
    known = [pair for pair in found["pairs"] if "why_not" not in pair]
    assert [pair["noise_in_final_weights"] for pair in known] == sorted(p["noise_in_final_weights"] for p in known)
    assert all(4.9 < pair["epsilon"] <= 5 for pair in known)
    assert {pair["adjacency"] for pair in known if pair["participation"] == "truncated"} == {"zero-out"}
    assert found["take_without_sampling"]["participation"] == "fixed-order"
    first = place.read_bytes()
    assert first.startswith(b"<?xml")
    name, *arguments = shlex.split(line)
    assert command.main(name, arguments) == 0
    printed = capsys.readouterr()
    assert place.read_bytes() == first
    assert printed.out.count("fixed-order") == 3
    assert "<- take" in printed.out
    assert "different guarantees" in printed.err
    assert "left out: full-batch with gaussian" in printed.err
    best = found["take"]
    assert f"next: sfumato train SOURCE --participation {best['participation']} --mechanism {best['mechanism']}" in (
        printed.err
    )


def test_pairs_are_compared_within_the_order_that_the_data_have(study, capsys, once):
    """What cannot be drawn at random is not told to draw, and the command that trains keeps the order."""
    once("studies.pairs.compare")
    line = f"{NUMBERS} --steps 4 --order position"
    found = json.loads(study(f"{line} --json"))
    assert {pair["participation"] for pair in found["pairs"] if "why_not" not in pair} == {"fixed-order"}
    name, *arguments = shlex.split(line)
    assert command.main(name, arguments) == 0
    printed = capsys.readouterr()
    assert "cyclic" not in printed.out
    assert "left out: poisson with gaussian: who takes part is decided by position" in printed.err
    assert f"--participation fixed-order --mechanism {found['take']['mechanism']} --order position " in printed.err


def test_what_cannot_be_compared_is_refused(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = study(f"{NUMBERS} --steps 5 --plot x.png", status=2)
    assert told == "error: --plot must end with .svg, got 'x.png'; give a file such as pairs.svg\n"
    assert "error: --examples must be at least 1, got 0" in study(
        "pairs --examples 0 --batch-size 1 --steps 1 --epsilon 1", status=1
    )
    assert not list(Path().iterdir())
