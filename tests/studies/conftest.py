"""Studies are called as their scripts are."""

from __future__ import annotations

import shlex

import pytest

from studies import command


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
