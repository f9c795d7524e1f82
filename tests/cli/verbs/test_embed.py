"""sfumato embed: from the command line to a page, its dry run, and going on."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from sfumato.cli import main
from sfumato.data import open_source
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import owner_key
from sfumato.training import loop
from tests.killed import killed

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
    assert "measured on private data: for you only" in printed
    assert "sfumato verify run" in said
    assert main(["verify", "run"]) == 0
    assert main(shlex.split(f"evaluate run {people} --far 0.1 --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["far"], found["images"], found["public"]) == (0.1, 24, False)
    assert main(shlex.split("report run --public")) == 0
    assert main(shlex.split("predict run people.npz")) == 1
    assert main(shlex.split(f"evaluate run {people} --part all --json")) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["images"] == 80


NAMES = [f"name-{letter}" for letter in "abcdefghijklmnopqrst"]


def photographs(place: Path, names: list[str], each: int = 4) -> None:
    generator = np.random.default_rng(len(names))
    for number, name in enumerate(names):
        (place / name).mkdir(parents=True)
        for image in range(each):
            pixels = 10 * number + generator.integers(0, 50, (8, 8, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(place / name / f"{image}.png")


def test_a_folder_for_each_person_is_all_it_takes(workplace, call):
    """The commands of the refusals work, the people to test on are others, and nothing that is public names anybody."""
    photographs(Path("people"), NAMES)
    photographs(Path("people"), ["name-alone"], each=1)
    told = call(f"embed folder:people {QUICK}", status=1)
    assert "where each class is one user, --user-from class says so" in told
    found = json.loads(call(f"embed folder:people --user-from class {QUICK} --output run --json").splitlines()[-1])
    assert "each single person, with all of their images" in found["statement"]
    call("verify run")
    source = open_source("folder:people", owner_key=owner_key(), user_from="class", open_set=True)
    assert not {*source.train.users} & {*source.test.users}
    assert json.loads(Path("run/plan.json").read_text())["examples"] == len({*source.train.users})
    measured = "evaluate run folder:people --user-from class --json"
    assert json.loads(call(measured).splitlines()[-1])["images"] == len(source.test)
    assert "trained with --user-from 'class'" in call("evaluate run folder:people", status=1)
    call("report run --public")
    public = ("model.safetensors", "statement.json", "plan.json", "ledger.jsonl", "report-public.html")
    for file in public:
        assert b"name-" not in Path("run", file).read_bytes(), file


def test_a_table_or_an_archive_may_do_without_users(workplace, call):
    photographs(Path("people"), NAMES)
    files = [f"{file},{file.parent.name}" for file in sorted(Path("people").rglob("*.png"))]
    Path("people.csv").write_text("\n".join(["path,label", *files]))
    told = call(f"embed csv:people.csv {QUICK}", status=1)
    assert "where each class is one user, --user-from class says so of all three" in told
    call(f"embed csv:people.csv --user-from class {QUICK} --output run")
    assert "trained with --user-from 'class'" in call("evaluate run csv:people.csv", status=1)


def test_a_classifier_of_users_is_refused_with_the_reason(workplace, call):
    photographs(Path("people"), NAMES)
    told = call("train folder:people --user-from class --unit user --dry-run", status=1)
    assert (
        "by user puts it whole in one part of folder 'people', so that a classifier would be tested on classes" in told
    )


def test_json_holds_what_is_printed_and_a_fixed_group_its_own_figure(people, capsys):
    command = f"embed {people} {QUICK.replace('--clients 2', '')} --batch-size 1 --grouping fixed --json"
    assert main(shlex.split(command)) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["epsilon"] > found["epsilon_of_group"] > 0
    assert {"recall", "far", "threshold", "statement", "delta", "run", "uses"} <= found.keys()


def test_a_dry_run_spends_nothing(people, workplace, capsys):
    assert main(shlex.split(f"embed {people} {QUICK} --dry-run")) == 0
    assert "no privacy was spent" in capsys.readouterr().err
    assert main(shlex.split(f"embed {people} {QUICK} --dry-run --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["clients"]["count"], found["plan"]["unit"]) == (2, "user")
    assert 0 < found["estimate"]["seconds"] < 3600
    assert not (workplace / "runs").exists()


def test_an_unfinished_run_goes_on_or_is_ended(people, capsys):
    for place in ("one", "other", "third"):
        with killed(loop, "descend"):
            main(shlex.split(f"embed {people} {QUICK} --output {place}"))
    assert main(["train", "one"]) == 1
    assert "resume it with sfumato embed one" in capsys.readouterr().err
    assert main(["embed", "one"]) == 0
    assert main(["finish", "other"]) == 0
    assert "note: ended after 0 of 3 rounds; epsilon is that of the whole plan" in capsys.readouterr().err
    assert main(["finish", "third", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["steps"] == 0


NOISELESS = QUICK.replace("--noise-multiplier 4", "--public --method fedemb-noiseless --quantile 0.5")


def test_without_noise_there_is_no_plan_and_no_epsilon(people, workplace, capsys):
    assert main(shlex.split(f"embed {people} {NOISELESS} --dry-run")) == 0
    assert re.search(r"privacy +none \(no guarantee\)\n", capsys.readouterr().out)
    assert main(shlex.split(f"embed {people} {NOISELESS} --dry-run --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["plan"]["epsilon"], found["clients"]["method"]) == (None, "fedemb-noiseless")
    assert not (workplace / "runs").exists()
    assert main(shlex.split(f"embed {people} {NOISELESS} --output run --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["epsilon"] is None
    assert "no privacy guarantee" in found["statement"]
    assert main(["verify", "run"]) == 1
    assert main(shlex.split("report run --public")) == 0
    assert "fedemb-noiseless" in (workplace / "run" / "report-public.html").read_text("utf-8")


@pytest.mark.parametrize("method", ["fedemb-noiseless", "central"])
def test_an_unfinished_run_without_privacy_goes_on(people, capsys, method):
    options = NOISELESS if method != "central" else "--public --method central --model linear --dimension 8 --steps 3"
    with killed(loop, "descend"):
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
        ("--noise-multiplier 0", "--noise-multiplier 0 adds no noise, and without noise there is no guarantee"),
        ("--method fedemb-noiseless", "does not use noise_multiplier, but --noise-multiplier 4.0 is given"),
        ("--grouping fixed --clients 3", "leave clients out: each fixed group is a client"),
        ("--client-loss binary --method fedavg", "client-loss must be one of softmax; got 'binary'"),
    ],
)
def test_bad_choices_are_refused(people, capsys, options, refusal):
    assert main(shlex.split(f"embed {people} --steps 2 --noise-multiplier 4 --batch-size 2 {options}")) == 1
    assert refusal in capsys.readouterr().err


def test_few_people_get_features_and_no_epsilon_is_claimed(people, capsys):
    assert main(shlex.split(f"embed {people} --epsilon 8 --device cpu --threads 1 --dry-run")) == 0
    printed, said = capsys.readouterr()
    assert "method untrained (by rule: 14 people; no private data are used; a network is worth its budget" in said
    assert "no private data are used" in printed
    assert "\nparameters     0\n" in printed
    assert "averaged weights" not in printed
    assert main(shlex.split(f"embed {people} --epsilon 8 --device cpu --threads 1 --output run")) == 0
    printed, _ = capsys.readouterr()
    assert "This model has used no private data" in printed
    assert "pixels as they are" in printed
    assert "measured on private data: for you only" in printed
    assert "gained" not in printed
    assert main(["verify", "run"]) == 1
    assert "has used no private data" in capsys.readouterr().err


def test_a_result_below_its_beginning_is_said_in_the_first_line(people, workplace, capsys, monkeypatch):
    def forget(optimizer, parameters, gradient):
        for value in parameters.values():
            value.data.fill_(float(value.dim() == 1))  # all images alike

    monkeypatch.setattr(loop, "descend", forget)
    command = f"embed {people} {QUICK} --seed 1 --far 0.3"
    assert main(shlex.split(f"{command} --output run")) == 0
    first = capsys.readouterr().out.lstrip().splitlines()[0]
    assert first.startswith("Worse than before training: recall 0.00%, and ")
    assert first in (workplace / "run" / "report.html").read_text("utf-8")
    assert main(shlex.split(f"{command} --output other --json")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"pixels", "beginning", "result", "gain", "images"} <= found["compared"].keys()
    assert found["compared"]["gain"][2] < 0
    assert found["note"] == first


def test_weights_of_rounds_are_kept_aggregated_and_verified(people, call):
    """With a head over all classes too, which is never written down."""
    for method in ("fedemb", "fedavg"):
        call(f"embed {people} {QUICK} --method {method} --keep 2 --output {method}")
        kept = [one.name for one in sorted(Path(method, "kept").iterdir())]
        assert kept == [f"step-0000000{step}.safetensors" for step in (1, 3)]
        last, whole = (load_file(Path(method, name)) for name in (f"kept/{kept[1]}", "model.safetensors"))
        assert last.keys() == whole.keys()
        assert all(torch.equal(value, whole[name]) for name, value in last.items())
        assert "its weights after steps 1, 3" in Path(method, "statement.json").read_text()
        call(f"aggregate {method} --last 2")
        call(f"evaluate {method}/aggregate-upa.safetensors {people} --far 0.1 --json")
        call(f"verify {method}")
    for refused in ("--method opa", "--last 1 --method omv"):
        assert "but the model gives embeddings; leave score_on out" in call(f"aggregate fedemb {refused}", status=1)


def test_a_rule_says_how_many_kept_weights_are_averaged(people, call):
    """The noise of a mean of clients is divided by their number."""
    call(f"embed {people} {QUICK.replace('--steps 3', '--steps 12')} --output run")
    assert "as far as noise explains how they differ" in call("aggregate run")


def test_several_seeds_give_a_mean_an_interval_and_the_promise_of_all_together(people, call):
    command = f"embed {people} {QUICK} --seeds 3 --far 0.2 --output many"
    found = json.loads(call(f"{command} --json"))
    assert len({*found["values"]}) > 1
    assert (found["far"], [row["run"] for row in found["rows"]]) == (0.2, ["many/1", "many/2", "many/3"])
    assert found["recall"] == pytest.approx(np.mean(found["values"]))
    half = 4.302653 * np.std(found["values"], ddof=1) * (4 / 3) ** 0.5  # t with 2 degrees of freedom
    ends = max(0, found["recall"] - half), min(1, found["recall"] + half)
    assert found["interval"] == pytest.approx(ends, abs=1e-6)
    plan = PrivacyPlan.from_dict(json.loads(Path("many/1/plan.json").read_text()))
    assert found["epsilon_of_all"] == pytest.approx(plan.epsilon(steps=3 * plan.steps, delta=plan.delta), rel=1e-3)
    assert found["promises"]
    assert json.loads(call(f"{command} --json")) == found, "finished runs are read, not trained again"
    told = call(command)
    assert f"recall at a false accept rate of 0.2  mean {found['recall']:.2%}, standard deviation" in told
    assert "(95% prediction interval)" in told
    assert "all 3 runs on these data in this directory, if planned in advance, are (" in told
    assert "for a person who is in each of them" in told


def test_seeds_that_are_given_promise_nothing_and_count_on(people, call):
    told = call(f"embed {people} {QUICK} --seeds 2 --seed 5 --output many")
    assert "so they have no privacy guarantee. With secret keys, the plans of all 2 in this directory" in told
    assert [json.loads(Path(f"many/{run}/settings.json").read_text())["settings"]["seed"] for run in (1, 2)] == [5, 6]


def test_several_seeds_without_a_plan_have_no_epsilon(people, call):
    command = f"embed {people} --epsilon 8 --device cpu --threads 1 --seeds 2 --output many"
    found = json.loads(call(f"{command} --json"))
    assert (found["promises"], found["epsilon"], found["epsilon_of_all"]) == (False, None, None)
    told = call(command)
    assert "over 2 runs" in told
    assert "together" not in told
