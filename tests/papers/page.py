"""docs/papers.md, from the formulas that the tests compute; `python -m tests.papers.page` writes it."""

from __future__ import annotations

import importlib
from pathlib import Path

HEAD = """# The papers, formula by formula

What a paper prints is what runs. Each row is a numbered equation, an algorithm or a formula of an appendix that the
package runs. A test computes it a second time in NumPy and float64, from the paper, importing nothing of the package,
on random inputs, and fails on each of the planted mistakes that it lists. A second table has the formulas that the
package does not run, with the reason. `pytest tests/papers` runs them all.
"""


def written(papers) -> str:
    """The page."""
    return HEAD + "".join(section(paper) for paper in papers)


def section(paper) -> str:
    """One paper: where, the formula, the code, the test, the mistakes that the test has noticed."""
    test = f"`tests/papers/{paper.__name__.rpartition('.')[2]}.py`"
    rows = [
        f"| {one.where} | {one.says.replace('|', chr(92) + '|')} | `{one.code}` | {'; '.join(one.mistakes)} |"
        for one in paper.FORMULAS
    ]
    left_out = [f"| {where} | {reason} |" for where, reason in getattr(paper, "NOT_RUN", {}).items()]
    return (
        f"\n## {paper.PAPER}\n\nComputed in {test}.\n\n"
        "| in the paper | the formula | where it runs | mistakes that its test notices |\n| --- | --- | --- | --- |\n"
        + "\n".join(rows)
        + ("\n\n| in the paper | why it does not run here |\n| --- | --- |\n" if left_out else "")
        + "\n".join(left_out)
        + "\n"
    )


if __name__ == "__main__":
    from tests.papers.test_formulas import PAPERS

    target = Path(__file__).parents[2] / "docs/papers.md"
    target.write_text(written([importlib.import_module(paper.__name__) for paper in PAPERS]), "utf-8")
