"""Every formula of the five papers that the package runs, computed independently; and the page that lists them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from . import davody2020, de2022, libraries, mehta2022, page, shejwalkar2022, xu2022

PAPERS = [de2022, mehta2022, davody2020, shejwalkar2022, xu2022, libraries]
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


def test_the_code_that_a_row_names_is_there():
    for paper, formula in EACH:
        path, _, names = formula.code.partition(": ")
        assert names, name_of(paper, formula)
        assert {name.partition(".")[0] for name in names.split(", ")} <= defined(path), name_of(paper, formula)


@functools.cache
def defined(path: str) -> set[str]:
    """The functions and classes of a file of the package, or of studies."""
    folder = ROOT if path.startswith("studies/") else ROOT / "src/sfumato"
    tree = ast.parse((folder / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_the_page_has_a_row_for_each_formula():
    """`python -m tests.papers.page` writes it."""
    assert (ROOT / "docs/papers.md").read_text("utf-8") == page.written(PAPERS)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.__name__.rpartition(".")[2])
def test_a_row_is_found_by_its_place(paper):
    """No two rows of a paper have the same, and what is not run has a reason."""
    places = [formula.where for formula in paper.FORMULAS] + list(getattr(paper, "NOT_RUN", {}))
    assert len(places) == len(set(places))
    assert all(getattr(paper, "NOT_RUN", {}).values())
