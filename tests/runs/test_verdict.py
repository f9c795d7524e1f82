"""`verify`: holds for what training left, and for nothing else."""

import json
import os
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from sfumato import Gaussian, PrivacyPlan, SfumatoError, Statement, verify
from sfumato.privacy import Circumstances, Entry, ledger
from sfumato.runs.checkpoint import METADATA, read_safetensors, to_bytes
from sfumato.runs.directory import file_hash


def test_a_run_as_training_left_it_holds(one_run):
    verdict = verify(one_run.directory)
    assert verdict.holds
    assert "a record cannot prove its own honesty" in verdict.line


def edit_json(path, **changes):
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **changes}))


def rewrite(copy, change):
    """A ledger made anew from changed (kind, body) pairs: its chain holds, and it is not the record of this run."""
    events = change([(entry.kind, dict(entry.body)) for entry in ledger.read(copy / "ledger.jsonl")])
    previous, lines = None, b""
    for kind, body in events:
        previous = Entry.after(previous, kind, body)
        lines += previous.line()
    (copy / "ledger.jsonl").write_bytes(lines)


def another_model(copy):
    weights = load_file(copy / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name] + 1e-6
    _, metadata = read_safetensors(copy / "model.safetensors")
    (copy / "model.safetensors").write_bytes(to_bytes(weights, metadata))


def better_plan(copy):
    """Everything but the ledger tells of ten times the noise."""
    plan = PrivacyPlan.from_dict(json.loads((copy / "plan.json").read_text()))
    forged = replace(plan, mechanism=Gaussian(noise_multiplier=10 * plan.noise_multiplier))
    (copy / "plan.json").write_text(json.dumps(forged.to_dict()))
    facts = Circumstances.from_dict(json.loads((copy / "statement.json").read_text())["circumstances"])
    statement = Statement(plan=forged, circumstances=facts).to_dict()
    (copy / "statement.json").write_text(json.dumps(statement))


def zeros(copy):
    with open(copy / "ledger.jsonl", "ab") as file:
        file.write(bytes(20) + b"\n{}\n")


def hidden_seed(copy):
    data = json.loads((copy / "statement.json").read_text())
    data["circumstances"]["seeded"] = False
    (copy / "statement.json").write_text(json.dumps(data))


def ended_after(copy, steps):
    """Statement, model and ledger agree on it."""
    written = json.loads((copy / "statement.json").read_text())
    plan, facts = PrivacyPlan.from_dict(written["plan"]), Circumstances.from_dict(written["circumstances"])
    conclude_with(
        copy, Statement(plan=plan, circumstances=replace(facts, steps_taken=steps)).to_dict(), steps_taken=steps
    )


DAMAGE = {
    "epsilon lowered in the statement": (
        lambda copy: edit_json(copy / "statement.json", epsilon=0.1),
        "statement.json differs from what plan and ledger give in epsilon",
    ),
    "sentence changed": (lambda copy: edit_json(copy / "statement.json", sentence="It is private."), "in sentence"),
    "a seed hidden": (hidden_seed, "line 2 of the ledger, release, cannot stand there with its step"),
    "statement missing": (lambda copy: (copy / "statement.json").unlink(), "statement.json does not exist"),
    "plan changed": (
        lambda copy: edit_json(copy / "plan.json", steps=11),
        "begin, cannot stand there with its plan, plan_fingerprint",
    ),
    "plan of another run": (better_plan, "begin, cannot stand there with its plan, plan_fingerprint"),
    "another model": (another_model, "model.safetensors is not the file that the ledger ends with"),
    "model missing": (lambda copy: (copy / "model.safetensors").unlink(), "model.safetensors: No such file"),
    "zeros and more in the ledger": (zeros, "its last line is incomplete"),
    "ledger missing": (lambda copy: (copy / "ledger.jsonl").unlink(), "ledger.jsonl does not exist"),
    "ledger line dropped": (
        lambda copy: rewrite(copy, lambda events: [*events[:3], *events[4:]]),
        "line 4 of the ledger, release, cannot stand there with its step",
    ),
    "ledger line repeated": (
        lambda copy: rewrite(copy, lambda events: [*events[:3], events[2], *events[3:]]),
        "line 4 of the ledger, release, cannot stand there with its step",
    ),
    "ledger without an end": (lambda copy: rewrite(copy, lambda events: events[:-1]), "it has no end"),
    "ledger without a beginning": (
        lambda copy: rewrite(copy, lambda events: events[1:]),
        "line 1 of the ledger, release, cannot stand there with its kind",
    ),
    "ledger without a line": (lambda copy: rewrite(copy, lambda events: []), "it has no end"),
    "ledger with a line behind its end": (
        lambda copy: rewrite(copy, lambda events: [*events, events[-1]]),
        "line 15 of the ledger, end, cannot stand there with its kind",
    ),
    "ledger of more steps": (
        lambda copy: rewrite(
            copy, lambda events: [*events[:-1], ("release", {**events[-2][1], "step": 12}), events[-1]]
        ),
        "line 14 of the ledger, release, cannot stand there with its step",
    ),
    "ledger of fewer steps": (
        lambda copy: rewrite(copy, lambda events: [*events[:5], events[-1]]),
        "line 6 of the ledger, end, cannot stand there with its steps_taken",
    ),
    "a release of another plan": (
        lambda copy: rewrite(
            copy, lambda events: [*events[:3], ("release", {**events[3][1], "plan": "0" * 64}), *events[4:]]
        ),
        "line 4 of the ledger, release, cannot stand there with its plan",
    ),
    "all releases of another plan": (
        lambda copy: rewrite(
            copy,
            lambda events: [(kind, body | {"plan": "0" * 64} if kind == "release" else body) for kind, body in events],
        ),
        "line 2 of the ledger, release, cannot stand there with its plan",
    ),
    "an end before the first step": (lambda copy: ended_after(copy, -1), "end, cannot stand there with its steps"),
    "an end within a step": (lambda copy: ended_after(copy, 1.5), "end, cannot stand there with its steps"),
}


def other_format(copy):
    """The statement of another format, with a ledger and a model to match."""
    written = json.loads((copy / "statement.json").read_text())
    conclude_with(copy, {**Statement.from_dict(written).to_dict(), "format": 2})


DAMAGE["a statement of another format"] = (other_format, "differs from what plan and ledger give in format")


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_named(copy, damage):
    break_it, found = DAMAGE[damage]
    break_it(copy)
    verdict = verify(copy)
    assert not verdict.holds
    assert found in verdict.line
    assert verdict.line.startswith("The statement does NOT follow")


def test_a_key_that_cannot_be_deleted_is_named(copy, monkeypatch):
    (copy / "dice.key").write_text("00")
    monkeypatch.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError()))
    assert "anyone who has it can subtract the noise" in verify(copy).line
    monkeypatch.undo()
    assert verify(copy).holds


@pytest.mark.parametrize("name", ["plan.json", "statement.json", "ledger.jsonl"])
def test_a_name_that_stands_twice_is_damage(copy, name):
    """Python would keep the last of them, and a reader sees the first."""
    text = (copy / name).read_text()
    (copy / name).write_text(
        text.replace('"steps"', '"steps": 60000, "steps"', 1).replace('"index"', '"index":0,"index"', 1)
    )
    verdict = verify(copy)
    assert not verdict.holds
    assert name in verdict.line


def test_a_name_that_stands_twice_in_the_model_file_is_damage(copy):
    tensors, metadata = read_safetensors(copy / "model.safetensors")
    twice = metadata[METADATA].replace('"classes"', '"classes": [], "classes"', 1)
    (copy / "model.safetensors").write_bytes(to_bytes(tensors, {METADATA: twice}))
    rewrite(
        copy, lambda events: [*events[:-1], ("end", {**events[-1][1], "model": file_hash(copy / "model.safetensors")})]
    )
    assert "the name 'classes' appears twice" in verify(copy).line


@pytest.mark.parametrize("name", ["model.safetensors", "statement.json"])
def test_a_pipe_in_place_of_a_file_is_damage_and_never_read(copy, name):
    """Reading from it would wait for ever for somebody to write."""
    (copy / name).unlink()
    os.mkfifo(copy / name)
    assert f"{name} is a pipe" in verify(copy).line


def test_what_is_no_finished_run_is_refused(copy, tmp_path):
    (copy / "done").unlink()
    rewrite(copy, lambda events: events[:-1])
    with pytest.raises(SfumatoError, match="is not finished"):
        verify(copy)
    with pytest.raises(SfumatoError, match="does not exist"):
        verify(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SfumatoError, match="is no run directory"):
        verify(tmp_path / "empty")


def test_the_statement_inside_the_model_is_the_run_s(one_run):
    _, metadata = read_safetensors(one_run.directory / "model.safetensors")
    inside = json.loads(metadata[METADATA])["statement"]
    assert inside == json.loads((one_run.directory / "statement.json").read_text())


def test_kept_weights_of_a_step_that_is_no_number_are_a_verdict(copy):
    rewrite(copy, lambda events: [*events[:-1], ("end", {**events[-1][1], "kept": {"first": "0" * 64}})])
    assert "the statement names steps" in verify(copy).line


@pytest.mark.parametrize("said", [0, 2, 3, 4])
def test_how_many_steps_were_lost_is_what_the_ledger_says(copy, said):
    lines = [("lost", {"first": 3, "last": 4}), ("lost", {"first": 2, "last": 4})]
    rewrite(copy, lambda events: [*events[:6], *lines, *events[6:]])
    written = json.loads((copy / "statement.json").read_text())
    plan, facts = PrivacyPlan.from_dict(written["plan"]), Circumstances.from_dict(written["circumstances"])
    conclude_with(copy, Statement(plan=plan, circumstances=replace(facts, steps_lost=said)).to_dict())
    assert verify(copy).holds == (said == 3)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"more": None},
        {"epsilon": ...},  # null, as of every run by a seed
        {"steps_taken": 12.0},
        {"promises": 0},
    ],
)
def test_a_statement_has_the_fields_and_types_that_follow_and_no_others(copy, change):
    written = json.loads((copy / "statement.json").read_text())
    conclude_with(copy, {name: one for name, one in (written | change).items() if one is not ...})
    assert f"differs from what plan and ledger give in {next(iter(change))}" in verify(copy).line


@pytest.mark.parametrize(
    "change",
    [{"rounds": 0.0}, {"steps_lost": False}, {"key_bits": "256"}, {"noise_sampler": None}, {"seeded": 1}, {"more": 0}],
)
def test_circumstances_have_their_own_types_alone(copy, change):
    written = json.loads((copy / "statement.json").read_text())
    conclude_with(copy, {**written, "circumstances": written["circumstances"] | change})
    assert "circumstances have missing, unknown or ill-typed fields" in verify(copy).line


def test_a_model_with_another_statement_inside_is_found(copy):
    tensors, metadata = read_safetensors(copy / "model.safetensors")
    about = json.loads(metadata[METADATA])
    about["statement"]["sentence"] = "It is private."
    (copy / "model.safetensors").write_bytes(to_bytes(tensors, {METADATA: json.dumps(about, sort_keys=True)}))
    last = {"model": file_hash(copy / "model.safetensors")}
    rewrite(copy, lambda events: [*events[:-1], ("end", events[-1][1] | last)])
    assert "the statement inside model.safetensors is not that of statement.json" in verify(copy).line


def test_the_published_files_alone_can_be_verified(copy, tmp_path):
    given = tmp_path / "given"
    given.mkdir()
    for name in ("model.safetensors", "statement.json", "plan.json", "ledger.jsonl"):
        (given / name).write_bytes((copy / name).read_bytes())
    assert verify(given).holds


# -- a run that won a search -------------------------------------------------------------------------------------------


def conclude_with(copy, statement, **more):
    """What the end of a search leaves: statement, model and the ledger's last line speak of the same promise."""
    (copy / "statement.json").write_text(json.dumps(statement))
    _, metadata = read_safetensors(copy / "model.safetensors")
    about = {**json.loads(metadata[METADATA]), "statement": statement}
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").write_bytes(to_bytes(weights, {METADATA: json.dumps(about, sort_keys=True)}))
    last = more | {
        key: file_hash(copy / name) for key, name in (("model", "model.safetensors"), ("statement", "statement.json"))
    }
    rewrite(copy, lambda events: [*events[:-1], ("end", {**events[-1][1], **last})])
