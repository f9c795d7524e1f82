"""No code is run on the word of a file: not of a model file, a recipe, a run or a cache; only on that of its user."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import sfumato
from sfumato.cli import main

CODE = """
from pathlib import Path
from torch import nn
{trace}
def build(*, classes, channels, size, depth=1):
    layers = [nn.Linear(channels * size[0] * size[1], classes)]
    model = nn.Sequential(nn.Flatten())
    model.head = layers[0]
    return model
"""
QUICK = "--steps 2 --noise-multiplier 8 --batch-size 64 --seed 1 --device cpu --threads 1"


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A folder with a package of one's own, and what it has trained: private, public, and with a cache behind it."""
    folder = tmp_path_factory.mktemp("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(folder / "home"))
        patch.chdir(folder)
        (folder / "owncode.py").write_text(CODE.format(trace=""))
        model = "--model owncode:build,depth=2"
        assert main(f"train digits {model} {QUICK} --output private".split()) == 0
        assert main(f"pretrain digits {model} --steps 2 --seed 1 --threads 1 --output public".split()) == 0
        cached = "features digits --backbone public --model owncode:build,depth=2 --threads 1 --output cache"
        assert main(cached.split()) == 0
        assert main(f"train features:cache {QUICK} --output head".split()) == 0
    return folder


@pytest.fixture
def elsewhere(mine, tmp_path, monkeypatch):
    """Another user's directory, in which a module of the name that the files give lies in wait."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    monkeypatch.delitem(sys.modules, "owncode", raising=False)
    trace = "Path('executed').touch()"
    (tmp_path / "owncode.py").write_text(CODE.format(trace=trace))
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    return tmp_path


def refused(capsys, arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments.split()) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "names custom code 'owncode:build,depth=2', and code is never run just because a file names it" in line, line
    assert not Path("executed").exists()
    assert "owncode" not in sys.modules
    return line


@pytest.mark.parametrize(
    "command",
    [
        "predict {mine}/private a.png",
        "predict {mine}/private/model.safetensors a.png",
        "predict {mine}/head a.png",
        "evaluate {mine}/private digits",
        "train digits --pretrained {mine}/public",
        "features digits --backbone {mine}/public",
    ],
)
def test_what_a_file_names_is_not_imported(mine, elsewhere, capsys, command):
    line = refused(capsys, command.format(mine=mine))
    assert "--model owncode:build,depth=2" in line, "the way out"


@pytest.mark.parametrize("run", ["private", "head"])
def test_what_the_user_names_is(mine, elsewhere, run):
    assert main(["predict", f"{mine}/{run}", "a.png", "--model", "owncode:build,depth=2"]) == 0
    assert Path("executed").exists()
    loaded = sfumato.load(mine / run, model="owncode:build,depth=2")
    assert loaded.predict(["a.png"]).shape == (1, 10)


def test_another_spelling_than_the_file_s_is_refused(mine, elsewhere):
    with pytest.raises(sfumato.SfumatoError, match=r"'owncode:build,depth=2', not 'owncode:build,depth=3', and code"):
        sfumato.load(mine / "private", model="owncode:build,depth=3")


def test_the_working_directory_is_not_on_the_path_while_a_file_is_loaded(mine, elsewhere, monkeypatch):
    """A file may lie beside a module that has the name of a library."""
    seen = []
    monkeypatch.setattr(sys, "path", ["", str(elsewhere), *sys.path])
    monkeypatch.setattr(sfumato.runs.loaded, "read_safetensors", lambda path: seen.extend(sys.path))
    with pytest.raises(TypeError):
        sfumato.load(mine / "private" / "model.safetensors")
    assert seen
    assert not {"", str(elsewhere)} & set(seen)
    assert sys.path[:2] == ["", str(elsewhere)]


def test_a_module_beside_the_command_is_not_taken_for_a_library(elsewhere):
    (elsewhere / "argparse.py").write_text("raise SystemExit('executed')")
    done = subprocess.run([sys.executable, "-m", "sfumato", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def recipe(elsewhere):
    text = 'source = "digits"\nmodel = "owncode:build,depth=2"\nsteps = 2\nnoise-multiplier = 8.0\nthreads = 1\n'
    (elsewhere / "a.toml").write_text(text)
    return "a.toml"


@pytest.mark.parametrize("verb", ["pretrain", "sweep"])
def test_a_recipe_s_code_is_not_run(elsewhere, recipe, capsys, verb):
    text = Path(recipe).read_text()
    Path(recipe).write_text(text if verb != "pretrain" else text.replace("noise-multiplier = 8.0\n", ""))
    line = refused(capsys, f"{verb} {recipe}")
    assert "--trust-code, or name it: --model owncode:build,depth=2" in line


@pytest.mark.parametrize("trust", ["--trust-code", "--model owncode:build,depth=2"])
def test_a_recipe_s_code_is_run_where_its_user_trusts_it(elsewhere, recipe, trust):
    assert main(f"train {recipe} {trust} --dry-run".split()) == 0
    assert Path("executed").exists()


def test_a_recipe_cannot_trust_itself(elsewhere, recipe, capsys):
    Path(recipe).write_text(Path(recipe).read_text() + "trust-code = true\n")
    assert main(["train", recipe]) == 1
    assert "unknown options: trust_code" in capsys.readouterr().err
    assert not Path("executed").exists()


def test_a_recipe_s_table_of_models_to_vary_is_not_run(elsewhere, recipe, capsys):
    text = 'source = "digits"\nsteps = 2\n[sweep]\nmodel = ["linear", "owncode:build,depth=2"]\n'
    Path(recipe).write_text(text)
    refused(capsys, f"sweep {recipe}")


UNFINISHED = [("train", "private"), ("finish", "private"), ("pretrain", "public"), ("embed", "private")]


@pytest.mark.parametrize(("verb", "run"), UNFINISHED)
def test_an_unfinished_run_s_code_is_not_run(mine, elsewhere, capsys, verb, run):
    """A run directory may come from somebody else."""
    copied = elsewhere / "copied"
    copied.mkdir()
    for path in (mine / run).iterdir():
        if path.is_file() and path.name not in ("done", "model.safetensors"):
            shutil.copy(path, copied / path.name)
    if verb == "embed":
        record = json.loads((copied / "settings.json").read_text())
        (copied / "settings.json").write_text(json.dumps(record | {"embedding": {}}))
    assert "--trust-code" in refused(capsys, f"{verb} {copied}")
