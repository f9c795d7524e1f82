"""The formulas of Mehta et al. 2022, arXiv 2205.02973, in NumPy and float64, as printed or as it cites them."""

import math

import numpy as np


def clip(vector, max_norm):
    """Equation 3: v min(1, C / |v|)."""
    return vector * min(1.0, max_norm / max(np.linalg.norm(vector), 1e-300))


def noisy_mean(gradients, noise, *, max_norm, noise_multiplier, size):
    """Equations 3 and 4: (sum of clipped gradients (N, D) + sigma C xi) / |B|."""
    total = np.sum([clip(gradient, max_norm) for gradient in gradients], axis=0)
    return (total + noise_multiplier * max_norm * noise) / size


def softmax_gradient(weight, bias, inputs, labels):
    """Equations 1 and 2, of a linear softmax classifier: the mean over examples (B, D) of (p - y) x' and of p - y."""
    logits = inputs @ weight.T + bias
    likely = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = likely / likely.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    return error.T @ inputs / len(inputs), error.mean(axis=0)


def softplus(values):
    return np.maximum(values, 0) + np.log1p(np.exp(-np.abs(values)))


def sigmoid_loss(logits, labels):
    """Section 4: the sigmoid cross-entropy, summed over classes and averaged over examples."""
    wanted = np.eye(logits.shape[1])[labels]
    return (softplus(logits) - wanted * logits).sum(axis=1).mean()


def sigmoid_gradients(weight, bias, inputs, labels):
    """Of each example (N, D) by weights and biases, one vector after the other: (p - y) (x', 1)."""
    error = 1 / (1 + np.exp(-(inputs @ weight.T + bias))) - np.eye(len(weight))[labels]
    return [np.concatenate([np.outer(one, x).ravel(), one]) for one, x in zip(error, inputs, strict=True)]


# Optimizers. Each takes a list of tensors, T lists of their gradients and T rates, and gives the tensors after each
# step.


def sgd(tensors, gradients, rates, *, decay=0.0):
    """Equation 2: theta - eta g; with L2, g + lambda theta."""
    path = []
    for given, rate in zip(gradients, rates, strict=True):
        tensors = [w - rate * (g + decay * w) for w, g in zip(tensors, given, strict=True)]
        path.append(tensors)
    return path


def momentum(tensors, gradients, rates, *, beta=0.9, decay=0.0):
    """Polyak's heavy ball: v <- beta v + g, theta <- theta - eta v."""
    velocity, path = [np.zeros_like(w) for w in tensors], []
    for given, rate in zip(gradients, rates, strict=True):
        velocity = [beta * v + g + decay * w for v, g, w in zip(velocity, given, tensors, strict=True)]
        tensors = [w - rate * v for w, v in zip(tensors, velocity, strict=True)]
        path.append(tensors)
    return path


def adaptive(tensors, gradients, rates, move, *, beta1, beta2, eps, coupled=0.0, corrected=True, inside=False):
    """What Adam, AdamW and LAMB share: m, v, their corrections, and `move(w, m / (sqrt(v) + eps), rate)`."""
    first, second = [np.zeros_like(w) for w in tensors], [np.zeros_like(w) for w in tensors]
    path = []
    for step, (given, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        given = [g + coupled * w for g, w in zip(given, tensors, strict=True)]
        first = [beta1 * m + (1 - beta1) * g for m, g in zip(first, given, strict=True)]
        second = [beta2 * v + (1 - beta2) * g**2 for v, g in zip(second, given, strict=True)]
        up, down = (1 - beta1**step, 1 - beta2**step) if corrected else (1.0, 1.0)
        moved = []
        for w, m, v in zip(tensors, first, second, strict=True):
            root = np.sqrt(v / down + eps) if inside else np.sqrt(v / down) + eps
            moved.append(move(w, m / up / root, rate))
        tensors = moved
        path.append(tensors)
    return path


def adam(tensors, gradients, rates, *, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.0, **options):
    """Kingma and Ba 2015, algorithm 1, with L2: theta - eta m^ / (sqrt(v^) + eps)."""
    betas = {"beta1": beta1, "beta2": beta2, "eps": eps, "coupled": decay}
    return adaptive(tensors, gradients, rates, lambda w, r, rate: w - rate * r, **betas | options)


def adamw(tensors, gradients, rates, *, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.0, **options):
    """Loshchilov and Hutter 2019, algorithm 2: theta - eta (m^ / (sqrt(v^) + eps) + lambda theta)."""
    betas = {"beta1": beta1, "beta2": beta2, "eps": eps}
    return adaptive(tensors, gradients, rates, lambda w, r, rate: w - rate * (r + decay * w), **betas | options)


def ratio_of(weight, update):
    """You et al. 2020: phi(|theta|) / |r|, phi the identity, and 1 where either norm is 0."""
    own, moved = np.linalg.norm(weight), np.linalg.norm(update)
    return own / moved if own > 0 and moved > 0 else 1.0


def lamb(tensors, gradients, rates, *, beta1=0.9, beta2=0.999, eps=1e-6, decay=0.0, ratio=ratio_of, **options):
    """You et al. 2020, algorithm 2: r = m^ / (sqrt(v^) + eps) + lambda theta; theta - eta (|theta| / |r|) r."""

    def move(w, r, rate):
        r = r + decay * w
        return w - rate * ratio(w, r) * r

    return adaptive(tensors, gradients, rates, move, **{"beta1": beta1, "beta2": beta2, "eps": eps} | options)


def warmed_line(steps, warmup):
    """Tables 5 and 7: a linear warm-up, then a straight line that reaches 0 one step after the last."""
    rest = steps - warmup
    return [(step + 1) / warmup for step in range(warmup)] + [1 - step / rest for step in range(rest)]


def crop_law(height, width, *, area=(0.08, 1.0), ratio=(3 / 4, 4 / 3), points=1200, of_side=False, log=True):
    """Szegedy et al. 2015: area uniform, ratio log-uniform, of windows that fit the image.

    Returns areas and log ratios of a grid, and which of its cells fit: (points,), (points,), bool (points, points).
    """
    shares = (np.arange(points) + 0.5) / points
    areas = area[0] + (area[1] - area[0]) * shares
    if of_side:
        ends = np.sqrt(area)
        areas = (ends[0] + (ends[1] - ends[0]) * shares) ** 2
    ends = np.log(ratio)
    logs = ends[0] + (ends[1] - ends[0]) * shares if log else np.log(ratio[0] + (ratio[1] - ratio[0]) * shares)
    wide = np.sqrt(np.multiply.outer(areas, np.exp(logs)) * height * width)
    high = np.sqrt(np.multiply.outer(areas, np.exp(-logs)) * height * width)
    return areas, logs, (wide <= width) & (high <= height)


def quantiles_of(values, weights, shares):
    """Of a discrete law."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order]) / weights.sum()
    return [values[order][np.searchsorted(cumulative, share)] for share in shares]


def centre(image, side):
    """Appendix D.3: the middle of an image (C, H, W)."""
    top, left = (image.shape[1] - side) // 2, (image.shape[2] - side) // 2
    return image[:, top : top + side, left : left + side]


def resized(image, height, width, *, filter_width=1.0, kernel=None, antialias=True, corners=False):
    """An image (C, H, W) in another size, axis by axis; each pixel a mean of those under its filter.

    Pixel i stands at i + 1/2. Where the image is made smaller the filter is as much wider (antialias).
    """
    kernel = triangle if kernel is None else kernel

    def matrix(old, new):
        scale = (old - 1) / max(new - 1, 1) if corners else old / new
        wider = max(scale, 1.0) if antialias else 1.0
        middles = np.arange(new) * scale + 0.5 if corners else (np.arange(new) + 0.5) * scale
        places = np.arange(old) + 0.5
        weights = kernel(np.subtract.outer(middles, places) / wider)
        weights[np.abs(np.subtract.outer(middles, places)) > filter_width * wider] = 0
        return weights / weights.sum(axis=1, keepdims=True)

    return np.einsum("ih,chw,jw->cij", matrix(image.shape[1], height), image, matrix(image.shape[2], width))


def triangle(x):
    """Bilinear."""
    return np.maximum(1 - np.abs(x), 0)


def cubic(a):
    """Keys 1981: -1/2 with antialiasing, as Pillow has it; -3/4 without, as OpenCV has it."""

    def kernel(x):
        x = np.abs(x)
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    return kernel


def real_accuracy(logits, sets):
    """Beyer et al. 2020: the share of images whose first choice is among their labels, of those that have any."""
    chosen = [(int(np.argmax(row)) in known) for row, known in zip(logits, sets, strict=True) if known]
    return sum(chosen) / len(chosen), len(chosen)


def normal_cdf(value):
    """Phi."""
    return math.erfc(-value / math.sqrt(2)) / 2


def delta_of_gaussian(epsilon, sigma):
    """Of one Gaussian release of sensitivity 1: Phi(1/2s - e s) - e^epsilon Phi(-1/2s - e s) (Balle and Wang 2018)."""
    half, shift = 1 / (2 * sigma), epsilon * sigma
    return normal_cdf(half - shift) - math.exp(epsilon) * normal_cdf(-half - shift)


def epsilon_of_gaussian(sigma, delta):
    """The least epsilon, by bisection."""
    low, high = 0.0, 200.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of_gaussian(middle, sigma) > delta else (low, middle)
    return high


def noise_of_gaussian(epsilon, delta):
    """The least sigma, by bisection."""
    low, high = 0.01, 1000.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of_gaussian(epsilon, middle) > delta else (low, middle)
    return high


def renyi_epsilon_of_gaussian(sigma, delta, orders):
    """By Renyi divergences a / (2 sigma^2), as TensorFlow Privacy converts them (Canonne, Kamath and Steinke 2020)."""
    return min(a / (2 * sigma**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders)


def repeated_pixels(public, private):
    """Appendix C, exact duplicates: of each private image the first public one of equal pixels, (private, public)."""
    return [
        pair
        for place, image in enumerate(private)
        for pair in [(place, other) for other, known in enumerate(public) if (known == image).all()][:1]
    ]
