"""Each thing that is known to go wrong has tests here that are named for it, and each planted bug belongs to one."""

import tomllib
from pathlib import Path

import pytest

from tests.audit.test_planted import CAUGHT_BY

TESTS = Path(__file__).resolve().parents[1]
ROWS = tomllib.loads((TESTS / "audit" / "trust.toml").read_text("utf-8"))["row"]


def test_all_rows_are_there():
    assert [row["number"] for row in ROWS] == list(range(1, 34))
    assert sorted(bug for row in ROWS for bug in row.get("audit", [])) == sorted(CAUGHT_BY)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['number']}: {row['wrong']}")
def test_its_tests_are_there(row):
    assert row["tests"]
    for name in row["tests"]:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (TESTS / file).read_text("utf-8"), name
