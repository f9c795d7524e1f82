"""A ledger that no writer wrote, its chain made good again, never passes: its lines follow a closed schema."""

import hashlib
import json
import random
import re
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

import sfumato
from sfumato import SfumatoError
from sfumato.privacy import PrivacyPlan, Statement, ledger
from sfumato.privacy.ledger import KINDS, Entry
from sfumato.privacy.statements.wording import ProcessCounts
from sfumato.runs import directory as names
from sfumato.runs import federation
from sfumato.runs.directory import RunDirectory, file_hash

OPAQUE = {"salt", "release", "data_commitment", "settings_commitment", "key_check", "sha256"}
"""Digests of what is secret or elsewhere: with others of the same form the lines say the same."""


def weights_of(shift):
    torch.manual_seed(0)
    return {name: value + shift for name, value in nn.Linear(3, 2).state_dict().items()}


def site(directory):
    model = nn.Linear(3, 2)
    data = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    choices = {"rounds": 2, "steps": 6, "noise_multiplier": 4.0, "batch_size": 40, "public": True, "threads": 1}
    return sfumato.private_rounds(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, directory=directory, **choices
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A site's run of two rounds of three steps, of which the second one was lost, by two processes: a line of each
    kind but figures and copies."""
    place = tmp_path_factory.mktemp("sites") / "run"
    turn = next(iter(site(place)))
    turn.receive(weights_of(0))
    steps = iter(turn)
    next(steps)
    steps.close()
    turn = next(iter(site(place)))
    turn.receive(weights_of(0))
    checkpoint = (place / names.CHECKPOINT).read_bytes()
    next(steps := iter(turn))
    steps.close()
    (place / names.CHECKPOINT).write_bytes(checkpoint)
    run = site(place)
    for number in (1, 2):
        run.train(weights_of(number))
    computed = ProcessCounts(processes=2, machines=1)
    written = json.loads((place / names.STATEMENT).read_text())
    (place / names.STATEMENT).write_text(json.dumps(replace(Statement.from_dict(written), computed=computed).to_dict()))
    begin, *lines = lines_of(place)
    workers = {"processes": 2, "machines": 1}
    end = lines.pop()[1] | {"statement": file_hash(place / names.STATEMENT)}
    write(place, [begin, ("workers", workers), *lines, ("end", end)])
    assert sfumato.verify(place).holds
    assert {kind for kind, _ in lines_of(place)} == KINDS.keys() - {"figures", "copy"}
    return place


def lines_of(place):
    return [(entry.kind, dict(entry.body)) for entry in ledger.read(place / names.LEDGER)]


class Text:
    """JSON that Python can't write, or that isn't canonical."""

    def __init__(self, text):
        self.text = text


def write(place, lines):
    """The lines as a ledger whose chain holds; by their text, since Python refuses to write some."""
    previous, content = ledger.ORIGIN, []
    for index, (kind, body) in enumerate(lines):
        plain = {name: "\0" if isinstance(value, Text) else value for name, value in sorted(body.items())}
        texts = [body[name].text for name in plain if isinstance(body[name], Text)]
        text = json.dumps(plain, separators=(",", ":"))
        for one in texts:
            text = text.replace('"\\u0000"', one, 1)
        known = json.dumps(kind)
        digest = hashlib.sha256(f'[{index},{known},{text},"{previous}"]'.encode()).hexdigest()
        content.append(f'{{"body":{text},"hash":"{digest}","index":{index},"kind":{known},"previous":"{previous}"}}\n')
        previous = digest
    (place / names.LEDGER).write_text("".join(content))


def test_the_chain_of_the_tests_is_that_of_the_package(finished, tmp_path):
    lines, entry, expected = lines_of(finished), None, b""
    write(tmp_path, lines)
    for kind, body in lines:
        entry = Entry.after(entry, kind, body)
        expected += entry.line()
    assert (tmp_path / names.LEDGER).read_bytes() == expected


def idle(kind, body):
    """Whether the line is about a copy that took no step."""
    return kind == "copy" and body["first"] > body["last"]


def meaning(lines):
    """What the lines say besides opaque digests: the set of lines between two releases, in order.

    Openings are left out, and so are copies that took no step and weights that came in again within a round.
    """
    gaps, processes, rounds = [set()], [], set()
    for kind, body in lines:
        last = kind == "sent" and body["round"] == 1  # these weights are the model
        said = {
            name: len(value) if name in OPAQUE and not last and re.fullmatch("[0-9a-f]*", str(value)) else value
            for name, value in body.items()
        }
        if kind == "workers":
            processes.append((body["processes"], body["machines"]))
        elif kind != "opening" and not (kind == "received" and body["round"] in rounds) and not idle(kind, body):
            gaps[-1].add(json.dumps([kind, said], sort_keys=True))
        if kind == "received":
            rounds.add(body["round"])
        elif kind == "release":
            gaps.append(set())
    return gaps, [max(one) for one in zip(*processes, strict=True)]


NUMBERS = (-1, 0, 1, 2, 3, 5, 6, 7, 2**31, 2**63, -(2**63), 10**12, -(10**12), 10**4000, -(10**4000))
ODD = (
    None,
    True,
    False,
    0.0,
    1.0,
    -0.5,
    1e300,
    float("inf"),
    float("nan"),
    "",
    "0",
    "x" * 10**6,
    [],
    {},
    [0],
    {"a": 0},
)
DIGITS = "0123456789abcdef"


def value(draw, like=None):
    """A value for a field: near to what stands there, of another type, huge, long or deep."""
    if type(like) is int and draw.random() < 0.6:
        return draw.choice((like - 1, like + 1, -like - 1, float(like), str(like), bool(like), draw.choice(NUMBERS)))
    if type(like) is str and draw.random() < 0.6:
        other = "".join(draw.choices(DIGITS, k=len(like)))
        return draw.choice((like.upper() + "A", like[1:], like + "0", like + "\n", f"{like[:-1]}g", other, [like]))
    if draw.random() < 0.2:
        depth = draw.choice((10, 300, 900, 990, 1000, 3000, 100_000))
        return Text(draw.choice(("[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth)))
    if draw.random() < 0.1:
        return Text(draw.choice(("9" * 5000, "1e999", "-0", "1.00", "Infinity", '{"a":0,"a":0}')))
    return draw.choice((*NUMBERS, *ODD, "".join(draw.choices(DIGITS, k=draw.choice((8, 32, 64))))))


def drawn_line(draw):
    """A line of any kind with the fields of its kind."""
    kind = draw.choice([*KINDS, "noise"])
    return kind, {name: drawn_value(draw, name) for name in KINDS.get(kind, {"step": None})}


def drawn_value(draw, name):
    if name in ("step", "first", "last", "round", "steps_taken", "processes", "machines"):
        return draw.randrange(7)
    return "".join(draw.choices(DIGITS, k={"salt": 32}.get(name, 64)))


def changed(draw, lines):
    """The lines with one change."""
    at = draw.randrange(len(lines))
    kind, body = lines[at]
    what = draw.choice(
        ("field", "field", "field", "lack", "add", "drop", "twice", "swap", "move", "kind", "line", "many")
    )
    if what == "lack" and body:
        body = {name: one for name, one in body.items() if name != draw.choice([*body])}
    elif what == "add":
        body = body | {draw.choice(("more", "", "step", "salt", "kept", "figures", "first", "\ud800")): value(draw)}
    elif what == "field" and body:
        name = draw.choice([*body])
        body = body | {name: value(draw, body[name])}
    elif what == "kind":
        kind = draw.choice([*KINDS, "", "Release", "x" * 1000])
    lines = [*lines[:at], (kind, body), *lines[at + 1 :]]
    if what == "drop":
        del lines[at]
    elif what == "twice":
        lines.insert(draw.randrange(len(lines) + 1), lines[at])
    elif what == "swap":
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif what == "move":
        lines.insert(draw.randrange(len(lines)), lines.pop(at))
    elif what == "line":
        lines.insert(at, drawn_line(draw))
    elif what == "many" and draw.random() < 0.1:
        lines[at:at] = [lines[at]] * 2_000
    return lines


def changed_by(seed, lines):
    draw, found = random.Random(seed), lines
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        found = changed(draw, found) if found else lines
    return found


def passing(finished, tmp_path, seeds):
    """Verifies a changed ledger for each seed. Returns those that pass, which must say the same as the run's own."""
    lines, found = lines_of(finished), []
    place = shutil.copytree(finished, tmp_path / "run")
    for seed in seeds:
        write(place, mutant := changed_by(seed, lines))
        try:
            holds = sfumato.verify(place).holds
        except SfumatoError:  # this is no finished run
            holds = False
        if holds:
            assert meaning(mutant) == meaning(lines), f"seed {seed}"
            found.append(seed)
    return found


def test_no_ledger_that_says_something_else_passes(finished, tmp_path):
    assert len(passing(finished, tmp_path, range(200))) < 50, "most changes change what is said"


@pytest.mark.slow
def test_nor_does_one_of_2000(finished, tmp_path):
    passing(finished, tmp_path, range(2000))


def test_steps_that_the_statement_does_not_name_are_found_before_their_epsilon_is_computed(
    finished, tmp_path, monkeypatch
):
    """That of 18,000 steps would take minutes."""
    place = shutil.copytree(finished, tmp_path / "run")
    begin, *lines = lines_of(place)
    copies = [("copy", {"first": 0, "last": 5, "salt": f"{number:032x}"}) for number in range(3000)]
    write(place, [begin, *copies, *lines])
    monkeypatch.setattr(PrivacyPlan, "epsilon", None)
    assert "plan and ledger give in circumstances" in sfumato.verify(place).line


def test_a_site_that_is_not_finished_shows_no_rounds_of_a_changed_ledger(finished, tmp_path):
    *lines, _ = lines_of(finished)
    place = shutil.copytree(finished, tmp_path / "run")
    for seed in range(100):
        write(place, changed_by(seed, lines))
        found = federation._read(RunDirectory(place))
        assert not found.holds
        if found.end == federation.UNFINISHED:
            assert (found.sent in (0, 1, 2), {*found.received} <= {0, 1}) == (True, True), f"seed {seed}"
