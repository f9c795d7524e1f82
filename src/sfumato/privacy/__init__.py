"""Promises: plan, sampling rules, noise mechanisms, theorems, selection, ledger, statement. No torch here."""

from sfumato.privacy.draws import Draws
from sfumato.privacy.ledger import Entry, Ledger
from sfumato.privacy.mechanism import Gaussian, Mechanism
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.public import NoPromise
from sfumato.privacy.sampling import FullBatch, Poisson, SamplingRule
from sfumato.privacy.selection import PrivateSelection, least_score_noise
from sfumato.privacy.statement import Circumstances, Search, Statement
from sfumato.privacy.theorems import Releases, Theorem, compose, epsilon, theorem_for

__all__ = [
    "Circumstances",
    "Draws",
    "Entry",
    "FullBatch",
    "Gaussian",
    "Ledger",
    "Mechanism",
    "NoPromise",
    "Poisson",
    "PrivacyPlan",
    "PrivateSelection",
    "Releases",
    "SamplingRule",
    "Search",
    "Statement",
    "Theorem",
    "compose",
    "epsilon",
    "least_score_noise",
    "theorem_for",
]
