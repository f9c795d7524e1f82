"""Studies are called as their scripts are."""

import shlex

import pytest

from sfumato.cli import main
from studies import command


@pytest.fixture
def call(capsys, workplace):
    """Run a command of sfumato's. Returns its standard output."""

    def run(line: str) -> str:
        capsys.readouterr()
        assert main(shlex.split(line)) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def study(capsys):
    """Run a study, such as "pairs --help". Returns its standard output, or of a refusal its standard error."""

    def run(line: str, *, status: int = 0) -> str:
        capsys.readouterr()
        name, *arguments = shlex.split(line)
        assert command.main(name, arguments) == status
        printed = capsys.readouterr()
        return printed.out if status == 0 else printed.err

    return run


@pytest.fixture
def workplace(new_directory, home, monkeypatch):
    """An empty current directory, and an owner's directory of its own."""
    path = new_directory("work")
    (home / "owner.key").write_text("11" * 32)  # the same records are held out each time
    (home / "owner.key").chmod(0o600)
    monkeypatch.chdir(path)
    return path
