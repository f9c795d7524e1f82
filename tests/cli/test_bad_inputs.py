"""What the command line is given by mistake: each is refused in one line that names it and says what to do."""

import io
import os
import shlex
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.cli import main
from sfumato.training import loop
from tests.killed import killed

REFUSED = {
    # the command itself
    "": "no verb is given; start with: sfumato train SOURCE, such as folder:pictures; see sfumato --help",
    "frobnicate": "unknown verb 'frobnicate'; start with: sfumato train SOURCE, such as folder:pictures; see "
    "sfumato --help",
    "train folder pictures": "one argument too many: pictures; see sfumato train --help",
    "train digits --epsilon three": "--epsilon must be a number, or several separated by commas, got 'three'; "
    "see sfumato train --help",
    "train digits --epsilon 0": "--epsilon must be positive, got 0.0; give the privacy budget, a number such as 3",
    "train digits --delta 1": "--delta must lie strictly between 0 and 1, got 1.0; give a number such as 1e-5, well "
    "below 1/N",
    "train digits --noise-multiplier 0": "--noise-multiplier must be positive, got 0.0; give the noise's standard "
    "deviation over the clipping norm",
    "train digits QUICK --max-norm 0": "--max-norm must be positive, got 0.0; give the clipping norm, such as 1.0",
    "plan": "--examples is missing; give it, such as --examples 50000",
    "plan --examples 1000": "three of --batch-size, --steps, --noise-multiplier and --epsilon are needed, got none; "
    "leave out the one to compute; sfumato train SOURCE --dry-run chooses them by rules",
    "tradeoff --examples 1000": "--epsilon is missing; give it, such as --epsilon 8",
    # choices of the model and its training
    "train digits QUICK --pretrained missing.safetensors": "pretrained file missing.safetensors does not exist; give "
    "the path of a finished run or of a safetensors file, or the word timm",
    "train digits QUICK --pretrained junk.safetensors": "pretrained file junk.safetensors cannot be read as "
    "safetensors: ...; convert the weights with safetensors.torch.save_file; pickled files are not loaded",
    "sweep digits QUICK --vary views=1,2 --vary views=3": "--vary names views twice; list all of its values in one "
    "place",
    "sweep digits QUICK --vary learn_rate=1,2 moment=0.5": "a search cannot vary learn_rate, moment; did you mean "
    "learning_rate, momentum",
    # training without privacy
    "pretrain digits --batch-size 5000": "--batch-size must not exceed the number of examples, got 5000 of 1438; give "
    "a smaller one",
    "train digits QUICK --threads 0": "--threads must be at least 1, got 0; give a whole number of at least 1",
    # sources
    "train pictures QUICK": "pictures is a folder, but neither a run nor a source; write folder:pictures",
    "train digits --source npz:a QUICK": "--source npz:a is for recipes, but digits is a source; leave it out",
    "train digits --public --private QUICK": "--public and --private are both given; give one of them",
    "train torchvision:MNIST --root empty QUICK": "torchvision:MNIST is not in 'empty', or is damaged there; pass "
    "--download to fetch it, or pass --root with the folder that holds it",
    # recipes
    "train missing.toml": "the recipe missing.toml does not exist; check the path",
    "train nosource.toml": 'the recipe nosource.toml names no source; give --source, or add source = "digits" to it',
    "train many.toml": "steps in the recipe many.toml must be a number, got 'many'; write a number",
    "train recipe:": "no recipe is called ''; take one of docs/recipes.md",
    "train recipe:mehta2022/table5": "no recipe is called 'mehta2022/table5'; give recipe: and one of "
    "mehta2022/table4, ...",
    "train recipe:de2022/table13": "recipe:de2022/table13 has rows by --epsilon, but none is selected; give --epsilon "
    "1, 2, 3, 4, 6 or 8",
    "sweep recipe:de2022/table13 --epsilon 1 --vary epsilon=1,2": "--epsilon selects the row of recipe:de2022/table13, "
    "so it cannot vary; search each row",
    "pretrain recipe:de2022/table13": "recipe:de2022/table13 is for sfumato train; run sfumato train "
    "recipe:de2022/table13",
    # where the run goes
    "train digits QUICK --output full": "full exists but holds no run of sfumato; give an empty or a new --output",
    "train digits QUICK --output /proc/a/b": "/proc/a/b cannot be written (...); choose a --output that can be written",
    f"train digits QUICK --output {'a' * 300}": f"{'a' * 300}/settings.json: File name too long; check the path, its "
    "permissions and the disk",
    # runs
    "verify missing": "missing does not exist; give a directory written by sfumato train",
    "verify file": "file is no run directory; give a directory written by sfumato train",
    "verify unfinished": "the run in unfinished is not finished; resume it (sfumato train unfinished) or end it at "
    "its checkpoint (sfumato finish unfinished)",
    "train finished": "the run in finished is finished; give another --output to train again, with finished/run.toml "
    "for the same settings; the privacy costs of both add up",
    "finish finished": "the run in finished is finished; evaluate it (sfumato evaluate finished SOURCE), write its "
    "report (sfumato report finished) or check it (sfumato verify finished)",
    "train unfinished --steps 9": "unfinished is a run, which resumes with its own settings, but options were given: "
    "steps; leave them out, or give the source to start a new run",
    "train no_key": "the run key no_key/dice.key is missing or damaged, so the run cannot continue without drawing "
    "noise twice; finish the run with the steps it has (sfumato finish RUN), or start another run",
    "train junk_plan": "junk_plan/plan.json is not valid JSON; restore it from a copy, or start another run",
    "finish junk_checkpoint": "junk_checkpoint/checkpoint.safetensors cannot be read as safetensors (...); restore it "
    "from a copy, or start another run",
    "predict junk_model pictures": "junk_model/model.safetensors cannot be read as safetensors (...); restore it from "
    "a copy, or start another run",
    "predict finished broken/b/0.png": "'broken/b/0.png' is not a readable image; replace the file, or remove it",
    "predict finished pipe.png": "image 'pipe.png' is a pipe; name an ordinary file, or remove it",
    "predict finished circle": "folder 'circle/a/again' is a link to 'circle', which was already read; take the link "
    "out",
    "predict finished newline": "image 'newline/a\\nb.png' holds a control character; rename it",
    "predict finished /dev/zero": "image '/dev/zero' is a device; name an ordinary file, or remove it",
    "predict finished folder:pictures": "image 'folder:pictures' does not exist; name image files, or folders of them; "
    "sfumato evaluate takes a source",
    "predict finished empty": "there are no images in empty; name image files, or folders of them",
    "predict finished pictures --top 0": "--top must be at least 1, got 0; give a whole number of at least 1",
    "evaluate finished folder:pictures": "'pictures/a/0.png' has the label 'a', which is no class of the model; "
    "remove its images from the source, or give a run that was trained on these classes",
    "evaluate finished digits --part validation": "--part must be test or train or all, got 'validation'; see "
    "sfumato evaluate --help",
}
"""What is typed, with the error that it must give; QUICK stands for options of a small run, ... for any text."""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, digits_run, quick):
    """A directory full of things that are not as they should be."""
    here = tmp_path_factory.mktemp("workshop")
    for kind in ("pictures", "broken"):
        for label in "ab":
            for place in range(6):
                path = here / kind / label / f"{place}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((8, 8), 20 * place, np.uint8)).save(path)
    (here / "broken/b/0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for name in ("empty", "full"):
        (here / name).mkdir()
    for name in ("file", "full/file", "junk.safetensors"):
        (here / name).write_text("junk")
    os.mkfifo(here / "pipe.png")
    (here / "circle/a").mkdir(parents=True)
    (here / "circle/a/again").symlink_to(here / "circle")
    (here / "newline").mkdir()
    (here / "newline/a\nb.png").write_text("junk")
    (here / "nosource.toml").write_text("steps = 3\n")
    (here / "many.toml").write_text('source = "digits"\nsteps = "many"\n')
    shutil.copytree(digits_run, here / "finished")
    _unfinished(here / "unfinished", quick, here.with_name("owner"))
    for name in ("no_key", "junk_plan", "junk_checkpoint"):
        shutil.copytree(here / "unfinished", here / name)
    shutil.copytree(digits_run, here / "junk_model")
    (here / "no_key/dice.key").unlink()
    (here / "junk_plan/plan.json").write_text("{")
    (here / "junk_checkpoint/checkpoint.safetensors").write_text("junk")
    (here / "junk_model/model.safetensors").write_text("junk")
    return here


def _unfinished(path: Path, quick: str, home: Path) -> None:
    with killed(loop, "descend") as patch:
        patch.setenv("SFUMATO_HOME", str(home))
        main([*shlex.split(f"train digits {quick}"), "--output", str(path)])


def _replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def _listing(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


@pytest.mark.parametrize("command", REFUSED)
def test_a_bad_input_is_refused_in_one_line(command, workshop, quick, monkeypatch, capsys):
    monkeypatch.chdir(workshop)
    monkeypatch.setenv("SFUMATO_HOME", str(workshop.with_name("owner")))
    before = _listing(workshop)
    status = main(shlex.split(command.replace("QUICK", quick)))
    printed = capsys.readouterr()
    *told, line = printed.err.splitlines()
    assert status in (1, 2)
    assert line.startswith("error: ")
    before_it = (
        "data: ",
        "model: ",
        "epsilon: ",
        "time: ",
        "expected: ",
        "will not be learnt: ",
        "note: ",
        "resuming ",
    )
    assert all(other.startswith(before_it) for other in told)
    assert printed.out == ""
    matches(line.removeprefix("error: "), REFUSED[command])
    assert "; " in line
    assert _listing(workshop) == before


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("train", 2),
        ("plan --examples 9 --steps 9", 2),
        ("sweep digits", 2),
        ("train digits --window 5", 2),
        ("train digits --window 5,4", 1),
    ],
)
def test_what_cannot_be_understood_has_a_status_of_its_own(command, status):
    assert main(shlex.split(command)) == status


def test_what_is_no_text_is_refused_wherever_it_stands(workshop, monkeypatch, capsys):
    monkeypatch.chdir(workshop)
    for *command, odd in (["predict", "finished", "caf\udce9.png"], ["train", "digits", "--output", "caf\udce9"]):
        assert main([*command, odd]) == 2
        assert capsys.readouterr().err == f"error: the argument {odd!r} is not UTF-8; rename the file\n"


def test_folders_are_not_images_whatever_their_names(run, workplace, call):
    image = workplace / "new" / "x.png" / "0.png"
    image.parent.mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(image)
    assert call(f"predict {run} new").splitlines()[0].startswith("new/x.png/0.png  ")


def test_a_folder_that_may_not_be_listed_is_not_left_out(run, workplace, call, monkeypatch):
    (workplace / "new").mkdir()

    def denied(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", denied)
    assert call(f"predict {run} new", status=1) == (
        "error: folder 'new' cannot be listed (Permission denied); check its permissions\n"
    )


def test_names_are_shown_on_a_terminal_that_lacks_their_letters(run, workplace):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(workplace / "caf\u00e9.png")
    for more, shown in (((), b"caf\\xe9.png  "), (("--json",), b'"caf\\u00e9.png"')):
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="ascii")) as terminal:
            assert main(["predict", run, "caf\u00e9.png", *more]) == 0
        terminal.flush()
        assert shown in terminal.buffer.getvalue()


def matches(line: str, expected: str) -> None:
    """Whether the line is the expected one; ... stands for any text."""
    if "..." not in expected:
        assert line == expected
        return
    first, *others = expected.split("...")
    assert line.startswith(first), line
    place = len(first)
    for other in others:
        place = line.find(other, place) + len(other)
        assert place >= len(other), line
    assert others[-1] == "" or line.endswith(others[-1]), line


@pytest.mark.skipif("os.geteuid() == 0", reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(workplace, quick, capsys):
    (workplace / "closed").mkdir(mode=0o500)
    assert main(shlex.split(f"train digits {quick} --output closed/run")) == 1
    assert capsys.readouterr().err == (
        "error: closed/run cannot be written (Permission denied); choose a --output that can be written\n"
    )


def test_a_place_that_cannot_be_made_is_refused_before_anything_is_read(workplace, capsys):
    (workplace / "runs").touch()
    (workplace / "file").touch()
    for place, option in (("file/run", "--output file/run"), ("runs/digits", "")):
        assert main(shlex.split(f"train digits {option}")) == 1
        assert capsys.readouterr().err == (
            f"error: {place} cannot be written (Not a directory); choose a --output that can be written\n"
        )


@pytest.mark.parametrize(
    "command", ["train digits QUICK --pretrained pipe", "train features:of-pipes QUICK", "verify of-pipes"]
)
def test_a_pipe_in_place_of_a_file_is_refused_and_never_read(command, run, quick, capsys, workplace):
    """Reading from it would wait for ever for somebody to write."""
    Path("of-pipes").mkdir()
    for name in ("pipe.toml", "pipe", "of-pipes/features.json", "of-pipes/ledger.jsonl", "of-pipes/plan.json"):
        os.mkfifo(name)
    if command.startswith("verify"):
        assert main(["verify", "of-pipes"]) == 1
        assert "is a pipe" in capsys.readouterr().out
        return
    assert main(shlex.split(command.replace("QUICK", quick))) == 1
    assert "is a pipe; name an ordinary file" in capsys.readouterr().err.splitlines()[-1]
