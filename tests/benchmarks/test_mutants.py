"""The list of planted bugs: each still names text that stands once in the code, and tests that exist."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("mutants")


def test_every_planted_bug_can_be_planted(mutants):
    code = ROOT / "src" / "sfumato"
    odd = [bug.name for bug in mutants.BUGS if (code / bug.file).read_text("utf-8").count(bug.right) != 1]
    assert odd == []
    assert all(bug.right != bug.wrong for bug in mutants.BUGS)
    names = [bug.name for bug in mutants.BUGS]
    assert len(set(names)) == len(names)


def test_the_tests_that_notice_them_exist(mutants):
    named = {test.partition("::")[0] for bug in mutants.BUGS for test in bug.tests}
    assert [file for file in sorted(named) if not (ROOT / "tests" / file).exists()] == []
