"""docs/papers.md, from the formulas that the tests compute; `python -m tests.papers.page` writes it.

A paper is a module with `PAPER` and `FORMULAS`, and with `NOT_RUN` where some of its formulas have no row: where they
stand, and why.
"""

from __future__ import annotations

import importlib
from pathlib import Path

HEAD = """# The papers, formula by formula

What a paper prints is what runs, and what its authors released where that differs and a row says so. Each row is a
numbered equation, an algorithm or a formula of an appendix that the package runs. A test computes it a second time in
NumPy and float64, from the paper, importing nothing of the package, on random inputs, and fails on each of the planted
mistakes that it lists. The test of a row is
`tests/papers/test_formulas.py::test_the_package_computes_what_is_printed[PAPER: PLACE]`, with the paper's file and the
first column, and `pytest tests/papers` runs them all. What a paper prints and the package does not run is listed after
its rows, with the reason.
"""


def written(papers) -> str:
    """The page."""
    return HEAD + "".join(section(paper) for paper in papers)


def section(paper) -> str:
    """One paper: where, the formula, the code, the test, the mistakes that the test has noticed."""
    test = f"`tests/papers/{paper.__name__.rpartition('.')[2]}.py`"
    rows = [(one.where, one.says, f"`{one.code}`", "; ".join(one.mistakes)) for one in paper.FORMULAS]
    page = f"\n## {paper.PAPER}\n\nComputed in {test}.\n\n" + table(
        ("in the paper", "the formula", "where it runs", "mistakes that its test notices"), rows
    )
    if not_run := getattr(paper, "NOT_RUN", {}):
        page += f"\n### Not run: {paper.PAPER}\n\n" + table(("in the paper", "why"), list(not_run.items()))
    return page


def table(head, rows) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    from tests.papers.test_formulas import PAPERS

    target = Path(__file__).parents[2] / "docs/papers.md"
    target.write_text(written([importlib.import_module(paper.__name__) for paper in PAPERS]), "utf-8")
