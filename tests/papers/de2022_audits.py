"""De et al. 2022, appendix A.2: what runs of its audit, beside `formulas/de2022_audits.py`."""

import math

import numpy as np

from sfumato.audit import two_worlds
from studies.worlds import max_advantage, total_variation

from .formula import Formula
from .formulas import de2022_audits as printed
from .formulas.de2022_privacy import clopper_pearson


def two_gaussians(rng):
    """Mean and deviation of both."""
    return [(float(rng.normal()), float(np.exp(rng.normal()))) for _ in range(2)]


def with_one_deviation(case):
    (m, s), (n, t) = case
    both = math.sqrt((s**2 + t**2) / 2)
    return printed.total_variation((m, both), (n, both))


def hellinger(case):
    width, p, q = printed.densities_of_two(*case)
    return math.sqrt(max(0.0, 1 - np.sqrt(p * q).sum() * width))


DELTA = 0.01


def scores_of_two_worlds(rng):
    """Of few models, so that the intervals are wide; and a threshold that was fixed before."""
    count = int(rng.integers(30, 60))
    return {
        "own": rng.normal(size=count) + 3,
        "others": rng.normal(size=count + 7),
        "threshold": float(rng.uniform(1, 2)),
    }


def proven(case):
    return two_worlds(case["own"], case["others"], delta=DELTA, confidence=0.99, threshold=case["threshold"]).epsilon


def by_counts(case, *, delta=DELTA, tails=4, directions=2):
    """The larger one of both directions, each of which has half of the 1%, its two intervals half of that each."""
    own, others, threshold = case["own"], case["others"], case["threshold"]
    counts = [
        (int((own >= threshold).sum()), len(own), int((others >= threshold).sum()), len(others)),
        (int((others < threshold).sum()), len(others), int((own < threshold).sum()), len(own)),
    ]
    confidence = 1 - 2 * 0.01 / tails
    bounds = [
        (clopper_pearson(hits, of_hits, confidence)[1], clopper_pearson(alarms, of_alarms, confidence)[2])
        for hits, of_hits, alarms, of_alarms in counts[:directions]
    ]
    return max(printed.lower_bound(*bound, delta) for bound in bounds)


def without_intervals(case):
    own, others = case["own"] >= case["threshold"], case["others"] >= case["threshold"]
    pairs = [(own.mean(), others.mean()), (1 - others.mean(), 1 - own.mean())]
    return max(math.log(max(hits - DELTA, 1e-9) / max(alarms, 1e-9)) for hits, alarms in pairs)


def a_promise(rng):
    return {"epsilon": float(rng.uniform(0.1, 8)), "delta": float(rng.uniform(0.001, 0.05))}


FORMULAS = [
    Formula(
        where="appendix A.2, phase I: total variation of two fitted Gaussians",
        draw=two_gaussians,
        runs=lambda case: total_variation(*case),
        formula=lambda case: printed.total_variation(*case),
        mistakes={
            "the whole integral": lambda case: 2 * printed.total_variation(*case),
            "one deviation for both": with_one_deviation,
            "Hellinger's distance": hellinger,
        },
        within=1e-4,
    ),
    Formula(
        where="appendix A.2, phase II: the lower bound",
        cases=10,
        draw=scores_of_two_worlds,
        runs=proven,
        formula=by_counts,
        mistakes={
            "without delta": lambda case: by_counts(case, delta=0.0),
            "delta twice": lambda case: by_counts(case, delta=2 * DELTA),
            "no intervals": without_intervals,
            "1% for each interval": lambda case: by_counts(case, tails=2),
            "models with z taken for those without it, and never the other way": lambda case: by_counts(
                case, directions=1
            ),
        },
    ),
    Formula(
        where="table 9, the upper bound of the advantage",
        draw=a_promise,
        runs=lambda case: max_advantage(case["epsilon"], case["delta"]),
        formula=lambda case: printed.largest_advantage(case["epsilon"], case["delta"]),
        mistakes={
            "without delta": lambda case: printed.largest_advantage(case["epsilon"], 0.0),
            "e^epsilon - 1": lambda case: math.expm1(case["epsilon"]),
            "delta once": lambda case: printed.largest_advantage(case["epsilon"], case["delta"] / 2),
        },
        within=5e-4,
    ),
]
