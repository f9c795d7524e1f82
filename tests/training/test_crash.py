"""Crash safety: processes killed at each side effect, full disks, lost keys, and runs that are not what they were."""

import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from sfumato.cli import main
from sfumato.privacy import Ledger, PrivacyPlan, ledger
from sfumato.runs import checkpoint, directory, pins, verify
from sfumato.runs.directory import file_hash
from sfumato.training import loop
from sfumato.training.conclusion import finish
from sfumato.training.steps import PrivateTrainingSteps
from tests.killed import killed

ATTEMPT = str(Path(__file__).with_name("attempt.py"))
# The noise multiplier makes the accounting quick; it does not matter here.
COMMON = "train digits --noise-multiplier 8 --learning-rate 0.5 --seed 7 --device cpu --threads 1"
SHORT = f"{COMMON} --model linear --steps 3 --batch-size 32 --views 2 --shift 1 --ema 0.99 --micro-batch 12".split()
STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def start(home, forks, tmp_path_factory):
    """Run a command in a process of its own; gives its exit status."""
    scratch = tmp_path_factory.mktemp("server")
    printed, pipes = scratch / "printed.txt", [scratch / "requests", scratch / "answers"]
    for pipe in pipes:
        os.mkfifo(pipe)
    server = forks.start(ATTEMPT, *map(str, pipes))
    with open(pipes[0], "w") as requests, open(pipes[1]) as answers:

        def ask(**request):
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            return json.loads(answers.readline())

        def start(arguments, *, output=None, checkpoint_seconds=0.01, verb="start", **options):
            whole = [*arguments, *(["--output", str(output)] if output else [])]
            options |= {"arguments": whole, "printed": str(printed), "checkpoint_seconds": checkpoint_seconds}
            return ask(**{verb: options})

        start.printed = printed
        start(SHORT, output=scratch / "warm" / "run", verb="warm")
        yield start
    forks.join(*server)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """The short run, with nobody in its way."""
    output = tmp_path_factory.mktemp("short") / "run"
    assert main([*SHORT, "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The short run, stopped after two of its three steps and two checkpoints."""
    output = tmp_path_factory.mktemp("begun") / "run"
    with killed(loop, "descend", call=3) as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
        main([*SHORT, "--output", str(output)])
    assert checkpoint.Checkpoint.load(output / "checkpoint.safetensors").step == 2
    return output


@pytest.fixture
def unfinished(begun, tmp_path):
    """A copy of the begun run, to do things to."""
    return Path(shutil.copytree(begun, tmp_path / "run"))


def same_run(output: Path, whole: Path, steps: int) -> None:
    """What must hold of a run however often it was interrupted."""
    for name in ("model.safetensors", "statement.json", "metrics.jsonl", "plan.json"):
        assert file_hash(output / name) == file_hash(whole / name), name
    entries = ledger.read(output / "ledger.jsonl")
    assert [entry.body["step"] for entry in entries if entry.kind == "release"] == list(range(steps))
    assert [entry.kind for entry in entries] == ["begin", *["release"] * steps, "end"]
    verdict = verify(output)
    assert verdict.holds, verdict.line
    assert sorted(path.name for path in output.iterdir()) == sorted(path.name for path in whole.iterdir())
    assert [path.name for path in output.parent.iterdir()] == [output.name]


def refusal(capsys, arguments: list[str]) -> str:
    """The one line by which a command is refused."""
    capsys.readouterr()
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    *told, line = printed.err.splitlines()
    assert line.startswith("error: "), printed.err
    assert all(not other.startswith("error: ") for other in told)
    assert "; " in line
    return line


# -- killed ------------------------------------------------------------------------------------------------------------


def test_a_run_killed_at_each_of_its_side_effects_ends_with_the_same_bytes(start, short, tmp_path, monkeypatch):
    """Every write, rename and removal of a run in turn is where the process dies; writes die half done.

    Another process takes it up, which is this one: all that it knows of the dead one is on the disk. An fsync changes
    nothing that a process leaves; test_power.py cuts the power around each.
    """
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    count = tmp_path / "count"
    assert start(SHORT, output=tmp_path / "counted" / "run", count=str(count), checkpoint_seconds=-1.0) == 0
    same_run(tmp_path / "counted" / "run", short, STEPS)
    names = json.loads(count.read_text())
    assert len(names) > 30
    for place, name in enumerate(names, start=1):
        if name == "fsync":
            continue
        output = tmp_path / f"{place}" / "run"
        assert start(SHORT, output=output, kill_at=place, checkpoint_seconds=-1.0) == -signal.SIGKILL
        ended = (output / "done").exists()
        assert main([*SHORT, "--output", str(output)]) == (1 if ended else 0)
        same_run(output, short, STEPS)
        shutil.rmtree(output.parent)


def test_a_run_interrupted_from_the_keyboard_goes_on(start, short, tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", lambda *_: signal.raise_signal(signal.SIGINT))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
        try:
            assert main([*SHORT, "--output", str(tmp_path / "run")]) == 130
        finally:
            signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.splitlines()[-1].startswith("interrupted: ")
    assert main([*SHORT, "--output", str(tmp_path / "run")]) == 0
    same_run(tmp_path / "run", short, STEPS)


def test_a_torn_last_line_of_the_ledger_was_no_release(unfinished, short):
    with open(unfinished / "ledger.jsonl", "ab") as file:
        file.write(b'{"body":{"plan":"0123')
    assert main(["train", str(unfinished)]) == 0
    same_run(unfinished, short, STEPS)


def at_done(path, _):
    return path.name == "done"


@pytest.mark.parametrize("again", ["train", "finish"])
@pytest.mark.parametrize("ending", ["train", "finish"])
def test_a_run_killed_between_its_last_ledger_line_and_the_done_marker(unfinished, ending, again, capsys):
    with killed(finish, "write", at_done):
        main([ending, str(unfinished)])
    assert ledger.read(unfinished / "ledger.jsonl")[-1].kind == "end"
    model = (unfinished / "model.safetensors").read_bytes()
    (unfinished / "dice.key").unlink()  # neither key nor data are needed any more
    capsys.readouterr()
    assert main([again, str(unfinished), "--json"]) == 0
    taken = json.loads(capsys.readouterr().out)["steps"]
    assert taken == (3 if ending == "train" else 2)
    assert (unfinished / "model.safetensors").read_bytes() == model
    assert verify(unfinished).holds
    assert [entry.kind for entry in ledger.read(unfinished / "ledger.jsonl")].count("end") == 1
    assert "is finished" in refusal(capsys, [again, str(unfinished)])


def test_a_run_that_was_being_ended_early_takes_no_step_more(unfinished, capsys):
    """Its ledger has ended and its model is lost, so it can only be ended again; nothing is released after an end."""
    with killed(finish, "write", at_done):
        main(["finish", str(unfinished)])
    model = unfinished / "model.safetensors"
    expected = file_hash(model)
    model.unlink()
    before = (unfinished / "ledger.jsonl").read_bytes()
    line = refusal(capsys, ["train", str(unfinished)])
    assert f"the run in {unfinished} was being ended after 2 of 3 steps; complete it (sfumato finish" in line
    assert (unfinished / "ledger.jsonl").read_bytes() == before
    assert main(["finish", str(unfinished)]) == 0
    assert file_hash(model) == expected
    assert verify(unfinished).holds


COMMANDS_THAT_MEET_A_RUN = {
    "train": "train {run}",
    "the same command": f"{' '.join(SHORT)} --output {{run}}",
    "finish": "finish {run}",
    "verify": "verify {run}",
    "report": "report {run}",
    "predict": "predict {run} {image}",
    "evaluate": "evaluate {run} digits",
}


@pytest.mark.parametrize("marked", [True, False], ids=["done", "not marked as done"])
@pytest.mark.parametrize("command", COMMANDS_THAT_MEET_A_RUN.values(), ids=COMMANDS_THAT_MEET_A_RUN)
def test_whatever_meets_a_run_that_had_ended_deletes_its_key(short, tmp_path, command, marked, capsys):
    run = Path(shutil.copytree(short, tmp_path / "run"))
    for name in ("dice.key", "checkpoint.safetensors"):
        (run / name).write_text("what a kill has left")
    if not marked:
        (run / "done").unlink()
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    main(command.format(run=run, image=tmp_path / "image.png").split())
    assert sorted(path.name for path in run.iterdir()) == sorted(path.name for path in short.iterdir())
    capsys.readouterr()
    assert main(["verify", str(run)]) == 0


def test_a_run_that_was_cut_at_its_very_end_is_shown_once_and_not_trained_again(short, tmp_path, capsys, monkeypatch):
    run = Path(shutil.copytree(short, tmp_path / "run"))
    (run / "done").unlink()
    monkeypatch.delattr(loop, "take_steps")
    assert main([*SHORT, "--output", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == str(run)
    (run / "done").unlink()
    assert "learning_rate was 0.5 and is 0.25" in refusal(
        capsys, [*SHORT, "--learning-rate", "0.25", "--output", str(run)]
    )


@pytest.mark.parametrize("name", ["model.safetensors", "statement.json"])
def test_a_ledger_that_ends_with_another_file_concludes_nothing(short, tmp_path, name, capsys):
    run = Path(shutil.copytree(short, tmp_path / "run"))
    (run / "done").unlink()
    (run / name).write_bytes((run / name).read_bytes() + b" ")
    (run / "dice.key").write_text("what a kill has left")
    assert "is not finished" in refusal(capsys, ["verify", str(run)])
    assert (run / "dice.key").exists()


def test_a_secret_run_key_is_kept_for_the_whole_run(tmp_path):
    """Copies of one begun run take the step that was paid with the same participants and noise, and none beyond it."""
    secret = [word for word in SHORT if word not in ("--seed", "7")]
    with killed(loop, "descend"):
        main([*secret, "--output", str(tmp_path / "one" / "run")])
    assert (tmp_path / "one" / "run" / "dice.key").stat().st_mode & 0o777 == 0o600
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for name in ("one", "two"):
        assert main(["train", str(tmp_path / name / "run")]) == 0
    one, two = (ledger.read(tmp_path / name / "run" / "ledger.jsonl") for name in ("one", "two"))
    paid, *others = (
        left.body["release"] == right.body["release"]
        for left, right in zip(one, two, strict=True)
        if left.kind == "release"
    )
    assert paid
    assert not any(others)


def test_no_file_of_a_run_but_its_key_holds_the_key(begun, short):
    """Not even the check value by which the ledger knows it: with the key the noise could be subtracted."""
    secret = (begun / "dice.key").read_text().strip()
    # The key of the same command, though deleted, is the same.
    for path in filter(Path.is_file, [*begun.rglob("*"), *short.rglob("*")]):
        content = path.read_bytes()
        held = secret.encode() in content.lower() or bytes.fromhex(secret) in content
        assert held == (path.name == "dice.key"), path.name


# -- two at once -------------------------------------------------------------------------------------------------------


def test_two_processes_cannot_write_one_run(start, unfinished, short, capsys):
    with Ledger(unfinished / "ledger.jsonl"):
        for verb in ("train", "finish"):
            line = refusal(capsys, [verb, str(unfinished)])
            assert f"another process is writing the run in {unfinished}" in line
        assert start(["train", str(unfinished)]) == 1
    assert main(["train", str(unfinished)]) == 0
    same_run(unfinished, short, STEPS)


# -- full and unwritable disks -----------------------------------------------------------------------------------------


def fill_the_disk(patch: pytest.MonkeyPatch, place: int, seen: list[str]) -> None:
    """From the given call on, nothing can be written any more: half a write, then errors; removing still works."""

    def full(name, call):
        def refuse(*arguments, **options):
            seen.append(name)
            if len(seen) < place:
                return call(*arguments, **options)
            if name == "write" and len(seen) == place:
                return call(arguments[0], arguments[1][: len(arguments[1]) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return refuse

    for name in ("write", "fsync", "mkdir"):
        patch.setattr(os, name, full(name, getattr(os, name)))


def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_afterwards(short, tmp_path, capsys, monkeypatch):
    """Full from any ninth write on."""
    seen: list[str] = []
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with monkeypatch.context() as patch:
        fill_the_disk(patch, 10**9, seen)
        assert main([*SHORT, "--output", str(tmp_path / "counted" / "run")]) == 0
    same_run(tmp_path / "counted" / "run", short, STEPS)
    for place in range(2, len(seen) + 1, 9):
        output = tmp_path / f"{place}" / "run"
        with monkeypatch.context() as patch:
            fill_the_disk(patch, place, [])
            line = refusal(capsys, [*SHORT, "--output", str(output)])
        assert "No space left on device" in line
        assert str(output.parent) in line
        ended = (output / "done").exists()
        assert main([*SHORT, "--output", str(output)]) == (1 if ended else 0)
        same_run(output, short, STEPS)


def test_a_full_disk_while_metrics_are_written(unfinished, short, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(directory.RunDirectory, "append_row", _no_row)
        assert "No space left" in refusal(capsys, ["train", str(unfinished)])
    assert main(["train", str(unfinished)]) == 0
    same_run(unfinished, short, STEPS)


def _no_row(run, row, name="metrics.jsonl"):
    with directory.write_errors(run / name):
        with open(run / name, "ab") as file:
            file.write(b'{"step": 3, "acc')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_output_below_a_file_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    line = refusal(capsys, [*SHORT, "--output", str(tmp_path / "file" / "run")])
    assert f"{tmp_path}/file/run cannot be written" in line


# -- a run that is not what it was -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_run_key_ends_the_run(unfinished, capsys, damaged):
    (unfinished / "dice.key").unlink()
    if damaged:
        (unfinished / "dice.key").write_text("not a key")
    line = refusal(capsys, ["train", str(unfinished)])
    assert f"{unfinished}/dice.key is missing" in line
    assert "sfumato finish" in line
    assert main(["finish", str(unfinished)]) == 0
    assert verify(unfinished).holds


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (["--optimizer", "adam"], "differs in its settings: optimizer was momentum and is adam"),
        (["--seed", "8"], "differs in its settings: seed was 7 and is 8"),
        (["--noise-multiplier", "9"], "differs in its plan: noise_multiplier was 8.0 and is 9.0"),
        (["--size", "10"], "differs in its data: fingerprint was "),
        (["--micro-batch", "13"], "differs in its performance: micro_batch was 12 and is 13"),
    ],
)
def test_a_changed_recipe_plan_data_or_pin_is_refused(unfinished, capsys, changed, difference):
    line = refusal(capsys, [*SHORT, *changed, "--output", str(unfinished)])
    assert difference in line


@pytest.mark.parametrize("name", ["version of torch", "variable MKL_CBWR"])
def test_a_run_goes_on_in_another_environment(unfinished, short, monkeypatch, name):
    genuine = pins.environment()
    monkeypatch.setattr(pins, "environment", lambda: {**genuine, name: "1.0"})
    assert main(["train", str(unfinished)]) == 0
    assert json.loads((unfinished / "settings.json").read_text())["environment"] == genuine, "where it began"
    assert verify(unfinished).holds
    moved, same = (load_file(run / "model.safetensors") for run in (unfinished, short))
    assert all(torch.equal(moved[one], same[one]) for one in same), "sums that are rounded alike are the same"


def test_a_step_that_comes_out_otherwise_elsewhere_is_lost_and_not_released_again(unfinished, capsys, monkeypatch):
    """Two sums under one noise would show their difference without any."""
    take, left = PrivateTrainingSteps.__call__, []

    def rounded_otherwise(self, step, state):
        gradient, following = take(self, step, state)
        return {name: torch.nextafter(value, torch.tensor(torch.inf)) for name, value in gradient.items()}, following

    paid = [entry.body for entry in ledger.read(unfinished / "ledger.jsonl") if entry.kind == "release"]
    monkeypatch.setattr(PrivateTrainingSteps, "__call__", rounded_otherwise)
    monkeypatch.setattr(loop, "descend", lambda *given: left.append(given))
    assert main(["train", str(unfinished)]) == 0
    assert "steps already paid for: 3. Repeated steps" in capsys.readouterr().err
    entries = ledger.read(unfinished / "ledger.jsonl")
    assert [entry.body for entry in entries if entry.kind == "release"] == paid
    assert [entry.body for entry in entries if entry.kind == "lost"] == [{"first": 2, "last": 2}]
    assert not left
    assert verify(unfinished).holds


def test_another_numpy_may_draw_other_numbers_and_is_refused(unfinished, capsys, monkeypatch):
    genuine = pins.environment()
    monkeypatch.setattr(pins, "environment", lambda: {**genuine, pins.DRAWS: "1.0"})
    line = refusal(capsys, ["train", str(unfinished)])
    assert f"differs in its environment: version of numpy was {genuine[pins.DRAWS]} and is 1.0" in line
    assert main(["finish", str(unfinished)]) == 0


@pytest.mark.parametrize("verb", ["train", "finish"])
@pytest.mark.parametrize("releases", [0, 2])
def test_a_plan_edited_by_hand_is_refused(unfinished, capsys, verb, releases):
    lines = (unfinished / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (unfinished / "ledger.jsonl").write_bytes(b"".join(lines[: 1 + releases]))
    plan = json.loads((unfinished / "plan.json").read_text())
    (unfinished / "plan.json").write_text(json.dumps(plan | {"noise_multiplier": 80.0}))
    line = refusal(capsys, [verb, str(unfinished)])
    assert f"the ledger {unfinished}/ledger.jsonl does not match this run, in: plan" in line


@pytest.fixture(scope="module")
def other(begun, tmp_path_factory):
    """A run of the same command but for its seed, stopped at the same place."""
    output = tmp_path_factory.mktemp("other") / "run"
    with killed(loop, "descend", call=3) as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
        main([*SHORT, "--seed", "8", "--output", str(output)])
    return output


def test_the_key_of_another_run_is_refused(unfinished, other, short, capsys):
    """With one key two releases have the same noise, and their difference shows the data without any."""
    own = (unfinished / "dice.key").read_bytes()
    shutil.copy(other / "dice.key", unfinished / "dice.key")
    line = refusal(capsys, ["train", str(unfinished)])
    recorded = ledger.read(unfinished / "ledger.jsonl")[0].body["key_check"]
    assert f"the run key in {unfinished} belongs to another run: its check value is " in line
    assert f"but the ledger's is {recorded[:16]}" in line
    (unfinished / "dice.key").write_bytes(own)
    assert main(["train", str(unfinished)]) == 0
    same_run(unfinished, short, STEPS)


@pytest.mark.parametrize("verb", ["train", "finish"])
def test_the_checkpoint_of_another_run_is_refused(unfinished, other, capsys, verb):
    shutil.copy(other / "checkpoint.safetensors", unfinished / "checkpoint.safetensors")
    line = refusal(capsys, [verb, str(unfinished)])
    identities = [directory.RunDirectory(run).identity[:16] for run in (other, unfinished)]
    assert f"the checkpoint belongs to another run: {identities[0]}, but this is {identities[1]}" in line


@pytest.mark.parametrize("verb", ["train", "finish"])
def test_a_checkpoint_beside_another_ledger_is_refused(unfinished, capsys, verb):
    path = unfinished / "checkpoint.safetensors"
    replace(checkpoint.Checkpoint.load(path), ledger="0" * 64).save(path)
    head = ledger.read(unfinished / "ledger.jsonl")[2].hash
    line = refusal(capsys, [verb, str(unfinished)])
    assert f"after step 2 the hash of that ledger was {'0' * 16}, and of this one it is {head[:16]}" in line


def test_a_run_that_began_without_a_check_value_goes_no_further(unfinished, capsys):
    entries = ledger.read(unfinished / "ledger.jsonl")
    (unfinished / "ledger.jsonl").unlink()
    with Ledger(unfinished / "ledger.jsonl") as written:
        for entry in entries:
            written.append(entry.kind, {name: value for name, value in entry.body.items() if name != "key_check"})
    said = refusal(capsys, ["train", str(unfinished)])
    assert "line 1 of the ledger, begin, cannot stand there with its key_check" in said


def test_a_ledger_that_lost_lines_is_refused(unfinished, capsys):
    lines = (unfinished / "ledger.jsonl").read_text().splitlines(keepends=True)
    (unfinished / "ledger.jsonl").write_text("".join(lines[:2]))
    assert "records 1 steps, fewer than the 2 of its checkpoint" in refusal(capsys, ["train", str(unfinished)])
    (unfinished / "ledger.jsonl").unlink()
    assert "does not match this run" in refusal(capsys, ["train", str(unfinished)])


# -- ended early -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_ended_early_states_the_whole_plan(unfinished, short, capsys):
    assert main(["finish", str(unfinished), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    statement = json.loads((unfinished / "statement.json").read_text())
    plan = PrivacyPlan.from_dict(json.loads((unfinished / "plan.json").read_text()))
    assert outcome["steps"] == statement["steps_taken"] == 2
    assert outcome["planned"] == statement["planned"]
    assert statement["planned"]["epsilon"] >= plan.epsilon()
    assert statement["planned"] == json.loads((short / "statement.json").read_text())["planned"]
    assert max(row["step"] for row in directory.RunDirectory(unfinished).rows()) <= 2
    assert verify(unfinished).holds
    assert not (unfinished / "dice.key").exists()
    assert "is finished" in refusal(capsys, ["finish", str(unfinished)])
