"""Every verb from end to end, in this process: what it prints, what it writes, what it returns."""

import json
import math
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.cli import main, parse
from sfumato.data import open_source
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import RunKey
from sfumato.training import loop, run
from sfumato.training.preparation import from_record
from tests.killed import StopError, killed

FILES = {
    "done",
    "evaluation.json",
    "kept",
    "ledger.jsonl",
    "metrics.jsonl",
    "model.safetensors",
    "plan.json",
    "report.html",
    "run.toml",
    "settings.json",
    "statement.json",
}


@pytest.fixture
def unfinished(workplace, quick):
    """The run ./runs/digits, stopped in its first step."""
    with killed(loop, "descend"):
        main(shlex.split(f"train digits {quick}"))
    return "runs/digits"


@pytest.fixture
def images(workplace):
    """Digits of the test part as PNG files ./pictures/NUMBER.png, with their labels."""
    records = open_source("digits", owner_key=bytes(32)).test
    Path("pictures").mkdir()
    for number in range(20):
        Image.fromarray(records.images[number, :, :, 0]).save(f"pictures/{number:02}.png")
    return [str(label) for label in records.labels[:20]]


# -- train -------------------------------------------------------------------------------------------------------------


def test_train_writes_a_run_and_ends_with_one_json_object(call, quick):
    outcome = json.loads(call(f"train digits {quick} --json").splitlines()[-1])
    assert {"accuracy", "epsilon", "delta", "steps", "seconds", "run", "statement"} <= set(outcome)
    assert outcome["run"] == "runs/digits"
    assert outcome["steps"] == 3
    assert outcome["delta"] == 1e-5
    assert 0.1 < outcome["majority"] < 0.12
    assert outcome["accuracy"] == json.loads(Path("runs/digits/evaluation.json").read_text())["accuracy"]
    assert outcome["epsilon"] == json.loads(Path("runs/digits/statement.json").read_text())["epsilon"]
    assert "differentially private for each single training example" in outcome["statement"]
    assert {path.name for path in Path("runs/digits").iterdir()} == FILES


def test_train_tells_accuracy_statement_and_where_to_look_next(quick, capsys):
    assert main(shlex.split(f"train digits {quick} --output here")) == 0
    printed = capsys.readouterr()
    assert re.search(r"test accuracy  [\d.]+% \(always guessing the most frequent class: 1[\d.]+%\)", printed.out)
    assert json.loads(Path("here/statement.json").read_text())["sentence"] in printed.out
    for said in ("here/report.html", "sfumato evaluate here", "sfumato verify here"):
        assert said in printed.err


def test_other_options_for_an_unfinished_run_are_refused(quick, unfinished, capsys):
    before = {path.name: path.read_bytes() for path in Path(unfinished).iterdir()}
    capsys.readouterr()
    assert main(shlex.split(f"train digits {quick} --learning-rate 0.25")) == 1
    assert "learning_rate was 0.5 and is 0.25" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path(unfinished).iterdir()} == before
    assert not Path("runs/digits-2").exists()


def test_earlier_runs_on_private_data_are_told_before_another_is_paid(quick, capsys, spots_folder):
    for expected in ("", "note: 1 earlier run of yours used these data; together with this one"):
        capsys.readouterr()
        assert main(shlex.split(f"train folder:{spots_folder} --dry-run {quick}")) == 0
        assert expected in capsys.readouterr().err
        if not expected:
            assert main(shlex.split(f"train folder:{spots_folder} --size 9 {quick} --output a")) == 0


def test_a_run_is_resumed_by_its_name(call, unfinished):
    assert json.loads(call(f"train {unfinished} --json"))["steps"] == 3
    assert {path.name for path in Path(unfinished).iterdir()} == FILES
    call(f"verify {unfinished}")


def test_a_zoomed_run_reads_larger_images_and_is_resumed_with_them(call, quick, spots_folder, monkeypatch):
    seen = []

    def stop(job, *_, **__):
        seen.append((job.source.size, job.source.zoomed.shape[1]))
        raise StopError

    quick = f"{quick.replace('64', '5')} --size 6"
    command = f"train folder:{spots_folder} {quick} --views 2 --zoom 1.5 --output z"
    for again in (command, command, "train z"):
        with monkeypatch.context() as patch:
            patch.setattr(run, "take_steps", stop)
            with pytest.raises(StopError):
                main(shlex.split(again))
    assert seen == [(6, 9)] * 3
    told = json.loads(call("train z --json"))
    measured = json.loads(call(f"evaluate z folder:{spots_folder} --json"))
    assert measured["accuracy"] == pytest.approx(told["accuracy"])


def test_a_recipe_gives_options_that_the_command_overrides(call, quick):
    Path("small.toml").write_text(
        'source = "digits"\nmodel = "linear"\nsteps = 3\nbatch-size = 64\nnoise-multiplier = 8\nlearning_rate = 0.5\n'
        'threads = 1\nviews = 2\nshift = 1\n\n[about]\naccuracy = 0.5\nhardware = "one core"\n'
    )
    assert json.loads(call("train small.toml --steps 2 --ema 0 --output a --json"))["steps"] == 2
    settings = json.loads(Path("a/settings.json").read_text())["settings"]
    assert (settings["views"], settings["shift"], settings["ema"], settings["model"]) == (2, 1, 0.0, "linear")
    plan = json.loads(Path("a/plan.json").read_text())
    assert (plan["steps"], plan["batch_size"], plan["noise_multiplier"]) == (2, 64, 8.0)


def test_a_dry_run_spends_and_writes_nothing(quick, capsys, workplace):
    assert main(shlex.split(f"train digits {quick} --dry-run --verbose")) == 0
    printed = capsys.readouterr()
    for said in ("noise multiplier", "parameters", "time", "data bytes"):
        assert said in printed.out
    assert "no privacy was spent" in printed.err
    assert list(workplace.iterdir()) == []
    assert main(shlex.split(f"train digits {quick} --dry-run --json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["would"] == "begin"
    assert told["estimate"]["seconds"] > 0
    assert told["plan"]["steps"] == 3
    assert list(workplace.iterdir()) == []


def test_a_dry_run_of_an_unfinished_run_would_resume_it(call, quick, unfinished):
    assert json.loads(call(f"train digits {quick} --dry-run --json"))["would"] == "resume"
    assert not Path(unfinished, "done").exists()


def test_files_that_are_left_out_are_told_to_the_owner_and_named_as_not_covered(call, quick, images, capsys):
    for name in ("a", "b"):
        shutil.copytree("pictures", f"shop/{name}")
    Path("shop/a/notes.png").write_text("about")
    few = quick.replace("--batch-size 64", "--batch-size 5")
    assert "notes.png" in call(f"train folder:shop {few}", status=1)
    assert main(shlex.split(f"train folder:shop {few} --skip-unreadable")) == 0
    assert "note: 1 of the files could not be read as images" in capsys.readouterr().err
    written = Path("runs/shop/statement.json").read_text()
    assert "how many files were left out" in " ".join(json.loads(written)["not_covered"])
    assert "notes.png" not in written
    call("verify runs/shop")
    assert "notes.png" in call("evaluate runs/shop folder:shop", status=1)
    call("evaluate runs/shop folder:shop --skip-unreadable")


# -- finish ------------------------------------------------------------------------------------------------------------


def test_finish_ends_a_run_with_what_it_has(call, unfinished):
    outcome = json.loads(call(f"finish {unfinished} --json"))
    statement = json.loads(Path(unfinished, "statement.json").read_text())
    assert outcome["steps"] == statement["steps_taken"] == 0
    assert statement["steps_planned"] == 3
    assert {path.name for path in Path(unfinished).iterdir()} == FILES - {"kept"}
    call(f"verify {unfinished}")


# -- plan --------------------------------------------------------------------------------------------------------------

GIVEN = {"batch_size": 100, "steps": 50, "noise_multiplier": 4.0, "epsilon": 1.0}


@pytest.mark.parametrize("unknown", GIVEN)
def test_plan_finds_each_unknown(call, unknown):
    options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in GIVEN.items() if key != unknown)
    found = json.loads(call(f"plan --examples 1000 --delta 1e-4 {options} --json"))
    for name, value in GIVEN.items():
        if name not in (unknown, "epsilon"):
            assert found[name] == value
    if unknown != "epsilon":
        assert found["epsilon"] <= 1.0
    assert found["epsilon_rdp"] > found["epsilon"]
    assert math.isclose(found["sampling_probability"], found["batch_size"] / 1000)
    assert math.isclose(found["expected_epochs"], found["steps"] * found["batch_size"] / 1000)
    assert found["delta"] == 1e-4


def test_runs_on_the_same_images_in_two_formats_are_counted_together(call, quick, capsys):
    generator = np.random.default_rng(0)
    images, labels = generator.integers(256, size=(80, 8, 8), dtype=np.uint8), np.arange(80) % 2
    for part, some in (("train", slice(0, 70)), ("test", slice(70, 80))):
        for place, (image, label) in enumerate(zip(images[some], labels[some], strict=True)):
            Path(f"photos/{part}/{label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(f"photos/{part}/{label}/{place}.png")
    x, y = (images[:70], images[70:]), (labels[:70], labels[70:])
    np.savez("a.npz", x_train=x[0], y_train=y[0], x_test=x[1], y_test=y[1])
    call(f"train folder:photos {quick} --seed 1 --output one")
    call(f"train npz:a.npz {quick} --seed 2 --output two --json")
    assert main(shlex.split(f"train npz:a.npz {quick} --seed 3 --output three --dry-run")) == 0
    assert "note: 2 earlier runs of yours used these data" in capsys.readouterr().err
    (together,) = (line for line in call(f"train npz:a.npz {quick} --output three").splitlines() if "At least" in line)
    assert together.startswith("At least 3 runs of yours have used these data. Together they are (")
    assert together.endswith("A copy of the data in another place that was also changed is not counted.")
    np.savez("b.npz", x_train=x[0][1:], y_train=y[0][1:], x_test=x[1], y_test=y[1])
    assert "runs of yours" not in call(f"train npz:b.npz {quick} --output fewer"), "as the line says"


def test_plan_prints_a_table_and_what_to_do_next(capsys):
    assert main(shlex.split("plan --examples 1000 --batch-size 1000 --steps 10 --noise-multiplier 4")) == 0
    printed = capsys.readouterr()
    for said in ("by RDP", "participation", "full-batch", "expected epochs", "noise multiplier"):
        assert said in printed.out
    assert (
        "next: sfumato train SOURCE --examples 1000 --batch-size 1000 --steps 10 --noise-multiplier 4.0 --delta 1e-05"
        in printed.err
    )


# -- tradeoff ----------------------------------------------------------------------------------------------------------

TRADEOFF = "tradeoff --examples 2000 --epsilon 2 --delta 1e-4 --batch-size 500 2000 --noise-multiplier 4 8"


def test_tradeoff_ends_with_the_command_that_trains_by_the_point_taken(call):
    found = json.loads(call(f"{TRADEOFF} --json"))
    assert [(each["batch_size"], each["participation"]) for each in found["frontiers"]] == [
        (500, "poisson"),
        (2000, "full-batch"),
    ]
    verb = parse(shlex.split(found["next"])[1:])
    names = ("examples", "batch_size", "steps", "noise_multiplier", "delta")
    plan = PrivacyPlan.calibrate(**{name: getattr(verb, name) for name in names})
    assert plan == PrivacyPlan.from_dict(found["take"])
    assert plan.epsilon() <= 2


def test_tradeoff_prints_tables_marks_rules_and_what_to_do_next(capsys):
    assert main([*shlex.split(TRADEOFF), "--epochs", "100"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("S/N run  of limit") == 2
    assert printed.out.count("<- the most steps in 100 epochs") == 2
    assert printed.out.count("steps: rule of De et al. 2022") == 2
    assert printed.out.count("flat from here") == 1
    for said in ("CIFAR-10", "recommended: batch size 2,000, the nearest to"):
        assert said in printed.err
    assert "next: sfumato train SOURCE --examples 2000 --batch-size 2000 --steps 100 --noise-multiplier" in printed.err


# -- evaluate, predict, report, verify ---------------------------------------------------------------------------------


def test_evaluate_gives_the_accuracy_that_training_gave(call, run):
    figures = json.loads(call(f"evaluate {run} digits --json"))
    assert figures["accuracy"] == json.loads(Path(run, "evaluation.json").read_text())["accuracy"]
    assert figures["images"] == 359
    assert set(figures["accuracy_per_class"]) == set("0123456789")
    for part, images in (("train", 1438), ("all", 1797)):
        assert json.loads(call(f"evaluate {run} digits --part {part} --json"))["images"] == images
    assert "accuracy" in call(f"evaluate {run} digits")


def test_predict_labels_files_and_folders_as_evaluation_does(call, run, images):
    rows = json.loads(call(f"predict {run} pictures/03.png pictures --json"))["predictions"]
    assert [row["image"] for row in rows] == ["pictures/03.png", *(f"pictures/{number:02}.png" for number in range(20))]
    assert rows[0]["scores"] == rows[4]["scores"]
    for row in rows:
        assert len(row["scores"]) == 3
        assert row["label"] == next(iter(row["scores"]))
        assert row["score"] == max(row["scores"].values())
    right = [row["label"] == label for row, label in zip(rows[1:], images, strict=True)]
    accuracy = json.loads(Path(run, "evaluation.json").read_text())["accuracy"]
    assert abs(np.mean(right) - accuracy) < 0.4
    table = call(f"predict {run} pictures/03.png --top 1")
    assert table.startswith("pictures/03.png  ")
    assert table.count("%") == 1


def test_report_writes_the_page_again_and_a_public_one(call, run):
    Path(run, "report.html").unlink()
    assert call(f"report {run}") == f"{run}/report.html\n"
    assert json.loads(call(f"report {run} --public --json")) == {"report": f"{run}/report-public.html", "public": True}
    sentence = json.loads(Path(run, "statement.json").read_text())["sentence"]
    for name in ("report.html", "report-public.html"):
        assert sentence.split(" steps of ")[0] in Path(run, name).read_text()
    call(f"verify {run}")


def test_report_says_that_a_run_was_changed(run, capsys):
    assert main(["report", run]) == 0
    assert "is not as the run left it" not in capsys.readouterr().err
    text = Path(run, "ledger.jsonl").read_text()
    Path(run, "ledger.jsonl").write_text(text.replace('"step":1', '"step":7'))
    assert main(["report", run]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"note: {run}/ledger.jsonl has changed since the run; see sfumato verify {run}"


def test_verify_says_in_one_line_that_the_statement_follows(call, run):
    line = call(f"verify {run}")
    assert line.count("\n") == 1
    assert line.startswith("This run is an experiment: its randomness follows from a seed, so its weights have no ")
    assert "privacy guarantee. The statement" in line
    assert "cannot prove its own honesty" in line
    verdict = json.loads(call(f"verify {run} --json"))
    assert verdict["holds"] is True
    assert len(verdict["checks"]) >= 6


def test_pretrain_and_fine_tune(call, quick):
    choices = "--steps 20 --learning-rate 0.05 --threads 1 --device cpu"
    found = json.loads(call(f"pretrain digits --model cnn {choices} --output runs/pre --json"))
    assert found["epsilon"] is None
    assert 0.3 < found["accuracy"] < found["top5"] <= 1
    assert "no privacy guarantee" in found["statement"]
    assert "no privacy guarantee" in call("report runs/pre --json") or Path("runs/pre/report.html").exists()
    fine = quick.replace("linear", "cnn") + " --pretrained runs/pre --trainable classifier --output runs/fine --json"
    call(f"train digits {fine}")
    written = json.loads(Path("runs/fine/statement.json").read_text())
    assert written["circumstances"]["origins"] == ["public run"]
    call("train runs/pre", status=1)
    call("verify runs/pre", status=1)


def test_pre_trained_weights_bring_their_model_and_size(call, spots_folder, capsys):
    choices = "--steps 2 --learning-rate 0.05 --threads 1 --device cpu"
    call(f"pretrain digits --model cnn --size 12 {choices} --output runs/pre")
    capsys.readouterr()
    rest = "--steps 2 --batch-size 40 --noise-multiplier 4 --threads 1 --device cpu --pretrained runs/pre"
    assert (
        main(shlex.split(f"train folder:{spots_folder} {rest} --trainable classifier --output runs/fine --verbose"))
        == 0
    )
    told = capsys.readouterr().err
    assert "model cnn (by rule: from the pre-trained weights)" in told
    assert "size 12 (by rule: from the pre-trained weights)" in told
    record = json.loads(Path("runs/fine/settings.json").read_text())
    assert (record["settings"]["model"], record["data"]["size"]) == ("cnn", 12)
    assert main(shlex.split(f"train folder:{spots_folder} {rest} --model lenet5 --output runs/no")) == 1
    assert "give model cnn" in capsys.readouterr().err


def test_what_looks_wrong_is_told(call, quick, capsys):
    assert (
        main(shlex.split(f"train digits {quick} --examples 100000 --delta 0.1 --trainable classifier --dry-run")) == 0
    )
    told = capsys.readouterr().err
    assert "note: 100000 examples are declared, but the data hold 1438" in told
    assert "note: delta 0.1 is above 1/N" in told
    assert "note: only a part of the model is trained, and no pre-trained weights are given" in told


def test_an_unfinished_pretraining_is_resumed_by_its_directory(call):
    with killed(loop, "descend"):
        main(shlex.split("pretrain digits --model linear --steps 5 --threads 1 --device cpu --output runs/pre"))
    call("pretrain runs/pre --steps 6", status=1)
    own, again = (
        RunKey.load("runs/pre/dice.key"),
        from_record.job_from_record("runs/pre", trust_code=False)[0].key,
    )
    assert again.check_value("0" * 64) == own.check_value("0" * 64), "another key would shuffle otherwise"
    assert json.loads(call("pretrain runs/pre --json"))["steps"] == 5
    call("pretrain runs/pre", status=1)


def test_several_seeds_give_a_median_and_the_promise_of_all_together(call, quick):
    command = f"train digits {quick} --seeds 3 --output runs/many --json"
    found = json.loads(call(command))
    assert len(set(found["values"])) > 1
    assert found["accuracy"] == sorted(found["values"])[1]
    assert [row["run"] for row in found["rows"]] == [f"runs/many/{number}" for number in (1, 2, 3)]
    plan = PrivacyPlan.from_dict(json.loads(Path("runs/many/1/plan.json").read_text()))

    assert found["epsilon_of_all"] == pytest.approx(plan.epsilon(steps=3 * plan.steps, delta=plan.delta), rel=1e-3)
    assert found["epsilon_of_all"] > 1.4 * found["epsilon"]
    assert json.loads(call(command)) == found, "finished runs are read, not trained again"
    shutil.rmtree("runs/many/2")
    again = json.loads(call(command))
    assert again["values"][::2] == found["values"][::2]
    told = call(command.removesuffix(" --json"))
    assert "all 3 runs on these data in this directory, if planned in advance, are (" in told
    call(command.replace("--steps 3", "--steps 4"), status=1)


def test_one_broken_file_does_not_stop_the_others(call, run, tmp_path, capsys):
    """Labels of those that can be read; the others are named, and the exit status says that there were some."""
    (tmp_path / "some").mkdir()
    for name in ("a.png", "c.png"):
        Image.fromarray(np.full((8, 8), 90, np.uint8)).save(tmp_path / "some" / name)
    (tmp_path / "some" / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert main(["predict", run, str(tmp_path / "some")]) == 1
    printed = capsys.readouterr()
    assert [line.split()[0].rpartition("/")[2] for line in printed.out.splitlines()] == ["a.png", "c.png"]
    assert "left out: " in printed.err
    assert "b.png' is not a readable image" in printed.err
    assert main(["predict", run, str(tmp_path / "some"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert len(told["predictions"]) == 2
    assert [Path(one["image"]).name for one in told["unreadable"]] == ["b.png"]


def test_data_that_were_declared_public_are_measured_as_such(call, quick, capsys):
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    for name, some in (("a", slice(0, 60)), ("b", slice(0, 58))):
        x, y = images[some], labels[some]
        np.savez(f"{name}.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    call(f"train npz:a.npz --public {quick.replace('--batch-size 64', '--batch-size 40')} --output here")
    assert json.loads(call("evaluate here npz:a.npz --json"))["public"] is True, "the run was told so"
    assert json.loads(call("evaluate here npz:b.npz --json"))["public"] is False
    assert json.loads(call("evaluate here npz:b.npz --public --json"))["public"] is True
    main(["evaluate", "here", "npz:b.npz"])
    assert "measured on private data" in capsys.readouterr().err
    main(["evaluate", "here", "npz:a.npz"])
    assert "measured on private data" not in capsys.readouterr().err
