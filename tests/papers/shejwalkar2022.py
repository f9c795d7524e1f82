"""Shejwalkar et al. 2022: what the package runs, beside `formulas/shejwalkar2022.py`."""

import math
from collections import Counter

import numpy as np
import torch
from torch import nn

from sfumato import Noise, PrivacyPlan, RunKey, optim
from sfumato.averaging import EMA, LastMean, TrainingOverAggregates
from sfumato.averaging import average as aggregates
from sfumato.averaging.uncertainty import interval, select_spaced
from sfumato.evaluation.next_words import score_of
from sfumato.models.ensemble import Ensemble, majority
from sfumato.models.losses import next_word_cross_entropy
from sfumato.models.networks.text import NextWordLSTM
from sfumato.privacy import DriftingPoisson, FullBatch, Gaussian, Poisson
from sfumato.privacy.factorisation import Workload, square_root, toeplitz_noise, tree_covariance, tree_noise
from sfumato.privacy.factorisation.toeplitz import inverse
from sfumato.privacy.mechanism import BandedToeplitz, Tree
from sfumato.privacy.theorems.composed_gaussian import squared_sensitivity, squared_tree_sensitivity
from sfumato.randomness.noise import NOISES
from sfumato.training.step import descend
from sfumato.training.user_records import record_shares

from .formula import Formula
from .formulas import shejwalkar2022 as formulas

PAPER = "Shejwalkar et al. 2022, arXiv 2210.01864"
STEPS = 30


# -- next words --------------------------------------------------------------------------------------------------------


def words_case(rng):
    """A network of a few words with random weights, and token numbers (2, T)."""
    vocabulary, length = int(rng.integers(7, 12)), int(rng.integers(2, 6))
    torch.manual_seed(int(rng.integers(1 << 30)))
    tied = bool(rng.integers(2))
    model = NextWordLSTM(classes=vocabulary, vocabulary=vocabulary, length=length, embedding=3, hidden=4, tied=tied)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_()
    return {"model": model, "tokens": rng.integers(1, vocabulary, (2, length))}


@torch.no_grad()
def words_run(case):
    return case["model"](torch.from_numpy(case["tokens"]))


def words_printed(case, **mistake):
    weights = {name: value.double().numpy() for name, value in case["model"].state_dict().items()}
    return [formulas.next_words(row, weights, **mistake) for row in case["tokens"]]


def user_words_case(rng):
    """Logits (R, T, V) and targets (R, T) of one user's texts of different lengths, padded with 0."""
    texts, length, vocabulary = int(rng.integers(2, 5)), 6, 8
    targets = rng.integers(1, vocabulary, (texts, length))
    targets[np.arange(length) >= rng.permutation(length)[:texts, None] + 1] = 0
    targets[0, 0] = 1  # an unknown word
    return {"logits": rng.normal(size=(texts, length, vocabulary)), "targets": targets}


def user_loss_run(case):
    """By the shares that a step gives the texts of one user."""
    targets = torch.from_numpy(case["targets"])
    shares = record_shares(torch.ones(1, len(targets), dtype=torch.bool), targets[None], next_words=True)[0]
    logits = torch.from_numpy(case["logits"])
    losses = [next_word_cross_entropy(logits[row : row + 1], targets[row : row + 1]) for row in range(len(targets))]
    return sum(share * loss for share, loss in zip(shares, losses, strict=True))


def scored_words_case(rng):
    """Targets (3, T) of every kind, and whether each word is predicted."""
    vocabulary = int(rng.integers(6, 10))
    targets = rng.integers(0, vocabulary, (3, 8))
    targets[0, :5] = [0, 1, 2, 3, vocabulary - 1]
    right = rng.integers(2, size=targets.shape)
    right[0, :5] = [1, 0, 1, 0, 0] if rng.integers(2) else [1, 1, 0, 1, 1]
    return {"targets": targets, "right": right, "vocabulary": vocabulary}


def score_run(case):
    figures = torch.zeros(*case["targets"].shape, 3)
    figures[..., 0] = torch.from_numpy(case["right"])
    return score_of(figures, torch.from_numpy(case["targets"]), case["vocabulary"])["accuracy"]


# -- averages ----------------------------------------------------------------------------------------------------------


def course_case(rng):
    """Weights theta_0 to theta_30 of three parameters, which walk at random, and a decay and a k for them."""
    return {
        "weights": np.cumsum(rng.normal(size=(STEPS + 1, 3)), axis=0),
        "decay": float(rng.uniform(0.3, 0.95)),
        "count": int(rng.integers(2, 12)),
    }


def averaged(average, case):
    """What is released after each step."""
    parameters = [{"w": torch.from_numpy(row)} for row in case["weights"]]
    state, found = average.begin(parameters[0]), []
    for step, after in enumerate(parameters[1:]):
        state = average.update(state, after, step)
        found.append(average.averaged_weights(state)["w"])
    return found


def kept_case(rng):
    """Weights after steps with gaps, k of them."""
    count = int(rng.integers(2, 9))
    return {
        "weights": rng.normal(size=(count, 4)) + 10,
        "steps": np.cumsum(rng.integers(1, 6, size=count)),
        "decay": float(rng.uniform(0.3, 0.95)),
    }


def each_of(case):
    return [{"w": torch.from_numpy(row)} for row in case["weights"]]


# -- ensembles ---------------------------------------------------------------------------------------------------------


def ensemble_case(rng):
    models, width, classes = int(rng.integers(2, 6)), int(rng.integers(1, 4)), int(rng.integers(2, 5))
    return {
        "weights": rng.normal(size=(models, classes, width)) * 2,
        "inputs": rng.normal(size=(7, width)),
    }


def logits_of(case):
    return np.einsum("nw,mcw->mnc", case["inputs"], case["weights"])


def mean_of_members(case):
    members = []
    for weight in case["weights"]:
        member = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        member.weight.data.copy_(torch.from_numpy(weight))
        members.append(member)
    return Ensemble(members, method="opa")(torch.from_numpy(case["inputs"])).softmax(-1)


def votes_case(rng):
    """k models' distributions (k, N, classes) for so few models that votes are often equal."""
    shape = int(rng.integers(2, 7)), 40, int(rng.integers(2, 5))
    return formulas.softmax(2 * rng.normal(size=shape))


def tied(outputs, choose):
    """Labels where ties go to the class that `choose` picks among those with equally many votes."""
    votes = np.array(
        [
            [(outputs[:, row].argmax(axis=1) == one).sum() for one in range(outputs.shape[2])]
            for row in range(outputs.shape[1])
        ]
    )
    return [choose(np.flatnonzero(row == row.max())) for row in votes]


# -- training over aggregates ------------------------------------------------------------------------------------------


def over_case(rng):
    size = 3
    factor = rng.normal(size=(size, size))
    return {
        "theta": rng.normal(size=size),
        "hessian": factor @ factor.T / size,
        "optimum": rng.normal(size=size),
        "shifts": rng.normal(size=(STEPS, size)),
        "momentum": float(rng.choice([0.0, 0.7])),
        "rate": float(rng.uniform(0.02, 0.1)),
        "start": int(rng.integers(0, 20)),
        "restart": bool(rng.integers(2)),
        "decay": float(rng.uniform(0.3, 0.95)),
        "count": int(rng.integers(2, 8)),
    }


def trained_over(average, case):
    """As `loop.take_steps` does it: the gradient where `held` puts the weights, the optimizer, then the average."""
    weight = nn.Parameter(torch.from_numpy(case["theta"].copy()))
    trained = {"w": weight}
    optimizer = optim.create("momentum", [weight], learning_rate=case["rate"], momentum=case["momentum"])
    over = TrainingOverAggregates(average=average, start=case["start"], restart=case["restart"])
    state, found = average.begin({"w": weight.detach()}), []
    for step, shift in enumerate(case["shifts"]):
        with over.at_average(trained, state, step):
            gradient = torch.from_numpy(case["hessian"]) @ (weight.detach() - torch.from_numpy(case["optimum"]))
            gradient = gradient + torch.from_numpy(shift)
        descend(optimizer, trained, {"w": gradient})
        state = average.update(state, trained, step)
        found.append(weight.detach().clone())
    return found


def over_ema(case, **mistake):
    return formulas.training_over(case, lambda weights: formulas.ema_of(weights, case["decay"]), **mistake)


def over_mean(case, *, count=0, **mistake):
    return formulas.training_over(case, lambda weights: weights[-(case["count"] + count) :].mean(axis=0), **mistake)


# -- uncertainty -------------------------------------------------------------------------------------------------------


def checkpoints_case(rng):
    weights = rng.dirichlet(np.ones(int(rng.integers(1, 5))))
    return {
        "values": rng.normal(size=(int(rng.integers(2, 15)), 4)),
        "confidence": float(rng.choice([0.8, 0.95, 0.99])),
        "shares": [float(weight) for weight in weights],
    }


def interval_of(case, **mistake):
    return formulas.interval(case["values"], case["confidence"], case["shares"], **mistake)


NORMAL = {0.8: 1.2815515655446004, 0.95: 1.959963984540054, 0.99: 2.5758293035489004}


def spaced_case(rng):
    kept = np.unique(rng.integers(1, 201, size=30))
    return kept.tolist(), int(rng.integers(0, 100)), int(rng.integers(1, 20))


def spaced_by_hand(kept, burn_in, spacing):
    """From the last backwards, each at least the spacing before the one that was taken."""
    found = []
    for step in reversed([step for step in kept if step > burn_in]):
        if not found or found[-1] - step >= spacing:
            found.append(step)
    return found[::-1]


# -- accounting --------------------------------------------------------------------------------------------------------


def plan_of(rng, *, sampled):
    return PrivacyPlan(
        population=1000,
        participation=Poisson(batch_size=int(rng.integers(5, 200))) if sampled else FullBatch(),
        mechanism=Gaussian(noise_multiplier=float(rng.uniform(1.0, 8.0))),
        steps=int(rng.integers(1, 500)),
        delta=1e-5,
    )


def divergences(plan, orders, *, times=None, factor=1.0):
    q = plan.expected_batch_size / plan.population
    return np.array(
        [
            (plan.steps if times is None else times)
            * formulas.renyi_of_sampled_gaussian(q, plan.noise_multiplier / factor, order)
            for order in orders
        ]
    )


ORDERS = (2, 3, 8, 32)


# -- DP-FTRL -----------------------------------------------------------------------------------------------------------


def tree_case(rng):
    steps = int(rng.integers(1, 33))
    length = int(rng.integers(1, steps + 1)) if rng.integers(2) else None
    completed, gap = bool(length and rng.integers(2)), int(rng.integers(1, steps + 3))
    return {"steps": steps, "length": length, "completed": completed, "gap": gap}


def increments_of(mechanism, steps):
    """The noise of each step (T, 2 T) as a linear map of the independent numbers that are drawn for the steps."""
    rule, kept = NOISES[type(mechanism)](mechanism), np.zeros((mechanism.buffers(steps), 2 * steps))

    def fresh(step):
        return lambda stream: np.eye(1, 2 * steps, step + (steps if stream == "completion" else 0))[0]

    return np.array([rule.noise(step, fresh(step), kept).copy() for step in range(steps)])


def covariance_of_prefixes(case):
    mechanism = Tree(noise_multiplier=1.0, steps_per_tree=case["length"], completed=case["completed"])
    sums = np.cumsum(increments_of(mechanism, case["steps"]), axis=0)
    return sums @ sums.T


def covariance_by_least_squares(case, *, length=0, **how):
    cut = case["length"] if length == 0 else length
    weights = formulas.prefix_weights(case["steps"], cut, bool(case["completed"] and cut), **how)
    return weights @ weights.T


def variances_by_bits(case, minus=0):
    """sum over the ones of t in binary, of height h, of 1 / (2 - 2^-h)."""
    return [
        sum(1 / (2 - 2.0 ** -(height - minus)) for _, height in formulas.dyadic(step + 1))
        for step in range(case["steps"])
    ]


def variances_run(case):
    sums = np.cumsum(increments_of(Tree(noise_multiplier=1.0), case["steps"]), axis=0)
    return (sums**2).sum(axis=1)


def ftrl_case(rng):
    key, size = RunKey.from_seed(int(rng.integers(1 << 30))), 4
    return {
        "key": key,
        "start": rng.normal(size=size),
        "sums": rng.normal(size=(STEPS, size)),
        "fresh": np.array([key.generator("noise", step, "w").standard_normal(size) for step in range(STEPS)]),
        "sigma": float(np.exp(rng.normal())),
        "max_norm": float(np.exp(rng.normal())),
        "rate": float(rng.uniform(0.01, 0.5)),
        "momentum": float(rng.choice([0.0, 0.9])),
    }


def ftrl_run(case):
    noise = Noise(Tree(noise_multiplier=case["sigma"]), max_norm=case["max_norm"], key=case["key"])
    weight, state, found = nn.Parameter(torch.from_numpy(case["start"].copy())), noise.begin(), []
    optimizer = optim.create("momentum", [weight], learning_rate=case["rate"], momentum=case["momentum"])
    for step, total in enumerate(case["sums"]):
        noisy, state = noise.add({"w": torch.from_numpy(total)}, step, state)
        descend(optimizer, {"w": weight}, noisy)
        found.append(weight.detach().clone())
    return found


def ftrl_printed(case, *, momentum=None, independent=False, scale=1.0, of_gradient=False):
    noise = case["sigma"] * case["max_norm"] * scale
    prefixes = noise * (
        np.cumsum(case["fresh"], axis=0) if independent else formulas.online_prefix_noise(case["fresh"])
    )
    momentum = case["momentum"] if momentum is None else momentum
    return formulas.ftrl(case["start"], case["sums"], prefixes, case["rate"], momentum, of_gradient=of_gradient)


def toeplitz_case(rng):
    steps = int(rng.integers(2, 11))
    bands = int(rng.integers(1, steps + 1))
    column = np.zeros(steps)
    column[:bands] = np.sort(rng.uniform(0, 1, bands))[::-1]
    column[0] = 1.0
    return {
        "steps": steps,
        "column": column,
        "bands": bands,
        "gap": int(rng.integers(1, steps + 2)),
        "momentum": float(rng.choice([0.0, 0.5, 0.9])),
        "rates": tuple(rng.uniform(0.1, 1.0, steps).tolist()),
    }


def noise_run(case):
    coefficients = tuple(case["column"][: case["bands"]].tolist())
    return increments_of(BandedToeplitz(noise_multiplier=1.0, coefficients=coefficients), case["steps"])[
        :, : case["steps"]
    ]


def noise_by_inverse(case, *, transposed=False, shifted=False):
    column = np.concatenate([[1.0], case["column"][2:], [0.0]]) if shifted else case["column"]
    matrix = formulas.toeplitz(column)
    return matrix if transposed else np.linalg.inv(matrix)


def in_weights_run(case):
    work = Workload(steps=case["steps"], separation=1, momentum=case["momentum"], rates=case["rates"])
    tree = tree_noise(work)
    noise = toeplitz_noise(work, inverse(case["column"], case["steps"]))
    return tree.all_steps, tree.final, noise.all_steps, noise.final


def in_weights(case, *, momentum=None, rates=None, prefix=False):
    matrix = formulas.workload(
        case["steps"], case["momentum"] if momentum is None else momentum, rates or case["rates"]
    )
    prefixes = formulas.prefix_weights(case["steps"])
    tree = np.diff(prefixes, axis=0, prepend=0.0)  # N_t - N_{t-1}
    found = []
    for noise in (prefixes if prefix else tree, np.linalg.inv(formulas.toeplitz(case["column"]))):
        variances = ((matrix @ noise) ** 2).sum(axis=1)
        found += [math.sqrt(variances.mean()), math.sqrt(variances[-1])]
    return found


# -- drift -------------------------------------------------------------------------------------------------------------


def drift_case(rng):
    sizes = tuple(int(size) for size in rng.integers(100, 1000, 2))
    rule = DriftingPoisson(
        batch_size=int(rng.integers(1, 100)),
        period=int(rng.integers(2, 40)),
        shape=str(rng.choice(["linear", "cosine"])),
        sizes=sizes,
    )
    return rule, int(rng.integers(1, 100))


def drift_run(case):
    rule, steps = case
    counts = [[(q, count) for q, count in reversed(group)] for group in rule.counts(steps)]
    return [rule.probabilities(step) for step in range(steps)], *(
        [[round(q, 12), count] for q, count in group] for group in counts
    )


def drift_printed(case, *, late=0, turned=False, twice=1):
    rule, steps = case
    rows = []
    for step in range(steps):
        share = formulas.drift(step + late, twice * rule.period, rule.shape)
        share = 1 - share if turned else share
        rows.append((rule.batch_size * (1 - share) / rule.sizes[0], rule.batch_size * share / rule.sizes[1]))
    counted = [Counter(round(row[group], 12) for row in rows if row[group] > 1e-15) for group in (0, 1)]
    return rows, *([[q, count] for q, count in sorted(found.items())] for found in counted)


FORMULAS = [
    Formula(
        where="lemma 1",
        draw=lambda rng: (plan_of(rng, sampled=True), plan_of(rng, sampled=False)),
        runs=lambda plans: plans[0].loss.composed_with(plans[1].loss).renyi(ORDERS),
        formula=lambda plans: divergences(plans[0], ORDERS) + divergences(plans[1], ORDERS),
        mistakes={
            "the larger of both": lambda plans: np.maximum(*(divergences(plan, ORDERS) for plan in plans)),
            "one release of each": lambda plans: sum(divergences(plan, ORDERS, times=1) for plan in plans),
        },
        within=1e-7,
    ),
    Formula(
        where="equation 3",
        draw=course_case,
        runs=lambda case: averaged(EMA(case["decay"], "constant"), case),
        formula=lambda case: formulas.ema(case["weights"], lambda step: 1 - case["decay"]),
        mistakes={
            "beta for 1 - beta": lambda case: formulas.ema(case["weights"], lambda step: case["decay"]),
            "from zero": lambda case: formulas.ema(case["weights"], lambda step: 1 - case["decay"], start=0.0),
            "from zero, over 1 - decay^t, as Adam's": lambda case: (
                formulas.ema(case["weights"], lambda step: 1 - case["decay"], start=0.0)
                / (1 - case["decay"] ** np.arange(1, STEPS + 1))[:, None]
            ),
            "one step late": lambda case: formulas.ema(
                np.concatenate([case["weights"][:1], case["weights"][:-1]]), lambda step: 1 - case["decay"]
            ),
        },
        within=1e-9,
    ),
    Formula(
        where="section 3, uniform tail averaging (UTA)",
        draw=course_case,
        runs=lambda case: averaged(LastMean(case["count"]), case),
        formula=lambda case: formulas.last_mean(case["weights"], case["count"]),
        mistakes={
            "k - 1 of them": lambda case: formulas.last_mean(case["weights"], case["count"] - 1),
            "always over k": lambda case: (
                formulas.last_mean(case["weights"], case["count"])
                * (np.minimum(np.arange(2, STEPS + 2), case["count"]) / case["count"])[:, None]
            ),
            "the mean of all": lambda case: formulas.last_mean(case["weights"], STEPS + 1),
        },
        within=1e-9,
    ),
    Formula(
        where="section 3, uniform past averaging (UPA)",
        draw=kept_case,
        runs=lambda case: aggregates.mean(each_of(case)),
        formula=lambda case: case["weights"].mean(axis=0),
        mistakes={
            "over k - 1": lambda case: case["weights"].sum(axis=0) / (len(case["weights"]) - 1),
            "without the last": lambda case: case["weights"][:-1].mean(axis=0),
        },
        within=1e-9,
    ),
    Formula(
        where="section 3, EMA of kept weights",
        draw=kept_case,
        runs=lambda case: aggregates.exponential(each_of(case), case["steps"].tolist(), case["decay"]),
        formula=lambda case: formulas.weighted_mean(case["weights"], case["steps"], case["decay"]),
        mistakes={
            "by the number of checkpoints": lambda case: formulas.weighted_mean(
                case["weights"], np.arange(len(case["steps"])), case["decay"]
            ),
            "the oldest weighs most": lambda case: formulas.weighted_mean(
                case["weights"][::-1], case["steps"], case["decay"]
            ),
        },
        within=1e-9,
    ),
    Formula(
        where="section 3, outputs past averaging (OPA)",
        draw=ensemble_case,
        runs=mean_of_members,
        formula=lambda case: formulas.softmax(logits_of(case)).mean(axis=0),
        mistakes={
            "the mean of logits": lambda case: formulas.softmax(logits_of(case).mean(axis=0)),
            "the largest probability": lambda case: formulas.softmax(logits_of(case)).max(axis=0),
        },
        within=1e-9,
    ),
    Formula(
        where="section 3, outputs majority vote (OMV)",
        draw=votes_case,
        runs=lambda case: majority(torch.from_numpy(case)).argmax(-1),
        formula=formulas.majority,
        mistakes={
            "ties to the first class": lambda case: tied(case, min),
            "ties to the last class": lambda case: tied(case, max),
            "the mean distribution alone": lambda case: case.mean(axis=0).argmax(axis=1),
        },
        within=0.0,
    ),
    Formula(
        where="algorithm 1, over EMA",
        draw=over_case,
        runs=lambda case: trained_over(EMA(case["decay"], "constant"), case),
        formula=over_ema,
        mistakes={
            "from step tau + 1": lambda case: over_ema(case, start=case["start"] + 1),
            "at the last weights": lambda case: over_ema(case, start=STEPS),
            "restart and not exchanged": lambda case: over_ema(case, restart=not case["restart"]),
        },
        within=1e-9,
    ),
    Formula(
        where="algorithm 1, over UTA",
        draw=over_case,
        runs=lambda case: trained_over(LastMean(case["count"]), case),
        formula=over_mean,
        mistakes={
            "from step tau + 1": lambda case: over_mean(case, start=case["start"] + 1),
            "k + 1 weights": lambda case: over_mean(case, count=1),
            "restart and not exchanged": lambda case: over_mean(case, restart=not case["restart"]),
        },
        within=1e-9,
    ),
    Formula(
        where="section 5, intervals",
        draw=checkpoints_case,
        runs=lambda case: tuple(interval(torch.from_numpy(case["values"]), case["confidence"], shares=case["shares"])),
        formula=interval_of,
        mistakes={
            "a normal quantile": lambda case: interval_of(case, quantile=NORMAL[case["confidence"]]),
            "t_k": lambda case: interval_of(case, freedom=len(case["values"])),
            "s^2 over k": lambda case: interval_of(case, divisor=len(case["values"])),
            "one-sided": lambda case: interval_of(case | {"confidence": 2 * case["confidence"] - 1}),
            "of the mean of k alone": lambda case: interval_of(case | {"shares": []}),
        },
        within=1e-7,
    ),
    Formula(
        where="section 5, burn-in and spacing",
        draw=spaced_case,
        runs=lambda case: select_spaced(case[0], 200, burn_in=case[1], spacing=case[2]),
        formula=lambda case: spaced_by_hand(*case),
        mistakes={
            "from the first one on": lambda case: [
                200 - step for step in spaced_by_hand([200 - step for step in case[0][::-1]], -1, case[2])[::-1]
            ],
            "more than so many apart": lambda case: spaced_by_hand(case[0], case[1], case[2] + 1),
            "no burn-in": lambda case: spaced_by_hand(case[0], 0, case[2]),
        },
        within=0.0,
    ),
    Formula(
        where="section 1, periodic shift of the distribution",
        draw=drift_case,
        runs=drift_run,
        formula=drift_printed,
        mistakes={
            "one step late": lambda case: drift_printed(case, late=1),
            "the groups exchanged": lambda case: drift_printed(case, turned=True),
            "P steps for half a period": lambda case: drift_printed(case, twice=2),
        },
        within=1e-9,
    ),
    Formula(
        where="section 2.3, DP-FTRL (Kairouz et al. 2021, with momentum)",
        draw=ftrl_case,
        runs=ftrl_run,
        formula=ftrl_printed,
        mistakes={
            "independent noise in each step": lambda case: ftrl_printed(case, independent=True),
            "v of the step's own sum": lambda case: ftrl_printed(case, of_gradient=True),
            "the noise is not scaled by C": lambda case: ftrl_printed(case, scale=1 / case["max_norm"]),
            "no momentum": lambda case: ftrl_printed(case, momentum=0.0),
        },
    ),
    Formula(
        where="section 2.3, DP-FTRL: variance of a prefix's noise",
        draw=tree_case,
        runs=variances_run,
        formula=variances_by_bits,
        mistakes={
            "1 for each node": lambda case: [(step + 1).bit_count() for step in range(case["steps"])],
            "one height lower": lambda case: variances_by_bits(case, minus=-1),
        },
        within=1e-9,
    ),
    Formula(
        where="section 2.3, DP-FTRL: the joint law of all prefixes' noise",
        cases=10,
        draw=tree_case,
        runs=covariance_of_prefixes,
        formula=covariance_by_least_squares,
        mistakes={
            "each subtree's root alone": lambda case: covariance_by_least_squares(case, honaker=False),
            "no restart": lambda case: covariance_by_least_squares(case, length=None),
            "no completion": lambda case: covariance_by_least_squares(case | {"completed": False}),
        },
        within=1e-9,
    ),
    Formula(
        where="section 2.3, DP-FTRL: the covariance that plans reckon with",
        draw=tree_case,
        runs=lambda case: tree_covariance(case["steps"], steps_per_tree=case["length"], completed=case["completed"]),
        formula=lambda case: np.diff(
            np.diff(covariance_by_least_squares(case), axis=0, prepend=0.0), axis=1, prepend=0.0
        ),
        mistakes={
            "of the prefixes": covariance_by_least_squares,
            "of roots": lambda case: np.diff(
                np.diff(covariance_by_least_squares(case, honaker=False), axis=0, prepend=0.0), axis=1, prepend=0.0
            ),
        },
        within=1e-9,
    ),
    Formula(
        where="section 2.3, DP-FTRL: sensitivity of trees",
        cases=10,
        draw=tree_case,
        runs=lambda case: squared_tree_sensitivity(case["steps"], case["gap"], case["length"], case["completed"]),
        formula=lambda case: formulas.tree_sensitivity(case["steps"], case["gap"], case["length"], case["completed"]),
        mistakes={
            "gap + 1 (tf-privacy's minsep)": lambda case: formulas.tree_sensitivity(
                case["steps"], case["gap"] + 1, case["length"], case["completed"]
            ),
            "once for each node": lambda case: formulas.tree_sensitivity(
                case["steps"], case["gap"], case["length"], case["completed"], once=True
            ),
            "nodes that are not complete": lambda case: formulas.tree_sensitivity(
                case["steps"], case["gap"], case["length"], case["completed"], partial=True
            ),
        },
        within=0.0,
    ),
    Formula(
        where="section 2.3, DP-FTRL by Toeplitz matrices: square root",
        draw=lambda rng: (int(rng.integers(1, 60)), float(rng.choice([0.0, 0.5, 0.9]))),
        runs=lambda case: square_root(case[0], momentum=case[1]),
        formula=lambda case: formulas.square_root(*case),
        mistakes={
            "without momentum": lambda case: formulas.square_root(case[0], 0.0),
            "A itself": lambda case: [sum(case[1] ** i for i in range(k + 1)) for k in range(case[0])],
        },
        within=1e-9,
    ),
    Formula(
        where="section 2.3, DP-FTRL by Toeplitz matrices: noise",
        draw=toeplitz_case,
        runs=noise_run,
        formula=noise_by_inverse,
        mistakes={
            "C z": lambda case: noise_by_inverse(case, transposed=True),
            "c_{k+1} for c_k": lambda case: noise_by_inverse(case, shifted=True),
        },
        within=1e-9,
    ),
    Formula(
        where="section 2.3, DP-FTRL by Toeplitz matrices: sensitivity",
        draw=toeplitz_case,
        runs=lambda case: squared_sensitivity(case["column"], case["gap"]),
        formula=lambda case: formulas.toeplitz_sensitivity(case["column"], case["gap"]),
        mistakes={
            "gap + 1": lambda case: formulas.toeplitz_sensitivity(case["column"], case["gap"] + 1),
            "k columns' norms": lambda case: (
                -(-case["steps"] // case["gap"]) * formulas.toeplitz_sensitivity(case["column"], 99, first_only=True)
            ),
        },
        within=1e-9,
    ),
    Formula(
        where="section 2.3, DP-FTRL: noise in the weights",
        draw=toeplitz_case,
        runs=in_weights_run,
        formula=in_weights,
        mistakes={
            "no momentum": lambda case: in_weights(case, momentum=0.0),
            "a constant rate": lambda case: in_weights(case, rates=(1.0,) * case["steps"]),
            "N_t for N_t - N_{t-1}": lambda case: in_weights(case, prefix=True),
        },
        within=1e-9,
    ),
    Formula(
        where="section 4, StackOverflow: the network (Reddi et al. 2021, table 9)",
        draw=words_case,
        runs=words_run,
        formula=words_printed,
        mistakes={
            "cell and output gates exchanged": lambda case: words_printed(case, order=(0, 1, 3, 2)),
            "no bias in the LSTM": lambda case: words_printed(case, bias=0.0),
            "no layer between": lambda case: words_printed(case, projected=False),
            "from the last word alone": lambda case: words_printed(case, last=True),
        },
        within=1e-5,
    ),
    Formula(
        where="section 4, StackOverflow: the loss of a user",
        draw=user_words_case,
        runs=user_loss_run,
        formula=formulas.mean_over_words,
        mistakes={
            "the mean over texts of means over words": lambda case: formulas.mean_over_words(case, by_text=True),
            "padding counts": lambda case: formulas.mean_over_words(case, padding=True),
            "without unknown words": lambda case: formulas.mean_over_words(case, left_out=(0, 1)),
        },
        within=1e-5,
    ),
    Formula(
        where="section 4, StackOverflow: accuracy (Kairouz et al. 2021, `accuracy_no_oov_or_eos`)",
        draw=scored_words_case,
        runs=score_run,
        formula=formulas.accuracy_of_words,
        mistakes={
            "with padding": lambda case: formulas.accuracy_of_words(case, left_out=("unknown", "end")),
            "with unknown words": lambda case: formulas.accuracy_of_words(case, left_out=("padding", "end")),
            "with ends": lambda case: formulas.accuracy_of_words(case, left_out=("padding", "unknown")),
            "the mean over texts": lambda case: formulas.accuracy_of_words(case, by_text=True),
        },
        within=1e-9,
    ),
]
