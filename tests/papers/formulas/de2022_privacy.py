"""The accounting of De et al. 2022, arXiv 2204.13650, in NumPy and float64: from densities, without an accountant."""

import math

import numpy as np


def normal_cdf(value):
    """Phi."""
    return math.erfc(-value / math.sqrt(2)) / 2


def delta_of_gaussian(epsilon, sigma, *, points=60_001):
    """Definition 2.1, equation 1, for a sum of sensitivity 1 with noise N(0, sigma^2).

    The worst S is where p > e^epsilon q, so delta is the integral of max(0, p(x) - e^epsilon q(x)).
    """
    x = np.linspace(-40 * sigma, 40 * sigma + 1, points)
    p = np.exp(-((x - 1) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    q = np.exp(-(x**2) / (2 * sigma**2) + epsilon) / (sigma * math.sqrt(2 * math.pi))
    return float(np.maximum(p - q, 0).sum() * (x[1] - x[0]))


def renyi(probability, sigma, order):
    """Mironov, Talwar and Zhang 2019, section 3.3: the Renyi divergence of one step for a whole order.

    log sum_k C(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / (2 sigma^2)) / (a - 1).
    """
    terms = [
        math.lgamma(order + 1)
        - math.lgamma(k + 1)
        - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-probability)
        + k * math.log(probability)
        + (k * k - k) / (2 * sigma**2)
        for k in range(order + 1)
    ]
    most = max(terms)
    return (most + math.log(math.fsum(math.exp(term - most) for term in terms))) / (order - 1)


def renyi_by_integral(probability, sigma, order, *, points=2001):
    """The same for any order above 1: E over z ~ N(0, sigma^2) of (1 - q + q e^((2 z - 1) / (2 sigma^2)))^a."""
    z = np.linspace(-20 * sigma, 20 * sigma + order, points)
    logs = order * np.logaddexp(math.log1p(-probability), math.log(probability) + (2 * z - 1) / (2 * sigma**2))
    logs += -(z**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(z[1] - z[0])
    most = logs.max()
    return (most + math.log(np.exp(logs - most).sum())) / (order - 1)


def epsilon_of_renyi(orders, divergences, delta):
    """The least over orders of r + log((a - 1) / a) - (log delta + log a) / (a - 1) (Canonne, Kamath, Steinke 2020)."""
    pairs = zip(orders, divergences, strict=True)
    return max(0.0, min(r + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a, r in pairs))


def epsilon_of_renyi_2017(orders, divergences, delta):
    """Mironov 2017, proposition 3: r + log(1 / delta) / (a - 1), which TensorFlow Privacy had before."""
    return min(r - math.log(delta) / (a - 1) for a, r in zip(orders, divergences, strict=True))


def losses_of_one_step(probability, sigma, *, removed, width, count, rounding="split", points=60_001):
    """The law of the privacy loss of one sampled Gaussian step, as masses on a grid of this width around 0.

    The loss of an outcome x is log(1 - q + q e^((2 x - 1) / (2 sigma^2))), where x is drawn with the example (removed)
    or without it (added, where the loss has the other sign). An outcome's mass is split between the two points of the
    grid that it lies between, so that its mean stays, or rounded "up" or "down".
    """
    x = np.linspace(-14 * sigma, 14 * sigma + 1, points)
    plain, moved = np.exp(-(x**2) / (2 * sigma**2)), np.exp(-((x - 1) ** 2) / (2 * sigma**2))
    masses = (1 - probability) * plain + probability * moved if removed else plain
    loss = np.logaddexp(np.log1p(-probability), math.log(probability) + (2 * x - 1) / (2 * sigma**2))
    place = (loss if removed else -loss) / width
    low = np.floor(place).astype(int)
    share = {"split": place - low, "up": np.ones_like(place), "down": np.zeros_like(place)}[rounding]
    masses /= masses.sum()
    inside = (np.abs(low) < count // 2 - 1).nonzero()
    low, share, masses = low[inside] % count, share[inside], masses[inside]
    found = np.bincount(low, (1 - share) * masses, count)
    return found + np.bincount((low + 1) % count, share * masses, count)


class Losses:
    """The privacy loss of T sampled Gaussian steps in one direction, by discrete Fourier transforms of one step's."""

    def __init__(self, probability, sigma, *, removed, width=5e-4, reach=12.0, rounding="split"):
        self.count = 2 * round(reach / width)
        self.losses = width * np.fft.fftfreq(self.count, 1 / self.count)
        options = {"removed": removed, "width": width, "count": self.count, "rounding": rounding}
        self.transformed = np.fft.rfft(losses_of_one_step(probability, sigma, **options))

    def masses(self, steps):
        """Of the sum of so many losses."""
        return np.fft.irfft(self.transformed**steps, self.count)

    def deltas(self, epsilons, steps):
        """After so many steps, at each epsilon: E of max(0, 1 - e^(epsilon - loss))."""
        masses = self.masses(steps)
        return np.array([delta_of(masses, self.losses, epsilon) for epsilon in epsilons])

    def epsilon(self, delta, steps):
        """The least epsilon whose delta is at most this one."""
        masses, low, high = self.masses(steps), 0.0, self.losses.max()
        while high - low > 1e-7:
            middle = (low + high) / 2
            low, high = (middle, high) if delta_of(masses, self.losses, middle) > delta else (low, middle)
        return high


def delta_of(masses, losses, epsilon):
    """E of max(0, 1 - e^(epsilon - loss))."""
    above = losses > epsilon
    return float((masses[above] * -np.expm1(epsilon - losses[above])).sum())


def both(probability, sigma, **options):
    """The losses of both directions of add-or-remove."""
    return [Losses(probability, sigma, removed=removed, **options) for removed in (True, False)]


def epsilon(probability, sigma, steps, delta, **options):
    """Of T sampled Gaussian steps at delta: the larger one of both directions."""
    return max(one.epsilon(delta, steps) for one in both(probability, sigma, **options))


def most_steps(probability, sigma, epsilon, delta):
    """Section 3.1: the largest T whose delta at epsilon is at most the given one."""
    losses = both(probability, sigma)

    def fits(steps):
        return max(one.deltas([epsilon], steps)[0] for one in losses) <= delta

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def least_noise(probability, steps, epsilon_wanted, delta, low, high):
    """Section 2.2, privacy calibration: the least sigma between two whose T steps cost at most the given epsilon."""
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon(probability, middle, steps, delta) > epsilon_wanted else (low, middle)
    return high


def steps_of_figure_6(budget, batch, examples):
    """Figure 6(b): 2,500 steps at epsilon 8; section 4.2: in proportion to epsilon; figure 7(b): of small batches, the
    epochs of a moderate one, B = 2048."""
    steps = 2500 * budget / 8
    moderate = min(2048, examples)
    return round(steps * moderate / batch) if batch < moderate else round(steps)


def detected(epsilons, deltas, rate):
    """Appendix A.2: ln((1 - beta - delta) / alpha) <= epsilon bounds the power of a test of level alpha = `rate`.

    And with the hypotheses exchanged, alpha e^... : 1 - alpha <= e^epsilon beta + delta.
    """
    return min(
        min(math.exp(epsilon) * rate + delta, 1 - math.exp(-epsilon) * (1 - delta - rate))
        for epsilon, delta in zip(epsilons, deltas, strict=True)
    )


def clopper_pearson(hits, count, confidence):
    """Appendix A.2: the exact interval of a share, by bisection on binomial tails."""
    tail = (1 - confidence) / 2
    log_choose = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(count + 1)]

    def at_least(k, share):
        return math.fsum(
            math.exp(log_choose[i] + i * math.log(share) + (count - i) * math.log1p(-share))
            for i in range(k, count + 1)
        )

    def root(rises):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if rises(middle) else (middle, high)
        return (low + high) / 2

    low = root(lambda share: at_least(hits, share) > tail) if hits else 0.0
    high = root(lambda share: 1 - at_least(hits + 1, share) < tail) if hits < count else 1.0
    return hits / count, low, high


def area(own, others):
    """Table 9: how often a score of the class exceeds one of the others; ties count half."""
    pairs = [(a > b) + (a == b) / 2 for a in own for b in others]
    return sum(pairs) / len(pairs)
