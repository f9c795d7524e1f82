"""The formulas of Xu et al. 2022, arXiv 2211.10844, in NumPy and float64.

What the paper leaves to those that it cites is as these print it: Andrew et al. 2021 for adaptive clipping, Hermans et
al. 2017 for triplets, Canonne et al. 2020 for RDP, Bun and Steinke 2016 for zCDP.
"""

import itertools
import math

import numpy as np


def clip(vector, max_norm):
    """min(1, C / |v|) v."""
    return vector * min(1.0, max_norm / max(np.linalg.norm(vector), 1e-300))


def softmax(logits):
    """Over the last axis."""
    found = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return found / found.sum(axis=-1, keepdims=True)


def objective(embeddings, head, labels, *, summed=False, bias=0.0):
    """Equation 1: the mean cross-entropy of <f(x), w_c> over all classes c."""
    chances = softmax(embeddings @ head.T + bias)
    losses = -np.log(chances[np.arange(len(labels)), labels])
    return losses.sum() if summed else losses.mean()


def glorot(uniform, classes, width):
    """A head from numbers in [0, 1): uniform within sqrt(6 / (classes + width)), float32 as it is drawn."""
    bound = math.sqrt(6 / (classes + width))
    return (-bound + 2 * bound * uniform).astype(np.float32).astype(float)


def gradients(weight, head, inputs, targets):
    """Of the mean cross-entropy of head @ tanh(weight @ x), by both."""
    embeddings = np.tanh(inputs @ weight.T)
    errors = (softmax(embeddings @ head.T) - np.eye(len(head))[targets]) / len(inputs)
    return ((errors @ head) * (1 - embeddings**2)).T @ inputs, errors.T @ embeddings


def local_training(weight, head, inputs, targets, batches, how, *, head_scale=None, nesterov=False, dampened=False):
    """Algorithm 2, lines 3 to 5: SGD with momentum on backbone and head, the head at its own rate.

    Args:
        how: learning_rate, head_scale, momentum, reconstruction: so many steps train the head alone, the rest then the
            backbone alone; 0 for both at once.
    """
    scale = how["head_scale"] if head_scale is None else head_scale
    weight, head, first = weight.copy(), head.copy(), how["reconstruction"]
    velocities = [None, None]
    for step, rows in enumerate(batches):
        found = gradients(weight, head, inputs[rows], targets[rows])
        for place, (value, rate) in enumerate(((weight, how["learning_rate"]), (head, scale * how["learning_rate"]))):
            if first and (step < first) != (place == 1):
                continue
            m, old = how["momentum"], velocities[place]
            share = 1 - m if dampened and old is not None else 1.0
            velocities[place] = found[place] if old is None else m * old + share * found[place]
            moved = found[place] + m * velocities[place] if nesterov else velocities[place]
            value -= rate * moved
    return weight, head


def rounds_of_fedemb(case, *, sign=1.0, clipped=True, divisor=None, noise=1.0, whole=False, server=None, **local):
    """Algorithm 2: in each round users drawn, virtual clients, clip(backbone before - after), sum, N(0, (z C)^2), over
    the fixed number of clients, and the server's SGD with momentum."""
    weight, velocity = case["weight"].copy(), np.zeros_like(case["weight"])
    for step, drawn in enumerate(case["drawn"]):
        total, present = np.zeros_like(weight), 0
        for client in range(case["clients"]):
            members = [user for user in drawn if case["assigned"][step][user] == client]
            rows = np.concatenate([np.flatnonzero(case["users"] == user) for user in members] or [[]]).astype(int)
            if not len(rows):
                continue
            present += 1
            classes = np.unique(case["labels"][rows])
            targets = np.searchsorted(classes, case["labels"][rows])
            batches, uniform = case["numbers"](step, client, len(rows), len(classes))
            head = glorot(uniform, len(classes), len(weight))
            after, _ = local_training(weight, head, case["inputs"][rows], targets, batches, case["how"], **local)
            update = sign * (weight - after)
            total += clip(update, case["max_norm"]) if clipped else update
        total = total + noise * case["noise_multiplier"] * case["max_norm"] * case["noise"][step]
        mean = total / (max(1, present) if divisor == "present" else case["clients"])
        velocity = (0.9 if server is None else server) * velocity + mean
        weight = weight - case["server_rate"] * velocity
    return weight


def local_fedavg(weight, head, inputs, targets, batches, how, *, head_scale=1.0):
    """Algorithm 1, lines 3 to 6: the same rate for backbone and the head over all classes, both handed on."""
    after = local_training(weight, head, inputs, targets, batches, how | {"reconstruction": 0}, head_scale=head_scale)
    return weight - after[0], head - after[1]


def unit(vectors):
    """Of length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def binary(embeddings, labels, *, sharpness=10.0, centre=0.5, ordered=False):
    """The mean over pairs i < j of -log sigmoid(+-10 (cos - 1/2)), + for two of one class."""
    rows, losses = unit(embeddings), []
    for i, j in itertools.product(range(len(rows)), repeat=2):
        if i < j or (ordered and i == j):
            logit = sharpness * (rows[i] @ rows[j] - centre)
            losses.append(math.log1p(math.exp(-logit if labels[i] == labels[j] else logit)))
    return sum(losses) / max(1, len(losses))


def triplets(embeddings, labels, *, margin=0.2, squared=True, over_all=False):
    """Batch all: the mean over triplets (a, p, n) that violate it of |a - p|^2 - |a - n|^2 + margin."""
    rows, found = unit(embeddings), []
    for a, p, n in itertools.product(range(len(rows)), repeat=3):
        if a != p and labels[a] == labels[p] != labels[n]:
            near, far = (np.linalg.norm(rows[a] - rows[other]) ** (2 if squared else 1) for other in (p, n))
            found.append(max(0.0, near - far + margin))
    counted = len(found) if over_all else sum(one > 0 for one in found)
    return sum(found) / max(1, counted)


def hard_triplets(embeddings, labels, *, margin=0.2, nearest_positive=False):
    """Batch hard: the mean over a of max(0, max_p |a - p|^2 - min_n |a - n|^2 + margin)."""
    rows, found = unit(embeddings), []
    for a in range(len(rows)):
        near = [np.sum((rows[a] - rows[p]) ** 2) for p in range(len(rows)) if p != a and labels[p] == labels[a]]
        far = [np.sum((rows[a] - rows[n]) ** 2) for n in range(len(rows)) if labels[n] != labels[a]]
        if near and far:
            found.append(max(0.0, (min if nearest_positive else max)(near) - min(far) + margin))
    return sum(found) / max(1, len(found))


def adaptive(case, *, rate=None, arithmetic=False, half=0.5, divisor=None, count_noise=None):
    """Andrew et al. 2021: C <- C exp(-eta (b - gamma)), b = (sum(1[|d| <= C] - 1/2) + N(0, sigma_b^2)) / m + 1/2, cut
    to [0, 1].

    Returns:
        the released means of clipped vectors, and C after each step.
    """
    bound, m, found = case["first"], case["expected"], []
    sigma = case["count_noise"] if count_noise is None else count_noise
    rate = case["rate"] if rate is None else rate
    for vectors, noise, of_count in zip(case["vectors"], case["noise"], case["noise_of_count"], strict=True):
        total = sum(clip(vector, bound) for vector in vectors) + case["noise_multiplier"] * bound * noise
        within = sum(float(np.linalg.norm(vector) <= bound) - half for vector in vectors)
        share = min(1.0, max(0.0, (within + sigma * of_count) / (divisor or m) + half))
        move = -rate * (share - case["quantile"])
        bound = bound * (1 + move) if arithmetic else bound * math.exp(move)
        found.append([*(total / m), bound])
    return np.array(found)


def vector_noise(joint, count_noise, *, twice=2.0):
    """z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)."""
    return (joint**-2 - (twice * count_noise) ** -2) ** -0.5


def similarity(first, second):
    """1 - |x - y|^2 / 4 on unit vectors, to whole steps of 2^-24."""
    distance = ((unit(first) - unit(second)) ** 2).sum(axis=-1)
    return np.round((1 - distance / 4) * 2**24) / 2**24


def pairs(embeddings, labels, minibatch=None):
    """Similarities of all pairs i < j (of one minibatch), and whether each is of one class."""
    places = [
        (i, j)
        for i, j in itertools.combinations(range(len(labels)), 2)
        if minibatch is None or i // minibatch == j // minibatch
    ]
    first, second = np.array(places).T
    return similarity(embeddings[first], embeddings[second]), labels[first] == labels[second]


def recall(embeddings, labels, far, minibatch=None, *, interpolated=False, of_all=False, selves=False):
    """The recall of the lowest threshold that accepts at most this share of pairs of two classes, and that share."""
    values, same = pairs(embeddings, labels, minibatch)
    if selves:
        values, same = np.append(values, np.ones(len(labels))), np.append(same, np.ones(len(labels), bool))
    thresholds = np.append(np.unique(values), 2.0)
    accepted = values[None] >= thresholds[:, None]
    false = (accepted & ~same).sum(axis=1) / (len(same) if of_all else (~same).sum())
    true = (accepted & same).sum(axis=1) / same.sum()
    if interpolated:
        order = np.argsort(false, kind="stable")
        return float(np.interp(far, false[order], true[order])), far
    allowed = false <= far
    best = np.flatnonzero(allowed)[0]  # the lowest threshold of those
    return true[best], false[best]


def epsilon_of_renyi(divergences, orders, delta):
    """Canonne et al. 2020: min over a of r + log((a - 1) / a) - (log delta + log a) / (a - 1), at least 0."""
    each = (r + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a, r in zip(orders, divergences, strict=True))
    return max(0.0, min(each))


def renyi_of_sampled_gaussian(q, sigma, orders):
    """At whole orders: (1 / (a - 1)) log sum_k C(a, k) (1 - q)^(a-k) q^k e^((k^2 - k) / (2 s^2))."""
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, max(orders) + 1)))])  # its logarithm
    found = []
    for order in orders:
        k = np.arange(order + 1)
        choose = factorial[order] - factorial[k] - factorial[order - k]
        logs = choose + (order - k) * math.log1p(-q) + k * math.log(q) + (k * k - k) / (2 * sigma**2)
        found.append((logs.max() + math.log(np.exp(logs - logs.max()).sum())) / (order - 1))
    return np.array(found)


def binomial(count, q):
    """P[k of n], k = 0, ..., n."""
    return np.array([math.comb(count, k) * q**k * (1 - q) ** (count - k) for k in range(count + 1)])


def delta_of_mixture(weights, sigma, steps, epsilons, *, points=1 << 17, fine=20001):
    """delta(epsilon) of T releases of sum_k w_k N(k, s^2) against N(0, s^2), both ways round: losses on a grid, a mass
    between two points shared by both so that its mean stays, and T convolutions by one Fourier transform."""
    most = len(weights) - 1
    x = np.linspace(-9 * sigma, most + 9 * sigma, fine)
    density = np.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) * (x[1] - x[0])
    ratio = sum(weight * np.exp((k * x - k * k / 2) / sigma**2) for k, weight in enumerate(weights))
    found = []
    for masses, losses in ((density * ratio, np.log(ratio)), (density, -np.log(ratio))):
        mean = steps * float(masses @ losses)
        spread = math.sqrt(max(steps * (float(masses @ losses**2) - float(masses @ losses) ** 2), 1e-12))
        reach = 1.5 * (max(abs(mean) + 14 * spread, np.abs(losses).max()) + 0.1)
        width = 2 * reach / points
        grid = np.zeros(points)
        place = losses / width + points / 2
        below = np.floor(place).astype(int)
        np.add.at(grid, below, masses * (1 - (place - below)))
        np.add.at(grid, below + 1, masses * (place - below))
        whole = np.fft.irfft(np.fft.rfft(np.fft.ifftshift(grid)) ** steps, points)
        whole, values = np.fft.fftshift(whole), (np.arange(points) - points / 2) * width
        found.append(
            [float(np.clip(whole, 0, None) @ np.maximum(0, -np.expm1(e - np.maximum(values, e)))) for e in epsilons]
        )
    return np.maximum(*map(np.array, found))


def least_batch(ratio, population, steps, epsilon, delta, orders, *, moves=2.0, drawn=None):
    """The fewest participants B, with noise z = ratio B, whose RDP epsilon at q = B / N is at most this: bisection.

    Args:
        moves: by how many C one user moves the sum: 2 in a virtual client.
    """

    def spent(batch):
        q = (drawn or batch) / population
        divergences = steps * renyi_of_sampled_gaussian(q, ratio * batch / moves, orders)
        return epsilon_of_renyi(divergences, orders, delta)

    low, high = 1, population - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def moves_of_users(max_norm):
    """How far one user, and all users of a client, move the sum of two clients' clipped updates: all ways to put three
    users with pulls of many sizes and signs into two clients, a client's update the sum of its users' pulls."""
    sizes = [sign * size * max_norm for size in (0.4, 3.0, 9.0) for sign in (1, -1)]

    def total(pulls, clients):
        summed = [sum(p for p, c in zip(pulls, clients, strict=True) if c == client) for client in (0, 1)]
        return sum(min(max(one, -max_norm), max_norm) for one in summed)

    of_user = of_client = 0.0
    for pulls in itertools.product(sizes, repeat=3):
        for clients in itertools.product((0, 1), repeat=3):
            whole = total(pulls, clients)
            for gone in range(3):
                rest = [place for place in range(3) if place != gone]
                less = total([pulls[place] for place in rest], [clients[place] for place in rest])
                of_user = max(of_user, abs(whole - less))
            rest = [place for place in range(3) if clients[place] == 1]
            less = total([pulls[place] for place in rest], [1 for _ in rest])
            of_client = max(of_client, abs(whole - less))
    return of_user, of_client


def lenet(channels, side, dimension, *, floor=False):
    """Two padded convolutions of 5 x 5 with 32 and 64 channels, each pooled, and one linear layer, with biases."""
    left = side // 4 if floor else -(-side // 4)
    return 32 * (25 * channels + 1) + 64 * (25 * 32 + 1) + dimension * (64 * left**2 + 1)
