"""The formulas of Shejwalkar et al. 2022, arXiv 2210.01864, and of DP-FTRL, which it trains with, in NumPy."""

import itertools
import math

import numpy as np


def ema(weights, beta, *, start=None):
    """Equation 3: theta_ema <- (1 - beta_t) theta_ema + beta_t theta_t, from theta_0; the average after each step.

    Args:
        weights: theta_0, theta_1, ..., (T + 1, D).
        beta: of the number of the step, from 0, whose weights are taken in.
    """
    average = weights[0] if start is None else start
    found = []
    for step, theta in enumerate(weights[1:]):
        average = (1 - beta(step)) * average + beta(step) * theta
        found.append(average)
    return np.array(found)


def ema_of(weights, decay):
    """Equation 3 written out: decay^t theta_0 + (1 - decay) sum_i decay^(t-i) theta_i, of theta_0 to theta_t."""
    shares = (1 - decay) * decay ** np.arange(len(weights))[::-1].astype(float)
    shares[0] /= 1 - decay
    return shares @ weights


def last_mean(weights, count):
    """UTA and UPA: the mean of the last k weights after each step, of all there are before there are k."""
    return np.array([weights[max(0, end - count) : end].mean(axis=0) for end in range(2, len(weights) + 1)])


def weighted_mean(weights, steps, decay):
    """Weights proportional to decay^(last step - step)."""
    shares = np.array([decay ** float(steps[-1] - step) for step in steps])
    return shares @ weights / shares.sum()


def softmax(logits):
    """Over the last axis."""
    found = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return found / found.sum(axis=-1, keepdims=True)


def majority(outputs):
    """OMV: the label with most votes among k models; of equally many the one whose mean probability is largest."""
    votes = np.zeros(outputs.shape[1:])
    for model in outputs:
        for row, label in enumerate(model.argmax(axis=1)):
            votes[row, label] += 1
    labels = []
    for row, found in enumerate(votes):
        most = np.flatnonzero(found == found.max())
        labels.append(most[outputs[:, row, most].mean(axis=0).argmax()])
    return np.array(labels)


def training_over(case, aggregate, *, start=None, restart=None, momentum=None):
    """Algorithm 1: from step tau on the gradient is taken at f_agg(theta_t, ..., theta_0), and with a restart the step
    starts there too; heavy-ball SGD on a quadratic; theta after each step."""
    start = case["start"] if start is None else start
    restart = case["restart"] if restart is None else restart
    theta, velocity = case["theta"], np.zeros_like(case["theta"])
    weights = [theta]
    for step, shift in enumerate(case["shifts"]):
        place = aggregate(np.array(weights)) if step >= start else theta
        gradient = case["hessian"] @ (place - case["optimum"]) + shift
        velocity = case["momentum"] * velocity + gradient
        theta = (place if restart and step >= start else theta) - case["rate"] * velocity
        weights.append(theta)
    return np.array(weights[1:])


KNOWN: dict = {}


def t_quantile(confidence, freedom, points=1001):
    """x with P(|T| <= x) = confidence: the density's integral, with x = sqrt(nu) tan(angle), where it is cos^(nu-1)."""
    if (confidence, freedom) in KNOWN:
        return KNOWN[confidence, freedom]

    def mass(angle):
        where = np.linspace(0, angle, points)
        weights = np.ones(points)
        weights[1:-1:2], weights[2:-1:2] = 4, 2
        return float(weights @ np.cos(where) ** (freedom - 1)) * angle / (points - 1) / 3

    whole, low, high = mass(math.pi / 2), 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) < confidence * whole else (low, middle)
    KNOWN[confidence, freedom] = math.sqrt(freedom) * math.tan((low + high) / 2)
    return KNOWN[confidence, freedom]


def interval(values, confidence, shares, *, freedom=None, divisor=None, quantile=None):
    """Section 5: mean +- t_{k-1} s sqrt(1 / k + sum_i w_i^2), s^2 the sample variance over k checkpoints."""
    k = len(values)
    mean = values.mean(axis=0)
    deviation = np.sqrt(((values - mean) ** 2).sum(axis=0) / (k - 1 if divisor is None else divisor))
    quantile = t_quantile(confidence, k - 1 if freedom is None else freedom) if quantile is None else quantile
    half = quantile * deviation * math.sqrt(1 / k + sum(share**2 for share in shares))
    return mean - half, mean + half, mean, deviation


def renyi_of_sampled_gaussian(q, sigma, order, reach=12.0):
    """Definition 2.2: (1 / (a - 1)) log E[(P / Q)^a], by integration, of (1 - q) N(0) + q N(1) against N(0)."""
    x = np.arange(-reach * sigma, order + reach * sigma, sigma / 6)
    log_ratio = np.logaddexp(math.log1p(-q) if q < 1 else -np.inf, math.log(q) + (2 * x - 1) / (2 * sigma**2))
    logs = order * log_ratio - x**2 / (2 * sigma**2) - math.log(6 * math.sqrt(2 * math.pi))
    most = logs.max()
    return (most + math.log(np.exp(logs - most).sum())) / (order - 1)


# -- DP-FTRL: trees ----------------------------------------------------------------------------------------------------


def dyadic(count):
    """The complete subtrees that the first leaves consist of, as (first leaf, height)."""
    found, start = [], 0
    for height in reversed(range(count.bit_length())):
        if count >> height & 1:
            found.append((start, height))
            start += 1 << height
    return found


def nodes_below(start, height):
    """All nodes of a subtree: (level, first leaf)."""
    return [(level, first) for level in range(height + 1) for first in range(start, start + (1 << height), 1 << level)]


def estimator(height, *, honaker=True):
    """The weights of a subtree's noisy nodes in the estimate of its leaves' sum: least squares, or its root alone."""
    nodes = nodes_below(0, height)
    if not honaker:
        return {node: float(node[0] == height) for node in nodes}
    below = np.array([[first <= leaf < first + (1 << level) for leaf in range(1 << height)] for level, first in nodes])
    below = below.astype(float)
    # The best linear unbiased estimate of sum(x) from below @ x + noise.
    weights = below @ np.linalg.solve(below.T @ below, np.ones(1 << height))
    return dict(zip(nodes, weights, strict=True))


def prefix_weights(steps, length=None, completed=False, **how):
    """W (T, nodes): N_t = W_t z, z one independent number for each node of each tree."""
    length = length or steps
    places, rows = {}, []

    def row_of(tree, pieces):
        found = {}
        for start, height in pieces:
            for (level, first), weight in estimator(height, **how).items():
                found[tree, level, first + start] = weight
        return found

    for step in range(steps):
        tree, place = divmod(step, length)
        row = row_of(tree, dyadic(place + 1))
        for earlier in range(tree):
            leaves = (length - 1).bit_length()
            row |= row_of(earlier, [(0, leaves)] if completed else dyadic(length))
        rows.append(row)
        for node in row:
            places.setdefault(node, len(places))
    weights = np.zeros((steps, len(places)))
    for step, row in enumerate(rows):
        for node, weight in row.items():
            weights[step, places[node]] = weight
    return weights


def online_prefix_noise(fresh):
    """N_t (T, n) of one tree, a node = fresh + (left + right) / 2, over its variance 2 - 2^-h.

    Of the nodes that one step completes the higher ones hold the lower ones' numbers, halved at each level: together
    one number of variance sum_j 4^-j.
    """
    last, found = {}, []
    for step, number in enumerate(fresh):
        height = ((step + 1) & -(step + 1)).bit_length() - 1
        node = number * math.sqrt(sum(4.0**-level for level in range(height + 1)))
        node = node + sum(2.0 ** (level - height) * last[level] for level in range(height))
        last[height] = node
        found.append(sum(last[level] / (2 - 2.0**-level) for _, level in dyadic(step + 1)))
    return np.array(found)


def ftrl(start, sums, noise, rate, momentum, *, of_gradient=False):
    """Kairouz et al. 2021, DP-FTRLM: v_t = m v_{t-1} + (G_t + N_t), w_t = w_0 - rate v_t, G_t the prefix sum."""
    velocity, prefix, found = np.zeros_like(start), np.zeros_like(start), []
    for total, own in zip(sums, noise, strict=True):
        prefix = prefix + total
        velocity = momentum * velocity + (total if of_gradient else prefix) + own
        found.append(start - rate * velocity)
    return np.array(found)


def tree_sensitivity(steps, gap, length=None, completed=False, *, partial=False, once=False):
    """S^2: the largest sum over complete nodes of the squared number of a unit's steps below, over all units that take
    part in every gap-th step."""
    length = length or steps
    most = 0
    for first in range(min(gap, steps)):
        part = range(first, steps, gap)
        total = 0
        for start in range(0, steps, length):
            end = min(start + length, steps)
            leaves = 1 << (end - start - 1).bit_length()
            there = leaves if partial or (completed and end < steps) else end - start
            for level in range(leaves.bit_length()):
                for place in range(0, there - (1 << level) + 1, 1 << level):
                    held = sum(start + place <= step < min(start + place + (1 << level), end) for step in part)
                    total += bool(held) if once else held**2
        most = max(most, total)
    return most


# -- Toeplitz factorisations -------------------------------------------------------------------------------------------


def toeplitz(column):
    """The lower triangular Toeplitz matrix of a first column."""
    size = len(column)
    return np.array([[column[row - place] if row >= place else 0.0 for place in range(size)] for row in range(size)])


def workload(steps, momentum, rates):
    """A[t, s] = sum_{u=s..t} rate_u m^(u-s): what the gradient of step s does to the weights after step t."""
    found = np.zeros((steps, steps))
    for row in range(steps):
        for place in range(row + 1):
            found[row, place] = sum(rates[u] * momentum ** (u - place) for u in range(place, row + 1))
    return found


def square_root(bands, momentum):
    """The lower triangular C with C C = A for A[t, s] = sum_{i<=t-s} m^i, by its columns: a_k = sum_i c_i c_{k-i}."""
    whole = [sum(momentum**power for power in range(place + 1)) for place in range(bands)]
    found = [1.0]
    for place in range(1, bands):
        found.append((whole[place] - sum(found[i] * found[place - i] for i in range(1, place))) / 2)
    return np.array(found)


def toeplitz_sensitivity(column, gap, *, every=True, first_only=False):
    """S^2: the largest |C u|^2 over all 0-1 vectors u whose ones are at least `gap` apart."""
    matrix, steps, most = toeplitz(column), len(column), 0.0
    for taken in range(1, (1 if first_only else -(-steps // gap)) + 1):
        for places in itertools.combinations(range(steps), taken):
            if all(later - earlier >= gap for earlier, later in itertools.pairwise(places)):
                moved = matrix[:, list(places)].sum(axis=1)
                most = max(most, float(moved @ moved))
    return most


def drift(step, period, shape):
    """The second group's share: 0 at the beginning of a period, 1 in its middle, and back."""
    phase = (step % period) / period
    return 1 - abs(1 - 2 * phase) if shape == "linear" else (1 - math.cos(2 * math.pi * phase)) / 2


def next_words(tokens, weights, *, order=(0, 1, 2, 3), bias=1.0, projected=True, last=False):
    """The network of next words: logits (T, V) after each of the tokens (T,).

    Args:
        weights: by name. The last column of the LSTM's input weights is its bias, the embedding the last layer where
            there is no other.
        order: of the gates input, forget, cell, output.
    """
    inner, own = weights["lstm.weight_ih_l0"], weights["lstm.weight_hh_l0"]
    hidden, cell = np.zeros(own.shape[1]), np.zeros(own.shape[1])
    states = []
    for token in tokens:
        gates = inner[:, :-1] @ weights["embedding.weight"][token] + own @ hidden + bias * inner[:, -1]
        into, forget, new, out = (np.split(gates, 4)[which] for which in order)
        cell = cell / (1 + np.exp(-forget)) + np.tanh(new) / (1 + np.exp(-into))
        hidden = np.tanh(cell) / (1 + np.exp(-out))
        states.append(hidden)
    states = np.array(states)
    if last:
        states = np.repeat(states[-1:], len(states), axis=0)
    reduced = states @ weights["projection.weight"].T + weights["projection.bias"]
    if not projected:
        reduced = states[:, : reduced.shape[1]]
    if "head.weight" not in weights:
        return reduced @ weights["embedding.weight"].T
    return reduced @ weights["head.weight"].T + weights["head.bias"]


def mean_over_words(case, *, by_text=False, padding=False, left_out=(0,)):
    """The mean cross-entropy over a user's words: logits (R, T, V), targets (R, T), 0 for padding."""
    logits, targets = case["logits"], case["targets"]
    losses = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    counted = np.ones(targets.shape, bool) if padding else ~np.isin(targets, left_out)
    if by_text:
        return np.mean([losses[row][counted[row]].mean() for row in range(len(targets))])
    return losses[counted].mean()


def accuracy_of_words(case, *, left_out=("padding", "unknown", "end"), by_text=False):
    """The share of correct words: targets and right (N, T), of which some do not count."""
    numbers = {"padding": 0, "unknown": 1, "end": case["vocabulary"] - 1}
    counted = ~np.isin(case["targets"], [numbers[name] for name in left_out])
    if by_text:
        return np.mean([right[own].mean() for right, own in zip(case["right"], counted, strict=True)])
    return case["right"][counted].mean()
