"""De et al. 2022: what runs of its accounting, beside `formulas/de2022_privacy.py`."""

import math

import numpy as np

from sfumato.evaluation.diagnostic import auc, proportion
from sfumato.privacy import PrivacyPlan, true_positive_rates
from sfumato.privacy.planning.tradeoff import steps_by_rule

from .formula import Formula
from .formulas import de2022_privacy as printed

ORDERS = (
    *(1 + hundredth / 100 for hundredth in range(2, 100)),
    *(tenth / 10 for tenth in range(20, 110)),
    *(*range(11, 65), 128, 256, 512, 1024),
)
"""Of TensorFlow Privacy's and dp-accounting's Renyi accountants."""
CIFAR, REDUCED, IMAGENET, PLACES = (50_000, 1e-5), (45_000, 1e-5), (1_271_167, 8e-7), (1_803_460, 5e-7)
ROWS = (
    *((*CIFAR, 4096, *row) for row in ((10, 875, 1), (6, 1125, 2), (5, 1593, 3), (4, 1687, 4), (3, 1843, 6))),
    (*REDUCED, 4096, 3, 2468, 8),
    *((*CIFAR, 16384, *row) for row in ((40, 906, 1), (24, 1156, 2), (20, 1656, 3), (16, 1765, 4), (12, 2007, 6))),
    (*CIFAR, 16384, 9.4, 2000, 8),
    (*IMAGENET, 16384, 2.5, 71589, 8),
    *((*CIFAR, 16384, *row) for row in ((21.1, 250, 1), (15.8, 500, 2), (12, 1000, 4), (9.4, 2000, 8))),
    (*REDUCED, 1024, 5, 781, 0.5),
    *((*REDUCED, 4096, *row) for row in ((5, 164, 1), (6, 531, 1.5), (6, 906, 2), (5, 2171, 4), (6, 6421, 6))),
    (*REDUCED, 4096, 5, 7226, 8),
    *((*IMAGENET, 262144, *row) for row in ((28.7, 250, 0.5), (21.2, 500, 1), (15.7, 1000, 2), (11.8, 2000, 4))),
    (*IMAGENET, 262144, 9.1, 4000, 8),
    *((*IMAGENET, 262144, *row) for row in ((57.2, 1000, 0.5), (29.9, 1000, 1), (15.8, 1000, 2), (8.4, 1000, 4))),
    (*IMAGENET, 262144, 4.6, 1000, 8),
    (*PLACES, 4096, 1.0, 223939, 8),
    (*PLACES, 4096, 2.0, 1374116, 8),
)
"""Tables 13 to 16 and 20 to 23: N, delta, B, sigma, T and the printed epsilon.

The last column of table 13 and all of table 20 fit the 45,000 examples that are left without a validation set: of
50,000 their epsilon is a tenth lower. Left out is the first column of table 22, which has 0.1045 for 0.1.
"""


def planned(case, *, examples=None):
    return PrivacyPlan.calibrate(
        examples=examples or case["examples"],
        batch_size=case["batch"],
        noise_multiplier=case["sigma"],
        steps=case["steps"],
        delta=case["delta"],
    )


def a_full_batch(rng):
    return {
        "examples": 500,
        "batch": 500,
        "sigma": float(rng.uniform(1, 10)),
        "steps": int(rng.integers(1, 30)),
        "delta": 1e-5,
        "epsilon": float(rng.uniform(0, 2)),
    }


def together(case):
    """The deviation of all steps of a full batch as one release."""
    return case["sigma"] / math.sqrt(case["steps"])


def chance_of_a_larger_loss(case):
    """P[loss > epsilon], which is delta's upper bound and not delta."""
    s = together(case)
    return printed.normal_cdf(1 / (2 * s) - case["epsilon"] * s)


def a_sampled_plan(rng):
    examples = 1000
    return {
        "examples": examples,
        "batch": int(rng.integers(10, 300)),
        "sigma": float(rng.uniform(0.8, 4)),
        "steps": int(rng.integers(1, 200)),
        "delta": float(10 ** -rng.uniform(3, 6)),
    }


def q(case):
    return case["batch"] / case["examples"]


WHOLE = (2, 3, 4, 8, 16, 32)


def divergences(case, *, sigma=1.0, probability=1.0, steps=1.0, power=1):
    return [
        steps * case["steps"] * printed.renyi(probability * q(case), sigma * case["sigma"], order) ** power
        for order in WHOLE
    ]


def epsilon_by_renyi(case, *, conversion=printed.epsilon_of_renyi, orders=ORDERS, sigma=1.0, probability=1.0):
    found = [
        case["steps"] * printed.renyi_by_integral(probability * q(case), sigma * case["sigma"], order)
        for order in orders
    ]
    return conversion(orders, found, case["delta"])


def a_cheap_plan(rng):
    """Of one case for each shape: where few examples take part, where many do, and with little noise."""
    sigma, batch = ((0.8, 20), (1.5, 100), (3.0, 300))[int(rng.integers(3))]
    return {
        "examples": 1000,
        "batch": batch,
        "sigma": sigma * float(rng.uniform(0.9, 1.1)),
        "steps": int(rng.integers(20, 80)),
        "delta": 1e-5,
    }


def by_convolution(case, *, probability=1.0, sigma=1.0, steps=0, delta=1.0, examples=None):
    return printed.epsilon(
        probability * case["batch"] / (examples or case["examples"]),
        sigma * case["sigma"],
        case["steps"] + steps,
        delta * case["delta"],
    )


EPSILONS = (0.25, 0.5, 1.0)


def deltas(case, *, directions=(True, False), steps=0, sigma=1.0):
    losses = printed.both(q(case), sigma * case["sigma"])
    kept = [one for one, removed in zip(losses, (True, False), strict=True) if removed in directions]
    return np.max([one.deltas(EPSILONS, case["steps"] + steps) for one in kept], axis=0)


def a_budget(rng):
    return {
        "examples": 1000,
        "batch": int(rng.integers(20, 100)),
        "sigma": float(rng.uniform(1.5, 3)),
        "delta": 1e-5,
        "epsilon": float(rng.uniform(1, 3)),
    }


def most_steps(case):
    return PrivacyPlan.calibrate(
        examples=case["examples"],
        batch_size=case["batch"],
        noise_multiplier=case["sigma"],
        delta=case["delta"],
        epsilon=case["epsilon"],
    ).steps


def steps_allowed(case, *, epsilon=1.0, delta=1.0, sigma=1.0):
    return printed.most_steps(q(case), sigma * case["sigma"], epsilon * case["epsilon"], delta * case["delta"])


def a_small_budget(rng):
    return {
        "examples": 1000,
        "batch": int(rng.integers(50, 200)),
        "steps": int(rng.integers(20, 60)),
        "epsilon": float(rng.uniform(1, 2)),
        "delta": 1e-5,
    }


def noise_found(case):
    return PrivacyPlan.calibrate(
        examples=case["examples"],
        batch_size=case["batch"],
        steps=case["steps"],
        delta=case["delta"],
        epsilon=case["epsilon"],
    ).noise_multiplier


def noise_wanted(case, *, epsilon=1.0, steps=1.0, low=0.7, high=4.0):
    return printed.least_noise(
        q(case), round(steps * case["steps"]), epsilon * case["epsilon"], case["delta"], low, high
    )


def a_budget_for_the_rule(rng):
    return {
        "epsilon": float(rng.uniform(1, 8)),
        "batch": int(2 ** rng.uniform(6, 14)),
        "examples": int(rng.integers(20_000, 60_000)),
    }


def rule_of_steps(case, batch=None):
    return printed.steps_of_figure_6(case["epsilon"], batch or case["batch"], case["examples"])


def printed_rows(rng):
    return [dict(zip(("examples", "delta", "batch", "sigma", "steps", "epsilon"), row, strict=True)) for row in ROWS]


def budgets(case):
    return [planned(row).epsilon_rdp / row["epsilon"] for row in case]


def of_rows(case, *, conversion=printed.epsilon_of_renyi, sigma=1.0, probability=1.0):
    """Epsilon of each row by whole orders, with a mistake."""
    orders = range(2, 40)
    return [
        conversion(
            orders,
            [row["steps"] * printed.renyi(probability * q(row), sigma * row["sigma"], order) for order in orders],
            row["delta"],
        )
        / row["epsilon"]
        for row in case
    ]


RATES = (1e-4, 1e-3, 1e-2, 0.1, 0.5)


def power_of_tests(case):
    epsilons = np.linspace(0, 12, 1500)
    curve = [printed.delta_of_gaussian(epsilon, together(case), points=2001) for epsilon in epsilons]
    return [max(rate, printed.detected(epsilons, curve, rate)) for rate in RATES]


def hits_of(rng):
    count = int(rng.integers(1, 60))
    return {"hits": int(rng.integers(0, count + 1)), "count": count}


def wald(case, z=1.959964):
    p = case["hits"] / case["count"]
    half = z * math.sqrt(p * (1 - p) / case["count"])
    return p, p - half, p + half


def scores_with_ties(rng):
    return {"own": rng.integers(0, 12, size=int(rng.integers(3, 20))) / 4, "others": rng.integers(0, 10, size=15) / 4}


FORMULAS = [
    Formula(
        where="definition 2.1, equation 1",
        draw=a_full_batch,
        runs=lambda case: planned(case).loss.delta(case["epsilon"]),
        formula=lambda case: printed.delta_of_gaussian(case["epsilon"], together(case)),
        mistakes={
            "the chance of a loss above epsilon": chance_of_a_larger_loss,
            "the total variation: e^epsilon left out": lambda case: printed.delta_of_gaussian(0.0, together(case)),
            "one example replaced: sensitivity 2": lambda case: printed.delta_of_gaussian(
                case["epsilon"], together(case) / 2
            ),
            "noise over T, not its root": lambda case: printed.delta_of_gaussian(
                case["epsilon"], case["sigma"] / case["steps"]
            ),
            "one step too few": lambda case: printed.delta_of_gaussian(
                case["epsilon"], case["sigma"] / math.sqrt(max(case["steps"] - 1, 0.5))
            ),
        },
        within=1e-5,
    ),
    Formula(
        where="section 2.2, Renyi divergences (Mironov, Talwar and Zhang 2019, section 3.3)",
        draw=a_sampled_plan,
        runs=lambda case: planned(case).loss.renyi(WHOLE),
        formula=divergences,
        mistakes={
            "q twice as large": lambda case: divergences(case, probability=2.0),
            "one example replaced: sensitivity 2": lambda case: divergences(case, sigma=0.5),
            "not divided by a - 1": lambda case: [
                (order - 1) * value for order, value in zip(WHOLE, divergences(case), strict=True)
            ],
            "without amplification": lambda case: [case["steps"] * order / (2 * case["sigma"] ** 2) for order in WHOLE],
            "one step too many": lambda case: divergences(case, steps=1 + 1 / case["steps"]),
            "amplified by q^2 alone": lambda case: [
                case["steps"] * q(case) ** 2 * order / case["sigma"] ** 2 for order in WHOLE
            ],
        },
    ),
    Formula(
        where="section 2.2, epsilon by Renyi differential privacy",
        draw=a_sampled_plan,
        runs=lambda case: planned(case).epsilon_rdp,
        formula=epsilon_by_renyi,
        mistakes={
            "the conversion of 2017": lambda case: epsilon_by_renyi(case, conversion=printed.epsilon_of_renyi_2017),
            "whole orders alone": lambda case: epsilon_by_renyi(case, orders=WHOLE),
            "one example replaced: sensitivity 2": lambda case: epsilon_by_renyi(case, sigma=0.5),
            "q of another N": lambda case: epsilon_by_renyi(case, probability=1.01),
        },
        cases=6,
    ),
    Formula(
        where="section 2.2, epsilon by privacy loss distributions",
        draw=a_cheap_plan,
        runs=lambda case: planned(case).epsilon(),
        formula=by_convolution,
        mistakes={
            "one step too few": lambda case: by_convolution(case, steps=-1),
            "q of 90% of the examples": lambda case: by_convolution(case, examples=0.9 * case["examples"]),
            "without amplification": lambda case: math.sqrt(case["steps"]) / case["sigma"],
            "noise of 1% more": lambda case: by_convolution(case, sigma=1.01),
            "at twice delta": lambda case: by_convolution(case, delta=2.0),
            "by Renyi divergences": epsilon_by_renyi,
        },
        within=1e-3,
        cases=1,
    ),
    Formula(
        where="section 2.2, delta of sampled steps",
        draw=a_cheap_plan,
        runs=lambda case: planned(case).loss.deltas(EPSILONS),
        formula=deltas,
        mistakes={
            "with the record added alone": lambda case: deltas(case, directions=(False,)),
            "one step too few": lambda case: deltas(case, steps=-1),
            "noise of 1% more": lambda case: deltas(case, sigma=1.01),
        },
        within=2e-3,
        cases=1,
    ),
    Formula(
        where="section 3.1, the number of updates of a budget",
        draw=a_budget,
        runs=most_steps,
        formula=steps_allowed,
        mistakes={
            "1% more epsilon": lambda case: steps_allowed(case, epsilon=1.01),
            "at twice delta": lambda case: steps_allowed(case, delta=2.0),
            "in proportion to epsilon squared over q^2": lambda case: (case["epsilon"] * case["sigma"] / q(case)) ** 2,
        },
        within=6e-3,  # a step of some hundreds
        cases=1,
    ),
    Formula(
        where="section 2.2, the noise of a budget",
        draw=a_small_budget,
        runs=noise_found,
        formula=noise_wanted,
        mistakes={
            "1% more epsilon": lambda case: noise_wanted(case, epsilon=1.01),
            "a tenth fewer steps": lambda case: noise_wanted(case, steps=0.9),
        },
        within=5e-4,
        cases=1,
    ),
    Formula(
        where="figures 6(b) and 7(b) with section 4.2, the steps to begin with",
        draw=a_budget_for_the_rule,
        runs=lambda case: steps_by_rule(case["epsilon"], case["batch"], case["examples"]),
        formula=rule_of_steps,
        mistakes={
            "whatever the batch": lambda case: rule_of_steps(case, batch=4096),
            "whatever epsilon": lambda case: rule_of_steps(case | {"epsilon": 8.0}),
            "cut off": lambda case: rule_of_steps(case) - 1,
        },
    ),
    Formula(
        where="tables 13 to 16 and 20 to 23, their rows",
        draw=printed_rows,
        runs=budgets,
        formula=lambda case: np.ones(len(case)),
        mistakes={
            "one example replaced: sensitivity 2": lambda case: of_rows(case, sigma=0.5),
            "q of a tenth more examples": lambda case: of_rows(case, probability=1 / 1.1),
            "the conversion of 2017": lambda case: of_rows(case, conversion=printed.epsilon_of_renyi_2017),
        },
        within=0.025,
        cases=1,
    ),
    Formula(
        where="appendix A.2, what an (epsilon, delta) bound leaves a test",
        draw=a_full_batch,
        runs=lambda case: true_positive_rates(planned(case), RATES),
        formula=power_of_tests,
        mistakes={
            "of epsilon alone, at delta 0": lambda case: [math.exp(case["epsilon"]) * rate for rate in RATES],
            "the level itself": lambda case: RATES,
            "twice the level": lambda case: [2 * rate for rate in power_of_tests(case)],
        },
        within=5e-3,
    ),
    Formula(
        where="appendix A.2, Clopper and Pearson's interval",
        draw=hits_of,
        runs=lambda case: proportion(**case),
        formula=lambda case: printed.clopper_pearson(case["hits"], case["count"], 0.95),
        mistakes={
            "Wald's interval": wald,
            "both tails in one": lambda case: printed.clopper_pearson(case["hits"], case["count"], 0.9),
            "one hit more": lambda case: printed.clopper_pearson(
                min(case["hits"] + 1, case["count"]), case["count"], 0.95
            ),
        },
    ),
    Formula(
        where="table 9, AUC",
        draw=scores_with_ties,
        runs=lambda case: auc(case["own"], case["others"]).value,
        formula=lambda case: printed.area(case["own"], case["others"]),
        mistakes={
            "ties counted as wins": lambda case: np.mean(case["own"][:, None] >= case["others"]),
            "ties not counted": lambda case: np.mean(case["own"][:, None] > case["others"]),
            "the others against the class": lambda case: 1 - printed.area(case["own"], case["others"]),
        },
    ),
]
