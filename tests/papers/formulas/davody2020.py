"""The formulas of Davody et al. 2020, arXiv 2006.10919, in NumPy and float64, as printed.

Gradients are taken by complex steps: f(theta + i h) has the imaginary part h f'(theta), to the last digit for a tiny h,
so that what is compared with the package's gradients is the printed formula alone, and no derivation of ours.
"""

import itertools
import math

import numpy as np

TINY = 1e-30


def normalise(z, mean, variance, gain, shift, eps):
    """Equation 1: gamma (z - mu) / sqrt(sigma^2 + eps) + beta, of (..., C, P); all else (..., C)."""
    scaled = (z - mean[..., None]) / np.sqrt(variance[..., None] + eps)
    return gain[..., None] * scaled + shift[..., None]


def batch_moments(z):
    """Equation 2: for each channel the mean and E[(z - mu)^2] over examples and positions, of (..., N, C, P)."""
    mean = z.mean(axis=(-3, -1))
    return mean, ((z - mean[..., None, :, None]) ** 2).mean(axis=(-3, -1))


def batch_norm(z, gain, shift, eps):
    """Equations 1 and 2 with the batch for the expectation, of (..., N, C, P)."""
    mean, variance = batch_moments(z)
    return normalise(z, *(one[..., None, :] for one in (mean, variance, gain, shift)), eps)


def layer_norm(z, gain, shift, eps, *, squared=False):
    """Equations 1 and 3: each example's mean and variance over all units of the layer, of (N, C, ...).

    Equation 3 prints sigma = 1 / n sum (z - mu)^2, which equation 1 would square once more: `squared`.
    """
    flat = z.reshape(len(z), -1)
    mean = flat.mean(axis=1, keepdims=True)
    variance = ((flat - mean) ** 2).mean(axis=1, keepdims=True) ** (2 if squared else 1)
    each = (1, -1, *[1] * (z.ndim - 2))
    return gain.reshape(each) * ((flat - mean) / np.sqrt(variance + eps)).reshape(z.shape) + shift.reshape(each)


def running(old, observed, momentum):
    """Equations 9 and 10: (1 - alpha) old + alpha observed."""
    return (1 - momentum) * old + momentum * observed


def clip(vector, max_norm):
    """Equation 8: pi(g) = g min(1, C / |g|)."""
    return vector * min(1.0, max_norm / max(np.linalg.norm(vector), 1e-300))


def cross_entropy(logits, labels):
    """-log softmax (..., N) of logits (..., N, K)."""
    most = logits.real.max(axis=-1, keepdims=True)
    logs = np.log(np.exp(logits - most).sum(axis=-1)) + most[..., 0]
    return logs - np.take_along_axis(logits, np.broadcast_to(labels[:, None], (*logits.shape[:-1], 1)), -1)[..., 0]


def gradients(losses, theta):
    """(N, P): of the losses (P, N) of N examples, by complex steps in all P directions at once."""
    return (losses(theta + 1j * TINY * np.eye(len(theta))).imag / TINY).T


def split(theta, shapes):
    """The parameters (..., *shape) of vectors (..., P), one after the other."""
    sizes = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(theta, sizes[:-1], axis=-1)
    return [part.reshape(*theta.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]


def network(theta, shapes, inputs, normalisation):
    """Two layers without bias, each normalised, tanh between; at each position, and the mean over these: (..., N, K).

    Args:
        theta: (..., P).
        inputs: (N, C, positions).
        normalisation: of the layer's number, (..., N, C, positions), gain and shift (..., C).
    """
    first, gain1, shift1, second, gain2, shift2 = split(theta, shapes)
    hidden = np.tanh(normalisation(0, np.einsum("...hc,ncp->...nhp", first, inputs), gain1, shift1))
    return normalisation(1, np.einsum("...kh,...nhp->...nkp", second, hidden), gain2, shift2).mean(axis=-1)


def public_moments(theta, shapes, public, eps):
    """The moments that public examples alone have at each layer."""
    found = []

    def seen(_, z, gain, shift):
        found.append(batch_moments(z))
        return batch_norm(z, gain, shift, eps)

    network(theta, shapes, public, seen)
    return found


def by_public(theta, shapes, inputs, moments, eps):
    """Logits of examples, each normalised by these moments of public ones."""

    def fixed(layer, z, gain, shift):
        return normalise(z, *(one[..., None, :] for one in (*moments[layer], gain, shift)), eps)

    return network(theta, shapes, inputs, fixed)


def by_own_and_public(theta, shapes, inputs, moments, weight, eps):
    """Logits of examples, each normalised by the moments of {itself} and public values, its own with this weight."""

    def mixed(layer, z, gain, shift):
        mean, variance = (one[..., None, :] for one in moments[layer])
        own_mean, own_square = z.mean(axis=-1), (z**2).mean(axis=-1)
        both = weight * own_mean + (1 - weight) * mean
        second = weight * own_square + (1 - weight) * (variance + mean**2)
        return normalise(z, both, second - both**2, gain[..., None, :], shift[..., None, :], eps)

    return network(theta, shapes, inputs, mixed)


def beside(theta, shapes, inputs, public, eps):
    """Algorithm 1: f(theta, X u X^)[:L], the whole batch normalised together, the first L outputs."""
    together = np.concatenate([inputs, public])
    found = network(theta, shapes, together, lambda _, z, gain, shift: batch_norm(z, gain, shift, eps))
    return found[..., : len(inputs), :]


def each_beside(theta, shapes, inputs, public, eps):
    """The test phase of algorithm 1: f(theta, x u X^)[0] for each x."""
    return np.concatenate([beside(theta, shapes, one[None], public, eps) for one in inputs], axis=-2)


def sum_of_algorithm_1(theta, case, rows, *, together=True, clipped=True):
    """sum_i clip(gradient of the loss of x_i in the batch X u X^)."""
    form = beside if together else each_beside

    def losses(moved):
        logits = form(moved, case["shapes"], case["inputs"][rows], case["public"], case["eps"])
        return cross_entropy(logits, case["labels"][rows])

    found = gradients(losses, theta) if len(rows) else np.zeros((0, len(theta)))
    return sum((clip(one, case["max_norm"]) if clipped else one for one in found), np.zeros_like(theta))


def algorithm_1(case, *, multiply=1.0, **form):
    """The weights after all steps: the sum of a drawn batch, plus N(0, C^2 z^2), over L, times the rate."""
    theta = case["theta"].copy()
    for rows, noise in zip(case["draws"], case["noise"], strict=True):
        total = sum_of_algorithm_1(theta, case, rows, **form)
        total = total + multiply * case["max_norm"] * case["noise_multiplier"] * noise
        theta = theta - case["rate"] * total / case["batch_size"]
    return theta


def move_of_one(case):
    """The most that the clipped sum of algorithm 1 moves, in C, when one example is left out of the batch."""
    rows = np.arange(len(case["labels"]))
    whole = sum_of_algorithm_1(case["theta"], case, rows)
    moves = [np.linalg.norm(whole - sum_of_algorithm_1(case["theta"], case, np.delete(rows, one))) for one in rows]
    return max(moves) / case["max_norm"]


def sensitivities(largest, batch):
    """Section 3: S_mu = C' / L and S_sigma^2 = C'^2 (3 / L - 3 / L^2 + 1 / L^3)."""
    return largest / batch, largest**2 * (3 / batch - 3 / batch**2 + 1 / batch**3)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def times(matrix, vector):
    """(..., m, n) times (..., n)."""
    return np.einsum("...mn,...n->...m", matrix, vector)


def lstm(words, weight_input, weight_hidden, bias, order=(0, 1, 2, 3)):
    """Hochreiter and Schmidhuber's cell, gates in the order input, forget, cell, output: states (..., T, H)."""
    hidden = cell = np.zeros(weight_hidden.shape[-1])
    states = []
    for place in range(words.shape[-2]):
        gates = times(weight_input, words[..., place, :]) + times(weight_hidden, hidden + 0 * bias[..., :1]) + bias
        into, forget, new, out = (np.split(gates, 4, axis=-1)[which] for which in order)
        cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(new)
        hidden = sigmoid(out) * np.tanh(cell)
        states.append(hidden)
    return np.stack(states, axis=-2)


def row_norm(rows, gain, shift, eps):
    """Equations 1 and 3 over the last axis."""
    mean = rows.mean(axis=-1, keepdims=True)
    return gain * (rows - mean) / np.sqrt(((rows - mean) ** 2).mean(axis=-1, keepdims=True) + eps) + shift


def bilstm(tokens, weights, normed, *, order=(0, 1, 2, 3), reverse=True, real_words=True, biases=2):
    """BiLSTM-DL (section 2): an embedding, one LSTM in each direction, a linear layer on the mean over words.

    Args:
        tokens: (T,), 0 for padding, which the LSTMs read and the mean does not.
        weights: by name, each (..., *its shape).
    """

    def normalised(rows, name):
        gain, shift = (weights[f"{name}.{kind}"][..., None, :] for kind in ("weight", "bias"))
        return row_norm(rows, gain, shift, 1e-5) if normed else rows

    if not normed:
        weights = weights | {f"norm{n}.{kind}": np.zeros(1) for n in (1, 2, 3) for kind in ("weight", "bias")}
    words = normalised(weights["embedding.weight"][..., tokens, :], "norm1")
    states = []
    for end in ("", "_reverse"):
        turn = -1 if end and reverse else 1
        bias = weights[f"lstm.bias_ih_l0{end}"] + (weights[f"lstm.bias_hh_l0{end}"] if biases == 2 else 0)
        inner = weights[f"lstm.weight_ih_l0{end}"], weights[f"lstm.weight_hh_l0{end}"]
        states.append(lstm(words[..., ::turn, :], *inner, bias, order)[..., ::turn, :])
    both = normalised(np.concatenate(states, axis=-1), "norm2")
    read = both[..., tokens > 0, :] if real_words else both
    logits = times(weights["head.weight"], read.mean(axis=-2)) + weights["head.bias"]
    return normalised(logits[..., None, :], "norm3")[..., 0, :]


def count(layers, normed):
    """Parameters of (in, out, kernel) layers with biases, and of a gain and a shift for each normed output."""
    return sum((into * side**2 + 1) * out for into, out, side in layers) + 2 * sum(normed)


def lenet_300_100(classes, inputs, normed):
    """Table 1 and LeCun et al. 1998: 300, 100."""
    widths = (inputs, 300, 100, classes)
    return count([(*pair, 1) for pair in itertools.pairwise(widths)], widths[1:] if normed else ())


def lenet_5(classes, channels, side, normed):
    """Table 1: convolutions of 5 x 5 with 6 and 16 channels, each pooled; 120, 84 units."""
    left = ((max(side, 32) - 4) // 2 - 4) // 2  # 28 pixels stand in a frame of 32
    layers = [(channels, 6, 5), (6, 16, 5), (16 * left**2, 120, 1), (120, 84, 1), (84, classes, 1)]
    return count(layers, [out for _, out, _ in layers] if normed else ())


def vgg(classes, channels, normed):
    """Table 1: 2 x 64, pool, 2 x 128, pool, 4 x 256, pool; average pooling, 512, classes."""
    widths = [channels, 64, 64, 128, 128, 256, 256, 256, 256]
    layers = [(*pair, 3) for pair in itertools.pairwise(widths)] + [(256, 512, 1), (512, classes, 1)]
    return count(layers, [out for _, out, _ in layers] if normed else ())


def resnet_18(classes, channels, normed, *, biases):
    """Table 1 and He et al. 2016: 64, 2 x [64, 64], 2 x [128, 128], 2 x [256, 256], 2 x [512, 512], classes."""
    layers, before = [(channels, 64, 3)], 64
    for width in (64, 128, 256, 512):
        layers += [(before, width, 3)] + 3 * [(width, width, 3)]
        layers += [(before, width, 1)] if width != before else []  # the shortcut's projection
        before = width
    convolutions = count(layers, [out for _, out, _ in layers] if normed else ())
    without = 0 if biases else sum(out for _, out, _ in layers)
    return convolutions - without + count([(512, classes, 1)], [classes] if normed else ())


def renyi_of_sampled_gaussian(q, sigma, order, reach=12.0):
    """(1 / (a - 1)) log E[((1 - q) + q e^((2 x - 1) / (2 s^2)))^a], x ~ N(0, s^2): by numerical integration."""
    x = np.arange(-reach * sigma, order + reach * sigma, sigma / 6)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * sigma**2))
    logs = order * log_ratio - x**2 / (2 * sigma**2) - math.log(6 * math.sqrt(2 * math.pi))
    most = logs.max()
    return (most + math.log(np.exp(logs - most).sum())) / (order - 1)


def epsilon_of_renyi(divergences, orders, delta, conversion="canonne"):
    """The least epsilon over the orders: r + log((a - 1) / a) - (log delta + log a) / (a - 1), at least 0."""
    if conversion == "mironov":
        return min(r + math.log(1 / delta) / (a - 1) for a, r in zip(orders, divergences, strict=True))
    return max(
        0.0,
        min(r + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a, r in zip(orders, divergences, strict=True)),
    )


def delta_of_gaussian(epsilon, mu, points=20001):
    """Definition 3.1 for N(mu, 1) against N(0, 1): the integral of max(0, p - e^epsilon q)."""
    start = epsilon / mu + mu / 2  # where p = e^epsilon q
    x = np.linspace(start, max(start, mu) + 14.0, points)
    gap = np.exp(-((x - mu) ** 2) / 2) - np.exp(epsilon - x**2 / 2)
    weights = np.ones(points)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return float(weights @ gap) * (x[1] - x[0]) / 3 / math.sqrt(2 * math.pi)
