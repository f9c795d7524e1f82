"""A site's rounds in a federation: what goes in and out, where it resumes, and what the ledger says of it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from sfumato import SfumatoError
from sfumato.privacy import BandedToeplitz, FullBatch, PrivacyPlan, ledger
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.directory import RunDirectory
from sfumato.training.custom.rounds import PrivateRounds
from sfumato.training.custom.steps import PrivateSteps
from sfumato.training.preparation import resume
from tests.training.custom.conftest import network

ROOT = Path(__file__).parents[3]
ROUNDS, STEPS = 3, 6


def begun(data, directory, **choices):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    choices = {"noise_multiplier": 1.0, "batch_size": 20, "steps": STEPS, "seed": 1, "threads": 1, **choices}
    return sfumato.private_rounds(model, optimizer, data, directory=directory, **{"rounds": ROUNDS, **choices})


def weights_of(shift):
    """What the federation sends before a round."""
    return {name: value + 0.1 * shift for name, value in network().state_dict().items()}


def all_rounds(data, directory, **choices):
    """What a site sends, one digest a round."""
    run = begun(data, directory, **choices)
    return [pins.weights_digest(run.train(weights_of(number))) for number in range(ROUNDS)]


def kinds(directory):
    return [entry.kind for entry in ledger.read(directory / names.LEDGER)]


def test_a_round_is_the_steps_of_private_steps_from_the_weights_that_came_in(data, tmp_path):
    """The first by the same key: rounds and steps differ in their records, so the key is that of the rounds."""
    run = begun(data, tmp_path / "rounds", rounds=1, steps=4)
    model = network()
    model.load_state_dict(weights_of(2))
    other = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    steps = sfumato.private_steps(
        model,
        other,
        data,
        directory=tmp_path / "steps",
        noise_multiplier=1.0,
        batch_size=20,
        steps=4,
        seed=1,
        threads=1,
    )
    steps._job = replace(steps._job, key=run._steps._job.key)
    for _ in steps:
        pass
    sent = run.train(weights_of(2))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(sent[name], value, rtol=0, atol=0)


def test_the_ledger_names_what_came_in_and_what_went_out(data, tmp_path):
    sent = all_rounds(data, tmp_path)
    entries = ledger.read(tmp_path / names.LEDGER)
    received = [pins.weights_digest(weights_of(number)) for number in range(ROUNDS)]
    assert [one.body["sha256"] for one in entries if one.kind == ledger.RECEIVED] == received
    assert [one.body["sha256"] for one in entries if one.kind == ledger.SENT] == sent
    order = [kind for kind in kinds(tmp_path) if kind != "opening"]
    assert order == ["begin", *["received", "release", "release", "sent"] * ROUNDS, "end"]
    assert sfumato.verify(tmp_path).holds


def test_the_promise_is_that_of_one_plan_for_all_rounds(data, tmp_path):
    run = begun(data, tmp_path, seed=None)
    for number in range(ROUNDS):
        run.train(weights_of(number))
    statement = run.statement.to_dict()
    assert run.statement.plan.steps == STEPS
    assert "the weights after each of the site's 3 rounds, to the server and to everybody" in statement["released"]
    assert any("against everybody who sees all weights that this site has sent" in line for line in statement["plain"])
    assert any("at other sites of the federation" in line for line in statement["not_covered"])
    assert any("chosen to enlarge floating-point artefacts" in line for line in statement["not_covered"])
    assert sfumato.verify(tmp_path).holds


@pytest.mark.parametrize("until", [1, 2, 3, 4])
def test_it_resumes_between_rounds_and_within_one_to_the_same_bytes(data, tmp_path, until):
    whole = all_rounds(data, tmp_path / "whole")
    number = (until - 1) // (STEPS // ROUNDS)
    run = begun(data, tmp_path / "cut")
    for earlier in range(number):
        run.train(weights_of(earlier))
    turn = next(iter(run))
    turn.receive(weights_of(number))
    for step in turn:
        if step.number == until:
            break
    again = begun(data, tmp_path / "cut")
    assert [pins.weights_digest(again.train(weights_of(later))) for later in range(number, ROUNDS)] == whole[number:]
    assert sfumato.verify(tmp_path / "cut").holds


def test_a_repeated_request_costs_nothing_and_gets_the_same_weights(data, tmp_path):
    run = begun(data, tmp_path)
    for number in range(ROUNDS):
        first = run.train(weights_of(number))
        before = kinds(tmp_path)
        for again in (run, begun(data, tmp_path)):
            second = again.train(weights_of(number))
            assert pins.weights_digest(second) == pins.weights_digest(first)
        assert kinds(tmp_path) == before


@pytest.mark.parametrize("rounds", [1, 2])
def test_after_an_interruption_too_the_ledger_names_weights_before_they_leave(data, tmp_path, monkeypatch, rounds):
    """The round's last checkpoint is there, and nothing that comes after it."""

    def killed(*given):
        raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(PrivateRounds, "_end", killed)
        with pytest.raises(KeyError):
            begun(data, tmp_path, rounds=rounds, steps=4).train(weights_of(0))
    again = begun(data, tmp_path, rounds=rounds, steps=4)
    assert again._steps.is_finished == (rounds == 1)
    digest = pins.weights_digest(again.train(weights_of(0)))
    sent = [dict(one.body) for one in ledger.read(tmp_path / names.LEDGER) if one.kind == ledger.SENT]
    assert sent == [{"round": 0, "sha256": digest}]


def test_weights_that_change_within_a_round_lose_the_steps_that_were_paid_from_others(data, tmp_path):
    """Their noise is not used again: a step from other weights would be a second release with it."""
    turn = next(iter(begun(data, tmp_path)))
    turn.receive(weights_of(0))
    steps = iter(turn)
    next(steps)
    lines = ledger.read(tmp_path / names.LEDGER)
    checkpoint = (tmp_path / names.CHECKPOINT).read_bytes()
    steps.close()
    (tmp_path / names.CHECKPOINT).write_bytes(checkpoint)  # as after a kill: the step is paid, and nowhere else
    again = begun(data, tmp_path)
    again.train(weights_of(1))
    entries = ledger.read(tmp_path / names.LEDGER)
    assert entries[: len(lines)] == lines
    assert [dict(one.body) for one in entries if one.kind == ledger.LOST] == [{"first": 0, "last": 0}]
    assert len([one for one in entries if one.kind == "release"]) == STEPS // ROUNDS
    for number in (1, 2):
        again.train(weights_of(number + 5))
    assert again.statement.circumstances.steps_lost == 1
    assert sfumato.verify(tmp_path).holds


def test_steps_start_from_the_weights_of_their_line_also_from_an_older_checkpoint(data, tmp_path):
    """The line says step 1, but the checkpoint is again that of step 0: the steps in between are lost."""
    run = begun(data, tmp_path, rounds=2)
    turn = next(iter(run))
    for number in range(2):
        turn.receive(weights_of(number))
        next(iter(turn))
        if number == 0:
            with_one_step = (tmp_path / names.CHECKPOINT).read_bytes()
    turn.receive(weights_of(2))
    next(iter(turn))
    (tmp_path / names.CHECKPOINT).write_bytes(with_one_step)
    again = begun(data, tmp_path, rounds=2)
    sent = again.train(weights_of(2))
    entries = ledger.read(tmp_path / names.LEDGER)
    assert [one.body["step"] for one in entries if one.kind == ledger.RECEIVED] == [0, 1, 2, 1]
    assert [dict(one.body) for one in entries if one.kind == ledger.LOST] == [{"first": 1, "last": 2}]
    assert pins.weights_digest(sent) == pins.weights_digest(weights_of(2))  # all steps that were left are lost


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.training.attempt import count_side_effects
from tests.training.custom import test_rounds as t
from tests.training.custom.conftest import records

def site(place, kill_at=None):
    def before(number, name, call, given):
        if number == kill_at:
            if name == "write":
                call(given[0], given[1][: len(given[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    seen = count_side_effects(before)
    run = t.begun(records(), place)
    while (number := run.completed) < t.ROUNDS:
        with open(f"{place}.sent", "a") as sent:
            sent.write(f"{number} {t.pins.weights_digest(run.train(t.weights_of(number)))}\\n")
    return len(seen)

def forked(*given):
    if process := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    site(*given)
    os._exit(0)

place = Path(sys.argv[1])
t.begun(records(), place / "warm").train(t.weights_of(0))
os.fsync = os.fstat  # what a killed process wrote is there without it
if not os.fork():
    (place / "count").write_text(str(site(place / "whole")))
    os._exit(0)
os.wait()
for number in range(1, int((place / "count").read_text()) + 1):
    run = place / f"{number}"
    print(number, forked(run, number), forked(run), t.sfumato.verify(run).holds, flush=True)
"""


@pytest.mark.slow
def test_a_site_killed_at_any_moment_sends_the_same_bytes(data, tmp_path):
    """At each of its writes, renames and deletions, of which some are cut in the middle; then it begins again."""
    whole = all_rounds(data, tmp_path / "here")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    program = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=True)
    attempts = [line.split() for line in done.stdout.splitlines()]
    assert len(attempts) > 50
    for number, killed, ended, holds in attempts:
        assert (killed, ended, holds) == ("-9", "0", "True")  # verified where it was made: on the fine grid
        sent = [line.split() for line in (tmp_path / f"{number}.sent").read_text().splitlines()]
        assert all(digest == whole[int(turn)] for turn, digest in sent)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda w: w.pop("0.bias"), r"missing entries: 1 \(such as 0\.bias\);"),
        (lambda w: w.update(more=torch.zeros(1)), r"unknown entries: 1 \(such as more\);"),
        (lambda w: w.update({"0.bias": torch.zeros(9)}), r"0\.bias is torch\.float32 \(9,\), the model's .* \(8,\)"),
        (lambda w: w.update({"0.bias": np.zeros(8)}), r"0\.bias is torch\.float64 \(8,\), the model's torch\.float32"),
        (lambda w: w.update({"0.bias": torch.full((8,), torch.nan)}), r"values in 0\.bias that are not finite"),
        (lambda w: w["2.weight"].view(-1)[-1].fill_(-torch.inf), r"values in 2\.weight that are not finite"),
        (lambda w: w["2.weight"].view(-1)[3].fill_(torch.inf), r"values in 2\.weight that are not finite"),
        (lambda w: w.update({"0.bias": None}), r"0\.bias is no dense tensor"),
        (lambda w: w.update({"0.bias": np.zeros(8, np.float32)[::-1]}), r"0\.bias is no dense tensor"),
        (lambda w: w.update({"0.bias": torch.zeros(8, device="meta")}), r"0\.bias is no dense tensor"),
        (
            lambda w: w.update({"0.bias": torch.zeros(8).to_sparse()}),
            r"0\.bias is no dense tensor \(a tensor of layout",
        ),
        (
            lambda w: w.update({"0.bias": torch.nested.nested_tensor([torch.zeros(8)], layout=torch.jagged)}),
            r"\(a tensor that is nested\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_is_spent(data, tmp_path, change, refusal):
    run, weights = begun(data, tmp_path), weights_of(0)
    change(weights)
    with pytest.raises(SfumatoError, match=refusal):
        run.train(weights)
    assert not RunDirectory(tmp_path).exists


@pytest.mark.parametrize("given", [None, nn.Linear(3, 2), [torch.zeros(2)]])
def test_weights_must_be_a_dict(data, tmp_path, given):
    with pytest.raises(SfumatoError, match=f"must be a dict of tensors or arrays, got {type(given).__name__}"):
        begun(data, tmp_path).train(given)


def test_what_came_in_or_went_out_may_be_changed(data, tmp_path):
    """Neither the site's steps nor its answer depend on it."""
    expected = all_rounds(data, tmp_path / "whole")
    run, model = begun(data, tmp_path / "run"), network()
    own = run._steps.model.state_dict()
    for number, digest in enumerate(expected):
        model.load_state_dict(weights_of(number))
        turn = next(iter(run))
        turn.receive({name: value.numpy() for name, value in model.state_dict().items()})
        for value in model.state_dict().values():
            value.fill_(7)
        for _ in turn:
            pass
        for value in own.values():
            value.fill_(7)
        sent = turn.weights()
        assert pins.weights_digest(sent) == digest
        for value in sent.values():
            value.fill_(7)
        assert pins.weights_digest(turn.weights()) == digest


def test_with_secure_noise_weights_may_be_chosen_to_make_rounding_large(data, tmp_path):
    run = begun(data, tmp_path, seed=None, noise="secure", rounds=1, steps=2)
    run.train(weights_of(0))
    assert run._steps._job.performance.micro_batch == 1
    assert not any("artefacts" in line for line in run.statement.not_covered)


def test_no_round_is_begun_beyond_the_plan(data, tmp_path):
    all_rounds(data, tmp_path)
    with pytest.raises(SfumatoError, match="the privacy budget is used up after round 3") as caught:
        begun(data, tmp_path).train(weights_of(7))
    assert "leave the federation" in str(caught.value)


def test_it_may_leave_early_and_its_statement_is_that_of_the_whole_plan(data, tmp_path):
    run = begun(data, tmp_path)
    run.train(weights_of(0))
    statement = run.finish()
    assert statement.plan.steps == STEPS
    assert statement.circumstances.steps_taken == 2
    assert sfumato.verify(tmp_path).holds
    with pytest.raises(SfumatoError, match="used up"):
        run.train(weights_of(1))


def test_a_round_that_is_over_takes_no_step_and_gives_no_other_weights(data, tmp_path):
    """Neither those of later rounds nor those within one, which the ledger does not name."""
    run = begun(data, tmp_path)
    first = next(iter(run))
    first.receive(weights_of(0))
    list(first)
    sent = pins.weights_digest(first.weights())
    assert pins.weights_digest(first.weights()) == sent
    second = next(iter(run))
    second.receive(weights_of(1))
    next(iter(second))
    before = kinds(tmp_path)
    assert list(first) == []
    assert kinds(tmp_path) == before
    with pytest.raises(SfumatoError, match="the weights after round 1 of 3 are no longer there"):
        first.weights()
    run.train(weights_of(1))
    with pytest.raises(SfumatoError, match="the weights after round 1 of 3 are no longer there"):
        first.weights()
    run.train(weights_of(2))
    assert list(second) == []
    assert sfumato.verify(tmp_path).holds


def test_what_it_receives_decides_which_round_it_is(data, tmp_path):
    """A round that is over may be asked again, and given other weights it is the next one, not an old answer."""
    expected = all_rounds(data, tmp_path / "whole")
    turn = next(iter(begun(data, tmp_path / "run")))
    for number, digest in enumerate(expected):
        for _ in range(2):
            turn.receive(weights_of(number))
            list(turn)
            assert pins.weights_digest(turn.weights()) == digest
    assert sfumato.verify(tmp_path / "run").holds


def test_weights_of_another_process_s_round_are_no_answer(data, tmp_path, monkeypatch):
    """It takes this round and a step of the next between this one's look at the checkpoint and at the ledger."""
    run, opened = begun(data, tmp_path), PrivateSteps._open_ledger

    def later(steps):
        monkeypatch.setattr(PrivateSteps, "_open_ledger", opened)
        other = begun(data, tmp_path)
        other.train(weights_of(0))
        turn = next(iter(other))
        turn.receive(weights_of(1))
        next(iter(turn))
        return opened(steps)

    monkeypatch.setattr(PrivateSteps, "_open_ledger", later)
    with pytest.raises(SfumatoError, match="another process went on after round 1"):
        run.train(weights_of(0))


def test_weights_leave_when_their_line_is_on_disk(data, tmp_path, monkeypatch):
    run, synced = begun(data, tmp_path), list[int]()
    monkeypatch.setattr(ledger, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    for number in range(ROUNDS - 1):
        run.train(weights_of(number))
        assert kinds(tmp_path)[-1] == "sent"
        assert synced[-1] == (tmp_path / names.LEDGER).stat().st_size


def test_a_round_that_was_left_at_its_end_is_named_before_the_next(data, tmp_path):
    run = begun(data, tmp_path)
    for number, turn in enumerate(run):
        turn.receive(weights_of(number))
        for step in turn:
            if step.number == (number + 1) * STEPS // ROUNDS:
                break
    run.finish()
    assert sfumato.verify(tmp_path).holds


def test_leaving_after_a_round_names_its_weights_too(data, tmp_path):
    run = begun(data, tmp_path)
    turn = next(iter(run))
    turn.receive(weights_of(0))
    for step in turn:
        if step.number == STEPS // ROUNDS:
            break
    run.finish()
    assert kinds(tmp_path)[-2:] == ["sent", "end"]
    assert sfumato.verify(tmp_path).holds


def test_weights_within_a_round_that_was_left_are_no_answer(data, tmp_path):
    run = begun(data, tmp_path, rounds=1)
    turn = next(iter(run))
    turn.receive(weights_of(0))
    next(iter(turn))
    run.finish()
    with pytest.raises(SfumatoError, match="the weights after round 1 of 1 are no longer there"):
        run.train(weights_of(0))


def test_a_round_that_changed_nothing_is_followed_by_the_next(data, tmp_path):
    """One site's own weights come back. They are no repeated request, or the loop would never end."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    choices = {"noise_multiplier": 1.0, "batch_size": 20, "steps": STEPS, "seed": 1, "threads": 1}
    run = sfumato.private_rounds(model, optimizer, data, directory=tmp_path, rounds=ROUNDS, **choices)
    weights = model.state_dict()
    for _ in range(ROUNDS):
        weights = run.train(weights)
    assert run.statement.plan.steps == STEPS
    assert sfumato.verify(tmp_path).holds


@pytest.mark.parametrize("if_changed", ["refuse", "skip"])
def test_a_round_whose_weights_went_out_is_not_taken_from_others(data, tmp_path, if_changed):
    """An old copy of the checkpoint is there again."""
    run = begun(data, tmp_path)
    run.train(weights_of(0))
    old = (tmp_path / names.CHECKPOINT).read_bytes()
    sent = pins.weights_digest(run.train(weights_of(1)))
    (tmp_path / names.CHECKPOINT).write_bytes(old)
    before = kinds(tmp_path)
    again = begun(data, tmp_path, if_changed=if_changed)
    with pytest.raises(SfumatoError, match="round 2 has sent its weights, but the checkpoint of"):
        again.train(weights_of(9))
    assert kinds(tmp_path) == before
    assert pins.weights_digest(again.train(weights_of(1))) == sent
    again.train(weights_of(2))
    assert sfumato.verify(tmp_path).holds


@pytest.mark.parametrize("rounds", [1, 7, 20, 60, 61, 500])
def test_without_steps_a_round_takes_one_or_as_many_as_make_60_in_all(data, tmp_path, rounds):
    run = begun(data, tmp_path, rounds=rounds, steps=None, noise_multiplier=None, epsilon=3.0)
    assert run.plan.steps % rounds == 0
    assert rounds * (run._each - 1) < max(60, rounds) <= run.plan.steps


@pytest.mark.parametrize("given", [{"epochs": 3}, {"steps": 9}, {"noise_multiplier": 2.0, "epsilon": 8.0}, {"plan": 6}])
def test_steps_that_are_given_or_follow_from_the_noise_are_kept(data, tmp_path, given):
    choices = {"steps": None, "noise_multiplier": None, "epsilon": 3.0, **given}
    if "plan" in given:
        plan = PrivacyPlan.calibrate(examples=60, batch_size=20, steps=given["plan"], epsilon=3.0, delta=1e-5)
        choices = {"steps": None, "noise_multiplier": None, "batch_size": None, "plan": plan}
    run = begun(data, tmp_path, rounds=1, **choices)
    steps = {"epochs": 9, "steps": 9, "plan": 6}.get(next(iter(given)))
    assert run.plan.steps == (steps or run.plan.most_steps(8.0))


def test_correlated_noise_goes_on_across_rounds_and_lost_steps(data, tmp_path):
    """With so much noise a round moves the weights by its noise alone, whatever came in and was lost before."""
    noise = BandedToeplitz(noise_multiplier=1e4, coefficients=(1.0, 0.5, 0.25))
    plan = PrivacyPlan.calibrate(
        examples=60, steps=STEPS, noise_multiplier=1e4, delta=1e-5, participation=FullBatch(), mechanism=noise
    )

    def site(place):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        choices = {"rounds": ROUNDS, "plan": plan, "directory": place, "seed": 1, "threads": 1}
        return sfumato.private_rounds(model, optimizer, data, **choices)

    def moved(run, weights):
        return {name: value - weights[name] for name, value in run.train(weights).items()}

    whole, broken = site(tmp_path / "whole"), site(tmp_path / "broken")
    expected = [moved(whole, weights_of(number)) for number in range(ROUNDS)]
    turn = next(iter(broken))
    turn.receive(weights_of(0))
    steps = iter(turn)
    next(steps)
    checkpoint = (tmp_path / "broken" / names.CHECKPOINT).read_bytes()
    steps.close()
    (tmp_path / "broken" / names.CHECKPOINT).write_bytes(checkpoint)
    broken = site(tmp_path / "broken")
    broken.train(weights_of(4))
    for number in (1, 2):
        for name, value in moved(broken, weights_of(number + 5)).items():
            torch.testing.assert_close(value, expected[number][name], rtol=0, atol=2)  # noise: 80
    assert broken.statement.circumstances.steps_lost == 1
    assert sfumato.verify(tmp_path / "broken").holds


@pytest.mark.parametrize("given", [{"rounds": 4}, {"rounds": 0}, {"rounds": 2.0}])
def test_rounds_are_a_number_that_divides_the_steps(data, tmp_path, given):
    with pytest.raises(SfumatoError, match="rounds"):
        begun(data, tmp_path, **given)


def test_an_order_that_is_not_that_of_a_round_is_refused(data, tmp_path):
    run = begun(data, tmp_path)
    turn = next(iter(run))
    with pytest.raises(SfumatoError, match="round 1 of 3 has no weights to start from"):
        next(iter(turn))
    turn.receive(weights_of(0))
    with pytest.raises(SfumatoError, match="round 1 of 3 is not finished"):
        turn.weights()
    with pytest.raises(SfumatoError, match="call private_rounds"):
        next(iter(run._steps))


def test_a_run_of_rounds_is_resumed_with_its_number_of_rounds(data, tmp_path):
    begun(data, tmp_path).train(weights_of(0))
    with pytest.raises(SfumatoError, match="rounds"):
        begun(data, tmp_path, rounds=2)


def without(kind, number=None):
    return lambda lines: [one for one in lines if one[0] != kind or number not in (None, one[1]["round"])]


def changed(kind, number=None, **to):
    return lambda lines: [
        (name, {**body, **to} if name == kind and number in (None, body["round"]) else body) for name, body in lines
    ]


def last(kind):
    return lambda lines: without(kind)(lines[:-1]) + [one for one in lines if one[0] == kind] + lines[-1:]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (without(ledger.SENT, 1), "line 9 of the ledger, received, cannot stand there with its round"),
        (without(ledger.SENT, 2), "went out after 2 rounds alone"),
        (without(ledger.RECEIVED, 1), "line 6 of the ledger, release, cannot stand there with its step"),
        (lambda lines: without(ledger.SENT)(without(ledger.RECEIVED)(lines)), "line 2 of the ledger, release, cannot"),
        (changed(ledger.RECEIVED, round=9), "line 2 of the ledger, received, cannot stand there with its round"),
        (changed(ledger.RECEIVED, 0, step=1), "line 2 of the ledger, received, cannot stand there with its step"),
        (changed(ledger.RECEIVED, 1, step=1), "line 6 of the ledger, received, cannot stand there with its step"),
        (changed(ledger.RECEIVED, 1, step=3), "line 6 of the ledger, received, cannot stand there with its step"),
        (changed(ledger.SENT, round=0), "line 9 of the ledger, sent, cannot stand there with its round"),
        (changed(ledger.SENT, sha256="0" * 64), "is not what went out after round 3"),
        (last(ledger.SENT), "line 5 of the ledger, received, cannot stand there with its round"),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], "line 4 of the ledger, sent, cannot stand there"),
        (last(ledger.RECEIVED), "line 2 of the ledger, release, cannot stand there with its step"),
        (
            lambda lines: [*lines[:-1], ("received", {**lines[1][1], "round": 3, "step": 6}), lines[-1]],
            "line 14 of the",
        ),
    ],
)
def test_verify_reads_the_lines_of_rounds(data, tmp_path, change, found):
    """A writer who leaves one out, or adds, moves or changes one, is found even if the chain is made again."""
    all_rounds(data, tmp_path)
    path, previous, lines = tmp_path / names.LEDGER, None, []
    for kind, body in change([(one.kind, one.body) for one in ledger.read(path)]):
        previous = ledger.Entry.after(previous, kind, body)
        lines.append(previous.line())
    path.write_bytes(b"".join(lines))
    read = sfumato.verify(tmp_path)
    assert not read.holds
    assert found in json.dumps([one.found for one in read.checks if not one.holds])


@pytest.mark.parametrize("rounds", [-1, 0, 4, 7])
def test_verify_finds_rounds_that_do_not_divide_the_steps(data, tmp_path, rounds):
    """A statement is the site's own: it may say anything."""
    run = begun(data, tmp_path)
    run.train(weights_of(0))
    run.finish()
    statement = tmp_path / names.STATEMENT
    written = json.loads(statement.read_text())
    written["circumstances"]["rounds"] = rounds
    statement.write_text(json.dumps(written))
    found = f"6 steps are not {rounds} rounds of equal length" if rounds else "line 2 of the ledger, received, cannot"
    assert found in sfumato.verify(tmp_path).line


def test_steps_are_lost_once_where_weights_change_again_before_a_step(data, tmp_path, monkeypatch):
    """A process ends between the line of the weights that came in and its first step."""
    turn = next(iter(begun(data, tmp_path)))
    turn.receive(weights_of(0))
    steps = iter(turn)
    next(steps)
    checkpoint = (tmp_path / names.CHECKPOINT).read_bytes()
    steps.close()
    (tmp_path / names.CHECKPOINT).write_bytes(checkpoint)
    turn = next(iter(begun(data, tmp_path)))
    turn.receive(weights_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(resume, "open_key", lambda *given, **more: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            next(iter(turn))
    run = begun(data, tmp_path)
    for number in range(ROUNDS):
        run.train(weights_of(number + 2))
    assert kinds(tmp_path)[:5] == ["begin", "received", "release", "lost", "received"]
    assert kinds(tmp_path).count("lost") == 1
    assert run.statement.circumstances.steps_lost == 1
    assert sfumato.verify(tmp_path).holds
