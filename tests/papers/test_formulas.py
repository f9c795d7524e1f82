"""Every formula of the five papers that the package runs, computed independently; and the page that lists them.

A paper is a module with `PAPER`, its heading in docs/papers.md, and `FORMULAS`. A module without `PAPER` is tested and
not on the page.
"""

import ast
import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from . import davody2020, de2022, libraries, mehta2022, shejwalkar2022, xu2022

PAPERS = [de2022, mehta2022, davody2020, shejwalkar2022, xu2022, libraries]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def tables(heading: str) -> list[list[list[str]]]:
    """The tables of a section of docs/papers.md as rows of cells: formulas, and what is not run. The first row is the
    head's."""
    page = (ROOT / "docs/papers.md").read_text("utf-8")
    section = page.partition(f"\n## {heading}\n\n")[2].partition("\n## ")[0]
    rows = [
        [
            [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in table.splitlines()
        ]
        for table in section.strip().split("\n\n")
    ]
    return [[head, *rest] for head, _, *rest in rows]


def said(paper) -> list:
    """A paper's formulas, each with what its row of the page says."""
    says = dict(row[:2] for row in tables(paper.PAPER)[0]) if hasattr(paper, "PAPER") else {}
    return [replace(one, says=says.get(one.where, one.says)) for one in paper.FORMULAS]


EACH = [(paper, formula) for paper in PAPERS for formula in said(paper)]


def name_of(paper, formula):
    return f"{paper.__name__.rpartition('.')[2]}: {formula.where}"


@pytest.mark.parametrize(("paper", "formula"), EACH, ids=[name_of(*pair) for pair in EACH])
def test_the_package_computes_what_is_printed(paper, formula):
    """And a planted mistake is noticed: at least one random case lies further from it than is allowed."""
    pairs = formula.pairs()
    assert formula.distance(formula.formula, pairs) <= formula.within
    assert formula.mistakes, "a comparison that no mistake has failed shows nothing"
    for mistake, wrong in formula.mistakes.items():
        assert formula.distance(wrong, pairs) > formula.within, f"not noticed: {mistake}"


@pytest.mark.parametrize("file", sorted((HERE / "formulas").glob("*.py")), ids=lambda file: file.stem)
def test_formulas_import_nothing_of_the_package(file):
    tree = ast.parse(file.read_text("utf-8"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= {"__future__", "itertools", "math", "numpy"}


@pytest.mark.parametrize("paper", PAPERS[:-1], ids=lambda paper: paper.__name__.rpartition(".")[2])
def test_the_page_has_a_row_for_each_formula(paper):
    """In the paper's order, with code that is there; what is not run has a reason, and no place stands twice."""
    ([*_, head], *rows), *rest = tables(paper.PAPER)
    assert head == f"code (test: `tests/papers/{paper.__name__.rpartition('.')[2]}.py`)"
    assert [where for where, *_ in rows] == [formula.where for formula in paper.FORMULAS]
    for where, _, code in rows:
        path, _, names = code.strip("`").partition(": ")
        assert names, where
        assert {name.partition(".")[0] for name in names.split(", ")} <= defined(path), where
    not_run = [row for table in rest for row in table]
    assert all(reason for _, reason in not_run)
    places = [row[0] for row in rows + not_run]
    assert len(places) == len(set(places))


@functools.cache
def defined(path: str) -> set[str]:
    """The functions and classes of a file of the package, or of studies."""
    folder = ROOT if path.startswith("studies/") else ROOT / "src/sfumato"
    tree = ast.parse((folder / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
