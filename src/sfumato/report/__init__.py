"""REPORT. One self-contained page about a run, from plain data alone.

What the page may show to whom is decided in one place, `page`: its public version is written from facts out of which
everything that was measured on private data has been taken first.
"""

from sfumato.report.budgets import curve_of_budgets
from sfumato.report.drawing import png
from sfumato.report.facts import Evaluation, Facts, Sample
from sfumato.report.page import page
from sfumato.report.pairs import ShownPair, page_of_pairs
from sfumato.report.swept import swept

__all__ = ["Evaluation", "Facts", "Sample", "ShownPair", "curve_of_budgets", "page", "page_of_pairs", "png", "swept"]
