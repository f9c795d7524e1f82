"""Every formula of the five papers that the package runs, computed independently; and the page that lists them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from . import de2022, mehta2022, page

PAPERS = [de2022, mehta2022]
EACH = [(paper, formula) for paper in PAPERS for formula in paper.FORMULAS]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


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


@pytest.mark.parametrize(("paper", "formula"), EACH, ids=[name_of(*pair) for pair in EACH])
def test_the_code_that_a_row_names_is_there(paper, formula):
    path, _, names = formula.code.partition(": ")
    source = (ROOT / "src/sfumato" / path).read_text("utf-8")
    defined = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert names
    assert {name.partition(".")[0] for name in names.split(", ")} <= defined


def test_the_page_has_a_row_for_each_formula():
    """`python tests/papers/page.py` writes it."""
    assert (ROOT / "docs/papers.md").read_text("utf-8") == page.written(PAPERS)
