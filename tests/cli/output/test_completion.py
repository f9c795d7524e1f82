"""Completion by the shell, and what is said of options by other names."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato import models
from sfumato.cli import main
from sfumato.data.kinds import KINDS

WORDS = {
    "sfumato tr": ["train", "tradeoff"],
    "sfumato train --eps": ["--epsilon"],
    "sfumato train --help n": ["noise and clipping", "normalisation"],
    "sfumato train digits --unit ": ["example", "user"],
    "sfumato train digits --model l": ["lenet5", "lenet", "linear"],
    "sfumato train folder:pi": ["folder:pictures/"],
    "sfumato train 'folder:pictures/my c": ["folder:pictures/my cats/"],
    "sfumato train torchvision:Food": ["torchvision:Food101"],
    "sfumato train mi": ["mine.toml"],
    "sfumato train digits --drift-groups cat dog --flip T": ["True"],
    "sfumato predict runs/mushrooms --interval 0.9 pictures/n": ["pictures/new.png"],
    "sfumato verify runs/mu": ["runs/mushrooms"],
    "sfumato compare runs/mushrooms runs/m": ["runs/mushrooms"],
    "sfumato nonsense ": [],
    "FOO=1 bin/sfumato tr": ["train", "tradeoff"],
}


@pytest.fixture
def places(workplace: Path) -> Path:
    """Images, a run and a recipe."""
    for folder in ("pictures/my cats", "runs/mushrooms", "pictures/.hidden"):
        Path(folder).mkdir(parents=True)
    for file in ("pictures/new.png", "runs/mushrooms/settings.json", "mine.toml", "more.txt"):
        Path(file).touch()
    return workplace


@pytest.mark.parametrize("line", WORDS)
def test_what_may_stand_there_is_completed(line: str, places: Path, capsys):
    assert main(["--complete", "fish", line]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in printed if line] == WORDS[line]


def test_every_model_and_every_kind_of_source_is_offered(capsys):
    assert main(["--complete", "zsh", "sfumato train "]) == 0
    kinds = [line for line in capsys.readouterr().out.splitlines() if line.endswith(":") or line == "digits"]
    assert [*KINDS, "recipe"] == [line.rstrip(":") for line in kinds]
    assert main(["--complete", "zsh", "sfumato train digits --model "]) == 0
    offered = {line.rstrip(":-") for line in capsys.readouterr().out.splitlines()}
    assert offered <= {re.split("-[A-Z]|:[A-Z]", name)[0] for name in models.NAMES}
    assert {"dictionary", "scattering", "linear", "wrn", "nf-resnet", "timm"} <= offered


@pytest.mark.parametrize(("begun", "rest"), [("--mod", "--model"), ("torchvision:KMN", "KMNIST")])
def test_completion_imports_nothing_heavy(begun, rest):
    asked = f"import sys; from sfumato.cli import main; main(['--complete', 'bash', 'sfumato train {begun}', ':=']); "
    asked += "print({'torch', 'torchvision', 'numpy', 'tyro'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[:2] == [rest, "set()"]


ASK = {
    "bash": """
{script}
COMP_LINE={line}; COMP_POINT=${{#COMP_LINE}}
_sfumato sfumato
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "fish": "{script}\ncomplete -C {line}",
}
"""What asks a shell itself; zsh completes nothing where nobody types."""


@pytest.mark.parametrize("shell", ASK)
def test_a_shell_completes_by_its_script(shell: str, places: Path, capsys, monkeypatch):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    monkeypatch.setenv("PATH", f"{places}:{os.environ['PATH']}")
    command = places / "sfumato"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sfumato "$@"\n')
    command.chmod(0o755)
    assert main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    for line, found in {
        "sfumato train folder:pi": {"folder:pictures/"},
        "sfumato verify runs/mu": {"runs/mushrooms"},
        "sfumato predict runs/mushrooms pictures/my": {"pictures/my cats/"},
    }.items():
        asked = ASK[shell].format(script=script, line=shlex.quote(line))
        ended = subprocess.run([shell, "-c", asked], capture_output=True, text=True, check=True)
        words = {word.partition("\t")[0] for word in ended.stdout.splitlines()}
        # bash takes a colon for the end of a word, and a space for one unless it is escaped
        assert words == ({one.rpartition(":")[2].replace(" ", "\\ ") for one in found} if shell == "bash" else found)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_reads_its_script(places: Path, capsys):
    assert main(["--completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef sfumato\n")
    asked = f"autoload -Uz compinit && compinit -D\n{script}\nprint $_comps[sfumato]"
    ended = subprocess.run(["zsh", "-f", "-c", asked], capture_output=True, text=True, check=True)
    assert ended.stdout == "_sfumato\n"


@pytest.mark.parametrize("shell", [[], ["tcsh"]])
def test_another_shell_is_refused_in_one_line(shell, capsys):
    assert main(["--completion", *shell]) == 2
    assert capsys.readouterr().err.startswith("error: --completion must be one of bash, zsh, fish, got ")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("train digits --lr 0.5", "--learning-rate"),
        ("train digits -o here", "--output"),
        ("predict run a.png --tops 3", "--top"),
    ],
)
def test_an_option_by_another_name_is_known_again(given, meant, capsys):
    assert main(given.split()) == 2
    assert f"; perhaps you meant {meant}; see sfumato" in capsys.readouterr().err


def test_what_is_like_no_option_has_no_other_meaning(capsys):
    assert main(["predict", "run", "a.png", "--learning-rate", "3"]) == 2
    assert "perhaps" not in capsys.readouterr().err
