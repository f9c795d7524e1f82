"""The installed command in processes of its own: exit statuses, streams, and what help imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.cli import main
from sfumato.cli.registry import VERBS, load

COMMAND = Path(sys.executable).with_name("sfumato")
HEAVY = {"torch", "torchvision", "timm", "matplotlib", "sklearn", "scipy", "dp_accounting", "numpy", "PIL", "jinja2"}


def command(*arguments: str) -> subprocess.CompletedProcess:
    program = [str(COMMAND)] if COMMAND.exists() else [sys.executable, "-m", "sfumato"]
    return subprocess.run([*program, *arguments], capture_output=True, text=True, check=False)


TOLD = """
import contextlib, io, json, sys
from sfumato.cli import main
for arguments in json.loads(sys.argv[1]):
    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        status = main(arguments)
    imported = sorted(name for name in sys.modules if "." not in name)
    print(json.dumps([status, *(one.getvalue() for one in streams), imported]))
"""


def told(commands: list[list[str]]) -> list[tuple[int, str, str, set[str]]]:
    """Of commands one after the other in a process of their own: status, both streams, and what is imported by then."""
    ended = subprocess.run(
        [sys.executable, "-c", TOLD, json.dumps(commands)], capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    return [(status, output, errors, set(imported)) for status, output, errors, imported in found]


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[int, str, str, set[str]]]:
    asked = [["--help"], *([verb, "--help"] for verb in VERBS), ["train", "--help-all"]]
    return dict(zip(["", *VERBS, "train in full"], told(asked), strict=True))


@pytest.mark.parametrize("verb", ["", *VERBS, "train in full"])
def test_help_imports_nothing_heavy(verb, helps):
    status, printed, _, loaded = helps[verb]
    assert status == 0
    assert f"usage: sfumato {verb.removesuffix(' in full')}".strip() in printed
    assert "sys" in loaded
    assert loaded & (HEAVY | {"rich"}) == set()


ABSENT = (
    "train folder:missing",
    "pretrain npz:missing --public",
    "dedup digits folder:missing",
    "evaluate missing digits",
    "predict RUN missing.png",
    "aggregate RUN --score-on npz:missing",
    "verify missing",
    "train digits --pretrained missing",
    "train digits --public-data npz:missing",
)
UNKNOWN = "train cats"


@pytest.fixture(scope="module")
def refused(digits_run) -> dict[str, tuple[int, str, str, set[str]]]:
    asked = (UNKNOWN, *ABSENT)
    return dict(zip(asked, told([given.replace("RUN", str(digits_run)).split() for given in asked]), strict=True))


@pytest.mark.parametrize("given", ABSENT)
def test_what_is_not_there_is_refused_before_torch_is_imported(given, refused):
    status, printed, errors, loaded = refused[given]
    assert (status, printed, "torch" in loaded) == (1, "", False)
    assert "does not exist" in errors


def test_a_source_of_no_kind_is_refused_as_soon(refused):
    status, _, errors, loaded = refused[UNKNOWN]
    assert (status, {"torch", "torchvision"} & loaded) == (1, set())
    assert "source 'cats' is of an unknown kind" in errors


@pytest.mark.parametrize("verb", VERBS)
def test_the_overview_says_what_a_verb_says_of_itself(verb):
    assert load(verb).__doc__.replace("\n    ", " ").startswith(VERBS[verb].rstrip("."))


def test_a_reader_that_goes_away_is_no_error():
    program = f"{sys.executable} -m sfumato train --help | true"
    ended = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert "Traceback" not in ended.stderr


@pytest.fixture(scope="module", autouse=True)
def coarse_losses() -> None:
    """Not here: a process of its own has the fine grid."""


@pytest.mark.slow
def test_train_as_a_command(workplace, quick, call):
    ended = command("train", "digits", *quick.split(), "--output", "a", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["run"] == "a"
    assert call("verify a").startswith("The statement follows from the record.")
    (workplace / "a" / "model.safetensors").write_bytes(b"")
    assert main(["verify", "a"]) == 1


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_wait_without_spinning_unless_the_user_says_otherwise(monkeypatch, given):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    look = "print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
    child = f"subprocess.run([sys.executable, '-c', 'import os, sys; {look.replace(chr(39), chr(92) + chr(39))}'])"
    code = (
        f"import os, subprocess, sys, sfumato; sfumato.SfumatoError; {look}; from sfumato.cli import main; "
        f"main(['--version']); {look}; sys.stdout.flush(); {child}"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, _, called, of_child = ended.stdout.splitlines()
    assert imported == f"{given} False", "a library must not change its user's process"
    assert called == of_child == f"{given or 'PASSIVE'} False"
