"""Completion by the shell, and what is said of options by other names."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sfumato.cli import main
from sfumato.cli.registry import VERBS

ASK = """
eval "$(cat script)"
complete -p sfumato
COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1)); COMP_LINE="{words}"; COMP_POINT=${{#COMP_LINE}}
_tyro_sfumato
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("sfumato tr", {"train", "tradeoff"}),
        ("sfumato train --eps", {"--epsilon"}),
        ("sfumato train --help", {"--help", "--help-all"}),
        ("sfumato predict r --inter", {"--interval"}),
    ],
)
def test_bash_completes_verbs_and_options(workplace, capsys, words, completed):
    assert main(["--completion", "bash"]) == 0
    (workplace / "script").write_text(capsys.readouterr().out)
    asked = ASK.format(words=words, count=len(words.split()))
    ended = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    said, found = ended.stdout.splitlines()
    assert "-o default" in said, "what is neither is a path"
    assert set(found.split()) == completed


def test_zsh_has_a_script_with_all_verbs(capsys):
    assert main(["--completion", "zsh"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("#compdef sfumato")
    assert all(verb in printed for verb in VERBS)


def test_fish_has_a_script_with_all_verbs_and_options(workplace, capsys):
    assert main(["--completion", "fish"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert all(line.startswith("complete -c sfumato -n ") for line in lines)
    assert all(f"-a {verb} -d '" in printed for verb in VERBS)
    of_train = [line for line in lines if "from train'" in line]
    assert any("-l batch-size -r -d '" in line for line in of_train)
    assert any("-l json -d '" in line for line in of_train)  # a switch takes nothing
    assert all(line.replace("\\'", "").count("'") % 2 == 0 for line in lines)
    if shutil.which("fish"):
        (workplace / "script").write_text(printed)
        asked = 'source script; complete -C "sfumato train --eps"'
        ended = subprocess.run(["fish", "-c", asked], capture_output=True, text=True, check=True)
        assert ended.stdout.startswith("--epsilon")


@pytest.mark.parametrize("shell", [[], ["tcsh"]])
def test_another_shell_is_refused_in_one_line(shell, capsys):
    assert main(["--completion", *shell]) == 2
    assert capsys.readouterr().err.startswith("error: --completion must be one of bash, zsh, fish, got ")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("train digits --lr 0.5", "--learning-rate"),
        ("train digits --bs=64", "--batch-size"),
        ("train digits -o here", "--output"),
        ("train digits --publicdata npz:a", "--public-data"),
        ("plan --sigma 2", "--noise-multiplier"),
        ("predict run a.png --tops 3", "--top"),
    ],
)
def test_an_option_by_another_name_is_known_again(given, meant, capsys):
    assert main(given.split()) == 2
    assert f"; perhaps you meant {meant}; see sfumato" in capsys.readouterr().err


def test_what_is_like_no_option_has_no_other_meaning(capsys):
    assert main(["predict", "run", "a.png", "--learning-rate", "3"]) == 2
    assert "perhaps" not in capsys.readouterr().err
