"""Promises: plan, sampling rules, noise mechanisms, theorems, ledger, statement. Pure mathematics; no torch here."""

from sfumato.privacy.ledger import Entry, Ledger
from sfumato.privacy.mechanism import Gaussian, Mechanism
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.public import NoPromise
from sfumato.privacy.sampling import FullBatch, Poisson, SamplingRule
from sfumato.privacy.statement import Circumstances, Statement
from sfumato.privacy.theorems import Releases, Theorem, compose, epsilon, theorem_for

__all__ = [
    "Circumstances",
    "Entry",
    "FullBatch",
    "Gaussian",
    "Ledger",
    "Mechanism",
    "NoPromise",
    "Poisson",
    "PrivacyPlan",
    "Releases",
    "SamplingRule",
    "Statement",
    "Theorem",
    "compose",
    "epsilon",
    "theorem_for",
]
