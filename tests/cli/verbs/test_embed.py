"""sfumato embed: from the command line to a page, its dry run, and going on."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
import torch

from sfumato.cli import main
from sfumato.training import loop

QUICK = (
    "--model linear --dimension 8 --steps 3 --batch-size 6 --clients 2 --noise-multiplier 4 --threads 1 --device cpu"
)


@pytest.fixture
def people(workplace) -> str:
    generator = np.random.default_rng(0)
    users = np.repeat(np.arange(20), 4)
    labels = np.where(users < 14, users % 5, 5 + users % 4)
    images = (20 * labels[:, None, None] + generator.integers(0, 60, (80, 8, 8))).astype(np.uint8)
    train = users < 14
    columns = {
        "x": images,
        "y": labels,
        "users": users.astype(str),
        "groups": np.char.add("g", (users % 3).astype(str)),
    }
    parts = {f"{name}_train": column[train] for name, column in columns.items()}
    parts |= {f"{name}_test": column[~train] for name, column in columns.items()}
    np.savez(workplace / "people.npz", **parts)
    return "npz:people.npz"


def test_it_trains_says_what_it_promised_and_what_to_do_next(people, capsys):
    assert main(shlex.split(f"embed {people} {QUICK} --output run")) == 0
    printed, said = capsys.readouterr()
    assert "each single person, with all of their images" in printed
    assert "of the pairs of one class at a false accept rate of 0.001" in printed
    assert "measured on private data: keep it to yourself" in printed
    assert "sfumato verify run" in said
    assert main(["verify", "run"]) == 0
    assert main(shlex.split(f"evaluate run {people} --far 0.1 --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["far"], found["images"], found["public"]) == (0.1, 24, False)
    assert main(shlex.split("report run --public")) == 0
    assert main(shlex.split("predict run people.npz")) == 1
    assert main(shlex.split(f"evaluate run {people} --part all --json")) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["images"] == 80


def test_a_method_is_refused_before_data_are_read(tmp_path, capsys):
    assert main(["embed", f"folder:{tmp_path}", "--method", "fedembed-noiseless"]) == 1  # an empty folder
    assert "--method must be one of fedemb" in capsys.readouterr().err


def test_json_holds_what_is_printed_and_a_fixed_group_its_own_figure(people, capsys):
    command = f"embed {people} {QUICK.replace('--clients 2', '')} --batch-size 1 --grouping fixed --json"
    assert main(shlex.split(command)) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["epsilon"] > found["epsilon_of_group"] > 0
    assert {"recall", "far", "threshold", "statement", "delta", "run", "uses"} <= found.keys()


def test_a_dry_run_spends_nothing(people, workplace, capsys):
    assert main(shlex.split(f"embed {people} {QUICK} --dry-run")) == 0
    assert "nothing was spent" in capsys.readouterr().err
    assert main(shlex.split(f"embed {people} {QUICK} --dry-run --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["clients"]["count"], found["plan"]["unit"]) == (2, "user")
    assert 0 < found["seconds"] < 3600
    assert not (workplace / "runs").exists()


def test_a_norm_that_follows_a_quantile_and_a_hopeless_plan_are_named(people, capsys):
    assert main(shlex.split(f"embed {people} {QUICK} --quantile 0.4 --dry-run")) == 0
    printed, said = capsys.readouterr()
    assert re.search(r"C follows the quantile +0\.4\n", printed)
    assert re.search(r"time +about \d+ s on cpu", printed)
    assert "note: in 3 rounds of 2 clients the noise in 520 parameters is" in said


def test_an_unfinished_run_goes_on_or_is_ended(people, monkeypatch, capsys):
    class StopError(Exception):
        pass

    def stop(*given):
        raise StopError

    for place in ("one", "other", "third"):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "descend", stop)
            with pytest.raises(StopError):
                main(shlex.split(f"embed {people} {QUICK} --output {place}"))
    assert main(["train", "one"]) == 1
    assert "resume it with sfumato embed one" in capsys.readouterr().err
    assert main(["embed", "one"]) == 0
    assert main(["finish", "other"]) == 0
    assert "note: ended after 0 of 3 rounds; the promise is the plan's" in capsys.readouterr().err
    assert main(["finish", "third", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["steps"] == 0


NOISELESS = QUICK.replace("--noise-multiplier 4", "--public --method fedemb-noiseless --quantile 0.5")


def test_without_noise_there_is_no_plan_and_no_epsilon(people, workplace, capsys):
    assert main(shlex.split(f"embed {people} {NOISELESS} --dry-run")) == 0
    assert re.search(r"privacy +none: it promises nothing\n", capsys.readouterr().out)
    assert main(shlex.split(f"embed {people} {NOISELESS} --dry-run --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["plan"]["epsilon"], found["clients"]["method"]) == (None, "fedemb-noiseless")
    assert not (workplace / "runs").exists()
    assert main(shlex.split(f"embed {people} {NOISELESS} --output run --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["epsilon"] is None
    assert "promises nothing" in found["statement"]
    assert main(["verify", "run"]) == 1
    assert main(shlex.split("report run --public")) == 0
    assert "fedemb-noiseless" in (workplace / "run" / "report-public.html").read_text("utf-8")


@pytest.mark.parametrize("method", ["fedemb-noiseless", "central"])
def test_an_unfinished_run_without_privacy_goes_on(people, monkeypatch, capsys, method):
    class StopError(Exception):
        pass

    def stop(*given):
        raise StopError

    options = NOISELESS if method != "central" else "--public --method central --model linear --dimension 8 --steps 3"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", stop)
        with pytest.raises(StopError):
            main(shlex.split(f"embed {people} {options} --output run --threads 1 --device cpu"))
    for verb in ("train", "pretrain"):
        assert main([verb, "run"]) == 1
    assert "resume it with sfumato embed run" in capsys.readouterr().err
    assert main(["embed", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["steps"] == 3
    assert main(["embed", "run"]) == 1
    assert "is finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ("--noise-multiplier 0", "--noise-multiplier 0 adds no noise, and without noise nothing is promised"),
        ("--noise-multiplier 0", "by method fedemb-noiseless"),
        ("--method fedemb-noiseless", "adds no noise and promises nothing, and --noise-multiplier 4.0 is given"),
        ("--method central", "method central trains without privacy, and this npz source is private"),
        ("--method fedprox", "method must be one of"),
        ("--grouping fixed --clients 3", "leave clients out: a fixed group is a client"),
        ("--client-loss binary --method fedavg", "loss 'binary' has no head, and head is 'global'"),
        ("--quantile 1.5", "--quantile must lie strictly between 0 and 1"),
    ],
)
def test_bad_choices_are_refused(people, capsys, options, refusal):
    assert main(shlex.split(f"embed {people} --steps 2 --noise-multiplier 4 --batch-size 2 {options}")) == 1
    assert refusal in capsys.readouterr().err


def test_few_people_get_features_and_no_epsilon_is_claimed(people, capsys):
    assert main(shlex.split(f"embed {people} --epsilon 8 --device cpu --threads 1 --dry-run")) == 0
    printed, said = capsys.readouterr()
    assert "method untrained (14 people; no private data are used; at epsilon 8 a linear map is worth" in said
    assert "from 41 people on, a network from 100,000" in said
    assert "no private data are used" in printed
    assert main(shlex.split(f"embed {people} --epsilon 8 --device cpu --threads 1 --output run")) == 0
    printed, _ = capsys.readouterr()
    assert "This model has used no private data" in printed
    assert "pixels as they are" in printed
    assert "measured on private data: keep it to yourself" in printed
    assert "gained" not in printed
    assert main(["verify", "run"]) == 1
    assert "has used no private data" in capsys.readouterr().err
    assert main(shlex.split(f"evaluate run {people} --far 0.1 --json")) == 0
    assert main(shlex.split("report run --public")) == 0
    capsys.readouterr()
    assert main(shlex.split(f"embed {people} --device cpu --threads 1 --output run")) == 1
    assert "is finished" in capsys.readouterr().err


def test_whitening_from_the_command_line_goes_on_and_says_what_was_gained(people, capsys, monkeypatch):
    command = f"embed {people} --epsilon 8 --method whiten --dimension 40 --device cpu --threads 1"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(shlex.split(f"{command} --output run")) != 0
    capsys.readouterr()
    assert main(shlex.split("embed run --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 7.9 < found["epsilon"] <= 8
    assert {"pixels", "beginning", "result", "gain", "images"} <= found["compared"].keys()
    assert (found["note"] is None) == (found["compared"]["gain"][0] >= 0)
    assert found["steps"] == 1
    assert main(["verify", "run"]) == 0
    assert main(shlex.split(f"{command} --clients 3 --output other")) == 1
    assert "without rounds, clients or a network" in capsys.readouterr().err


def test_a_result_below_its_beginning_is_said_in_the_first_line(people, workplace, capsys, monkeypatch):
    from sfumato.embedding.whitening import steps

    alike = torch.eye(32), torch.full((32,), 1e6)
    monkeypatch.setattr(steps, "whitening", lambda found, **_: alike)
    command = f"embed {people} --epsilon 8 --method whiten --far 0.3 --device cpu --threads 1 --output run"
    assert main(shlex.split(command)) == 0
    first = capsys.readouterr().out.lstrip().splitlines()[0]
    assert first.startswith("Worse than its beginning: recall 0.00%, and ")
    assert first in (workplace / "run" / "report.html").read_text("utf-8")
