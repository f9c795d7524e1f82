"""docs/papers.md, from the formulas that the tests compute; `python -m tests.papers.page` writes it.

A paper is a module with `PAPER` and `FORMULAS`, and with `NOT_RUN` where some of its formulas have no row: where they
stand, and why. A module without `PAPER` is tested and not on the page.
"""

from __future__ import annotations

import importlib
from pathlib import Path

HEAD = """# The papers, formula by formula

Each row is an equation, an algorithm or a formula that the package runs as printed, or as its authors released it where
the row says so. `pytest tests/papers` computes each a second time in NumPy and float64, importing nothing of the
package, and fails on the planted mistakes that the file of the paper lists.
"""


def written(papers) -> str:
    """The page."""
    return HEAD + "".join(section(paper) for paper in papers if hasattr(paper, "PAPER"))


def section(paper) -> str:
    """One paper: where, the formula, the code; and what is not run."""
    test = f"`tests/papers/{paper.__name__.rpartition('.')[2]}.py`"
    rows = [(one.where, one.says, f"`{one.code}`") for one in paper.FORMULAS]
    page = f"\n## {paper.PAPER}\n\n" + table(("in the paper", "formula", f"code (test: {test})"), rows)
    if not_run := getattr(paper, "NOT_RUN", {}):
        page += "\n" + table(("not run", "why"), list(not_run.items()))
    return page


def table(head, rows) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    from tests.papers.test_formulas import PAPERS

    target = Path(__file__).parents[2] / "docs/papers.md"
    target.write_text(written([importlib.import_module(paper.__name__) for paper in PAPERS]), "utf-8")
