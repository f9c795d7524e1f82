"""A run is opened under a salt that directory, list and ledger hold; what a copy of it may have taken is counted."""

import contextlib
import os
import secrets
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from sfumato import FullBatch, PrivacyPlan, SfumatoError
from sfumato.observers.observer import Observer
from sfumato.privacy import Ledger, ledger
from sfumato.privacy.mechanism import Tree
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.openings import open_run
from sfumato.runs.owner import store, uses
from sfumato.runs.owner.lines import DataIdentity, DataUse, RunOpened
from sfumato.runs.owner.store import History

STEPS, DELTA = 4, 1e-3


class Kill(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """One owner, at ./home."""
    return owner(tmp_path / "home", monkeypatch)


def owner(path, monkeypatch):
    monkeypatch.setenv("SFUMATO_HOME", str(path))
    path.mkdir()
    (path / "owner.key").write_text("00" * 32)
    (path / "owner.key").chmod(0o600)
    return path


def records():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(60, 6, generator=generator), torch.arange(60) % 3


def asked(**choices):
    known = {"steps": STEPS, "noise_multiplier": 4.0, "delta": DELTA, "batch_size": 20, "threads": 1, "name": "site"}
    return {name: value for name, value in {**known, **choices}.items() if value is not None}


def network():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def steps(directory, until=STEPS, **choices):
    run = sfumato.private_steps(*network(), records(), directory=directory, **asked(**choices))
    for step in run:
        if step.number == until < STEPS:
            break
    return run


def rounds(directory, until=STEPS, **choices):
    run = sfumato.private_rounds(*network(), records(), directory=directory, rounds=STEPS, **asked(**choices))
    while (done := run.completed) < until:
        run.train({name: value + 0.1 * done for name, value in network()[0].state_dict().items()})
    return run


class Left(BaseException):
    """A training is left within its steps."""


class LeftAfter(Observer):
    def __init__(self, number):
        self.number = number

    def on_step_end(self, step):
        if step == self.number:
            raise Left


def train(directory, until=STEPS, **choices):
    path = directory.parent.parent / "images.npz"
    if not path.exists():
        images = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
        np.savez(path, x=images, y=np.arange(60) % 2)
    chosen = asked(name=None, **choices)
    observers = [] if until == STEPS else [LeftAfter(until)]
    try:
        return sfumato.train("linear", f"npz:{path}", directory=directory, observers=observers, **chosen)
    except Left:
        return None


KINDS = {"train": train, "steps": steps, "rounds": rounds}


def lines(directory, kind):
    return [dict(entry.body) for entry in ledger.read(directory / names.LEDGER) if entry.kind == kind]


def openings():
    return [one for one in store.read().lines if isinstance(one, RunOpened)]


def total():
    """What the owner's runs cost together."""
    data = next(DataIdentity(one.data, one.places) for one in store.read().lines if isinstance(one, DataUse))
    (found,) = uses.uses_report(data)["together"]
    return found["runs"], found["epsilon"]


class Writes:
    """Ends the process before or after a write of an opening."""

    def __init__(self, patch):
        self.due, self.kills = -1, 0
        self._watch(patch, RunDirectory, "write_json", 0, lambda name, *_: name == names.OPENED)
        self._watch(patch, History, "append", 2, lambda line: isinstance(line, RunOpened))
        self._watch(patch, Ledger, "append", 4, lambda kind, _: kind == ledger.OPENING)

    def _watch(self, patch, kind, name, point, concerns):
        original = getattr(kind, name)

        def watched(own, *given, **named):
            if not concerns(*given):
                return original(own, *given, **named)
            self._pass(point)
            result = original(own, *given, **named)
            self._pass(point + 1)
            return result

        patch.setattr(kind, name, watched)

    def _pass(self, point):
        if point == self.due:
            self.due, self.kills = -1, self.kills + 1
            raise Kill


@pytest.mark.parametrize("kind", KINDS)
def test_kills_between_the_three_writes_end_in_the_same_bytes_and_the_same_total(tmp_path, monkeypatch, kind):
    """Four openings, each killed at five places: 60 kills in all."""
    real = secrets.token_hex

    def run(place, kills):
        owner(tmp_path / f"owner of {place}", monkeypatch)
        directory = tmp_path / place / "run"
        with monkeypatch.context() as patch:
            written = lambda: lines(directory, ledger.OPENING) if (directory / names.LEDGER).exists() else ()  # noqa: E731
            chosen = {16: lambda: f"{len(written()):032x}", 32: lambda: "ab" * 32}
            patch.setattr(secrets, "token_hex", lambda size: chosen.get(size, lambda: real(size))())
            patch.setattr(secrets, "token_bytes", lambda size: bytes(size))
            writes = Writes(patch)
            for until in (1, 2, 3, STEPS):
                for due in range(5) if kills else ():
                    writes.due = due
                    with pytest.raises(Kill):
                        KINDS[kind](directory, until)
                KINDS[kind](directory, until)
        assert writes.kills == 20 * kills
        found = [(directory / name).read_bytes() for name in (names.LEDGER, names.MODEL, names.STATEMENT)]
        assert sfumato.verify(directory).holds
        return found, total(), list(dict.fromkeys(one.salt for one in openings()))

    assert run("once", kills=False) == run("killed", kills=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_from_a_backup_is_refused_and_names_both_openings(tmp_path, kind):
    directory, backup = tmp_path / "runs" / "site", tmp_path / "backup"
    KINDS[kind](directory, 1)
    shutil.copytree(directory, backup)
    KINDS[kind](directory, STEPS)
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    first, *_, last = openings()
    with pytest.raises(SfumatoError) as refused:
        KINDS[kind](directory, STEPS)
    assert f"knows its opening of {first.date}, at step 0" in str(refused.value)
    assert f"a later one of {last.date}, at step {last.step}" in str(refused.value)
    assert "give copy=True, which counts" in str(refused.value)
    assert len(lines(directory, ledger.OPENING)) == 1
    assert lines(directory, "release") == lines(backup, "release")
    assert total()[0] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_copy_may_have_taken_is_counted_in_ledger_statement_and_list(tmp_path, kind):
    directory, backup = tmp_path / "runs" / "site", tmp_path / "runs" / "backup"
    KINDS[kind](directory, 1)
    shutil.copytree(directory, backup)
    KINDS[kind](directory, STEPS)
    paid, others = len(lines(backup, "release")), openings()[1:]
    run = KINDS[kind](backup, STEPS, copy=True)
    assert lines(backup, ledger.COPY) == [{"first": paid, "last": STEPS - 1, "salt": others[-1].salt}]
    statement, plan = run.statement, run.statement.plan
    more = STEPS - paid
    assert statement.circumstances.steps_copied == more
    assert statement.epsilon == plan.with_copies(more).epsilon() > plan.epsilon()
    assert f"{STEPS} steps, and {more} more that a copy of this run may have taken, of the" in statement.sentence
    assert statement.to_dict()["epsilon"] > sfumato.Statement.from_dict(_json(directory)).epsilon
    assert sfumato.verify(backup).holds
    found = total()
    assert found[0] == 2
    assert found[1] == pytest.approx(statement.epsilon, abs=1e-5)
    if kind != "train":
        assert f"a copy of this run may have taken {more} steps with other noise" in run.note
    assert "steps_copied" not in _json(directory)["circumstances"]


def _json(directory):
    return RunDirectory(directory).read_json(names.STATEMENT)


def test_verify_finds_a_statement_without_the_copy(tmp_path):
    directory, backup = tmp_path / "site", tmp_path / "backup"
    steps(directory, 1)
    shutil.copytree(directory, backup)
    steps(directory)
    steps(backup, copy=True)
    honest = _json(backup)
    circumstances = {name: value for name, value in honest["circumstances"].items() if name != "steps_copied"}
    less = sfumato.Statement.from_dict({**honest, "circumstances": circumstances})
    RunDirectory(backup).write_json(names.STATEMENT, less.to_dict())
    assert "differs from what plan and ledger give in" in sfumato.verify(backup).line


def test_copies_that_take_turns_are_refused_each_time_and_counted_each_time(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    steps(one, 1)
    shutil.copytree(one, two)
    steps(one, 2)
    with pytest.raises(SfumatoError, match="another copy of it went on"):
        steps(two, 2)
    steps(two, 2, copy=True)
    with pytest.raises(SfumatoError, match="another copy of it went on"):
        steps(one, 3)
    assert [one.copy for one in openings()] == [False, False, True]
    steps(one, STEPS, copy=True)
    steps(two, STEPS, copy=True)
    assert [(body["first"], body["last"]) for body in lines(one, ledger.COPY)] == [(1, 3)]
    assert [(body["first"], body["last"]) for body in lines(two, ledger.COPY)] == [(1, 3), (2, 3)]
    assert total()[0] == 4, "of each opening beside another copy"


def test_two_copies_that_went_on_are_two(tmp_path):
    """One of them was opened twice, which is one copy."""
    places = [tmp_path / name for name in ("one", "two", "three")]
    steps(places[0], 1)
    for copied in places[1:]:
        shutil.copytree(places[0], copied)
    steps(places[0], 2)
    steps(places[0], 3)
    steps(places[1], 3, copy=True)
    steps(places[2], 3, copy=True)
    found = [(body["first"], body["last"], body["salt"]) for body in lines(places[2], ledger.COPY)]
    assert found == [(1, 3, openings()[2].salt), (1, 3, openings()[3].salt)]


def test_steps_that_a_copy_took_between_the_backup_and_its_next_opening_are_counted(tmp_path):
    directory, backup = tmp_path / "site", tmp_path / "backup"
    for step in sfumato.private_steps(*network(), records(), directory=directory, **asked()):
        if step.number == 1:
            shutil.copytree(directory, backup)
        if step.number == 2:
            break
    steps(directory, 3)
    assert openings()[-1].step == 2
    steps(backup, 2, copy=True)
    assert [(body["first"], body["last"]) for body in lines(backup, ledger.COPY)] == [(1, STEPS - 1)]


def test_a_copy_that_was_killed_between_list_and_ledger_is_counted_once(tmp_path, monkeypatch):
    directory, backup = tmp_path / "site", tmp_path / "backup"
    steps(directory, 1)
    shutil.copytree(directory, backup)
    steps(directory)
    with monkeypatch.context() as patch:
        writes = Writes(patch)
        for due in (1, 2, 3, 4):
            writes.due = due
            with pytest.raises(Kill):
                steps(backup, copy=True)
        assert writes.kills == 4
    steps(backup)  # the list has this copy already
    assert len(lines(backup, ledger.COPY)) == 1
    assert total()[0] == 2
    assert sfumato.verify(backup).holds


def test_a_list_that_does_not_know_the_run_goes_on(tmp_path, monkeypatch):
    directory = tmp_path / "site"
    steps(directory, 1)
    shutil.copytree(directory, tmp_path / "copy")
    key = (tmp_path / "home" / "owner.key").read_bytes()
    owner(tmp_path / "elsewhere", monkeypatch)
    (tmp_path / "elsewhere" / "owner.key").write_bytes(key)
    steps(tmp_path / "copy")
    assert lines(tmp_path / "copy", ledger.COPY) == []
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    steps(directory, copy=True)
    assert lines(directory, ledger.COPY) == [], "without another copy on the list, nothing is counted"


def test_a_salt_that_another_copy_has_used_is_not_drawn_from_again(tmp_path):
    """The backup holds the salt of the opening whose line its ledger lost."""
    directory = tmp_path / "site"
    steps(directory, 1)
    written = (directory / names.LEDGER).read_bytes()
    shutil.copytree(directory, tmp_path / "copy")
    steps(directory, 2)
    used = openings()[-1].salt
    steps(tmp_path / "copy", 2, copy=True)
    shutil.copy(directory / names.OPENED, tmp_path / "copy" / names.OPENED)
    (tmp_path / "copy" / names.LEDGER).write_bytes(written)
    checkpoint = directory / names.CHECKPOINT
    (tmp_path / "copy" / names.CHECKPOINT).unlink()
    assert checkpoint.exists()
    with Ledger(tmp_path / "copy" / names.LEDGER) as found:
        open_run(RunDirectory(tmp_path / "copy"), found, copy=True)
    assert used not in [body["salt"] for body in lines(tmp_path / "copy", ledger.OPENING)]


@pytest.mark.parametrize("point", [1, 3])
def test_copies_of_a_directory_whose_opening_was_killed_share_no_salt(tmp_path, monkeypatch, point):
    """Killed before or after the list, the salt of the opening is in both directories."""
    directory, twin = tmp_path / "site", tmp_path / "twin"
    steps(directory, 1)
    with monkeypatch.context() as patch:
        Writes(patch).due = point
        with pytest.raises(Kill):
            steps(directory, 2)
    shutil.copytree(directory, twin)
    with Ledger(twin / names.LEDGER) as one:
        open_run(RunDirectory(twin), one)
    with Ledger(directory / names.LEDGER) as other, contextlib.suppress(SfumatoError):
        open_run(RunDirectory(directory), other)
    first, *salts = [body["salt"] for place in (directory, twin) for body in lines(place, ledger.OPENING)]
    assert salts.count(first) == 1, "of the opening before the copy"
    assert len(set(salts)) == len(salts)


def test_an_opening_that_was_killed_many_times_counts_nothing(tmp_path, monkeypatch):
    steps(tmp_path / "site", 1)
    before = total()
    with monkeypatch.context() as patch:
        writes = Writes(patch)
        for due in (1, 3, 4, 3, 0, 2):
            writes.due = due
            with pytest.raises(Kill):
                steps(tmp_path / "site")
    run = steps(tmp_path / "site")
    assert lines(tmp_path / "site", ledger.COPY) == []
    assert run.statement.circumstances.steps_copied == 0
    assert total() == before


def test_steps_that_depend_on_each_other_are_not_counted_twice(tmp_path):
    plan = PrivacyPlan(
        population=60, participation=FullBatch(), mechanism=Tree(noise_multiplier=4.0), steps=STEPS, delta=DELTA
    )
    chosen = {"plan": plan, **dict.fromkeys(("steps", "noise_multiplier", "delta", "batch_size"))}
    steps(tmp_path / "site", 1, **chosen)
    shutil.copytree(tmp_path / "site", tmp_path / "copy")
    steps(tmp_path / "site", 2, **chosen)
    with pytest.raises(SfumatoError, match="steps of a copy cannot be counted with full-batch participation and tree"):
        steps(tmp_path / "copy", **chosen, copy=True)
    assert len(openings()) == 2


def test_a_copy_pays_in_the_budget_of_its_run(tmp_path):
    epsilon = PrivacyPlan.calibrate(
        examples=60, batch_size=20, steps=STEPS, noise_multiplier=4.0, delta=DELTA
    ).epsilon()
    sfumato.set_budget("site", epsilon=3 * epsilon, delta=DELTA)
    steps(tmp_path / "site", 1, budget="site")
    for name in ("copy", "other"):
        shutil.copytree(tmp_path / "site", tmp_path / name)
    before = sfumato.read_budget("site").used
    steps(tmp_path / "site", 2, budget="site")
    steps(tmp_path / "copy", 2, budget="site", copy=True)
    found = sfumato.read_budget("site")
    assert len(found.reservations) == 2
    assert before < found.used
    sfumato.set_budget("site", epsilon=found.epsilon * 1.01)
    with pytest.raises(SfumatoError, match="and would bring it to epsilon"):
        steps(tmp_path / "other", budget="site", copy=True)
    assert len(openings()) == 3


def test_a_directory_that_was_moved_meanwhile_is_named_as_such(tmp_path):
    run = rounds(tmp_path / "site", 1)
    os.rename(tmp_path / "site", tmp_path / "moved")
    with pytest.raises(SfumatoError, match="site was moved or deleted meanwhile"):
        run.train(network()[0].state_dict())
    assert not (tmp_path / "site").exists()
    going = iter(sfumato.private_steps(*network(), records(), directory=tmp_path / "a", **asked()))
    next(going)
    os.rename(tmp_path / "a", tmp_path / "b")
    with pytest.raises(SfumatoError, match="a was moved or deleted meanwhile"):
        next(going)
