"""The papers' optimizers and schedules in NumPy's float64, independently of `sfumato.optim`, torch and timm.

Each optimizer takes lists of tensors w_0, the gradients of each step and the learning rate of each step and tensor, and
gives the weights after the last step. What a name could be taken for by mistake is a keyword that is off: a test that
compares an implementation with the formula must also fail with each of `MISTAKES`.
"""

import math
from collections.abc import Sequence

import numpy as np

Tensors = Sequence[np.ndarray]


def sgd(weights: Tensors, gradients: Sequence[Tensors], rates: Sequence[Sequence[float]], *, decay=0.0, wrong=""):
    """g = g + lambda w;  w = w - eta g.  De et al. 2022, equations 2 and 3; none of their private rows has a decay."""
    return momentum(weights, gradients, rates, coefficient=0.0, decay=decay, wrong=wrong)


def momentum(weights, gradients, rates, *, coefficient=0.9, decay=0.0, wrong=""):
    """The heavy ball: u = mu u + (g + lambda w);  w = w - eta u, the rate outside the sum.

    Mehta et al. 2022 (Scenic's, that is Flax's) and Kairouz et al. 2021 (v = mu v + G) write it so. Where the rate
    changes, a buffer that has the rate inside (Keras, and with it Xu et al. 2022) is another walk.
    """
    w, u = _copies(weights), _zeros(weights)
    for gradient, rate in zip(gradients, rates, strict=True):
        for i, (g, eta) in enumerate(zip(gradient, rate, strict=True)):
            g = g if wrong == "no decay" else g + decay * w[i]
            g = -g if wrong == "ascent" else g
            eta = rate[0] if wrong == "one rate for all groups" else eta
            if wrong == "the rate inside the buffer":
                u[i] = coefficient * u[i] + eta * g
                w[i] = w[i] - u[i]
                continue
            u[i] = coefficient * u[i] + (1 - coefficient if wrong == "dampened" else 1) * g
            w[i] = w[i] - eta * (g + coefficient * u[i] if wrong == "Nesterov's" else u[i])
    return w


def adam(weights, gradients, rates, *, betas=(0.9, 0.999), epsilon=1e-8, decay=0.0, wrong=""):
    """Kingma and Ba 2015, algorithm 1; g has the decay:  w = w - eta m^ / (sqrt(v^) + epsilon)."""
    w, moments = _copies(weights), _Moments(weights, betas, epsilon, wrong)
    for gradient, rate in zip(gradients, rates, strict=True):
        coupled = wrong not in ("decoupled decay", "no decay")
        direction = moments.after([g + coupled * decay * x for g, x in zip(gradient, w, strict=True)])
        for i, eta in enumerate(rate):
            eta = rate[0] if wrong == "one rate for all groups" else eta
            shrunk = 1 - eta * decay if wrong == "decoupled decay" else 1
            w[i] = shrunk * w[i] - eta * direction[i]
    return w


def adamw(weights, gradients, rates, *, betas=(0.9, 0.999), epsilon=1e-8, decay=0.0, wrong=""):
    """Loshchilov and Hutter 2019, algorithm 2, as torch has it:  w = w - eta (lambda w + m^ / (sqrt(v^) + epsilon))."""
    w, moments = _copies(weights), _Moments(weights, betas, epsilon, wrong)
    for gradient, rate in zip(gradients, rates, strict=True):
        coupled = wrong == "coupled decay"
        direction = moments.after([g + coupled * decay * x for g, x in zip(gradient, w, strict=True)])
        for i, eta in enumerate(rate):
            eta = rate[0] if wrong == "one rate for all groups" else eta
            share = 0 if wrong in ("coupled decay", "no decay") else 1 if wrong == "decay without the rate" else eta
            w[i] = w[i] - share * decay * w[i] - eta * direction[i]
    return w


def lamb(weights, gradients, rates, *, betas=(0.9, 0.999), epsilon=1e-6, decay=0.0, wrong=""):
    """You et al. 2020, algorithm 2, phi the identity, layer by layer (a tensor each):

    r = m^ / (sqrt(v^) + epsilon) + lambda w;   w = w - eta (|w| / |r|) r,   the ratio 1 where a norm is 0
    """
    w, moments = _copies(weights), _Moments(weights, betas, epsilon, wrong)
    for gradient, rate in zip(gradients, rates, strict=True):
        if wrong == "the gradient clipped to norm 1":
            gradient = [g / max(1.0, _norm(gradient)) for g in gradient]
        directions = moments.after(gradient)
        inside = wrong not in ("no decay", "decay outside the ratio")
        r = [direction + inside * decay * x for direction, x in zip(directions, w, strict=True)]
        whole = _ratio(_norm(w), _norm(r))
        for i, eta in enumerate(rate):
            eta = rate[0] if wrong == "one rate for all groups" else eta
            ratio = _ratio(_norm([w[i]]), _norm([r[i]]), exception=wrong != "no exception for zeros")
            if wrong == "no ratio" or (wrong == "no ratio without decay" and decay == 0):
                ratio = 1.0
            elif wrong == "one ratio for all tensors":
                ratio = whole
            elif wrong == "the ratio at most 1":
                ratio = min(ratio, 1.0)
            elif wrong == "the root of the ratio":
                ratio = ratio**0.5
            w[i] = w[i] - eta * ratio * r[i] - (eta * decay * w[i] if wrong == "decay outside the ratio" else 0)
    return w


MOMENTS = ("no bias correction", "epsilon inside the root", "betas swapped", "the first moment not averaged", "AMSGrad")
MISTAKES = {
    "sgd": ("ascent", "one rate for all groups", "no decay"),
    "momentum": (
        *("ascent", "one rate for all groups", "no decay"),
        *("the rate inside the buffer", "dampened", "Nesterov's"),
    ),
    "adam": (*MOMENTS, "one rate for all groups", "no decay", "decoupled decay"),
    "adamw": (*MOMENTS, "one rate for all groups", "no decay", "coupled decay", "decay without the rate"),
    "lamb": (
        *MOMENTS,
        *("one rate for all groups", "no decay", "decay outside the ratio"),
        *("no ratio", "no ratio without decay", "one ratio for all tensors", "the ratio at most 1"),
        *("the root of the ratio", "no exception for zeros", "the gradient clipped to norm 1"),
    ),
}
"""For each optimizer the values of `wrong`."""
OF_DECAY = ("no decay", "decoupled decay", "coupled decay", "decay without the rate", "decay outside the ratio")
"""Those that show where there is a decay."""
WITHOUT_DECAY = ("no ratio without decay",)
"""Those that show where there is none."""
OPTIMIZERS = {"sgd": sgd, "momentum": momentum, "adam": adam, "adamw": adamw, "lamb": lamb}


class _Moments:
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  both divided by 1 - b^t;  m^ / (sqrt(v^) + epsilon)."""

    def __init__(self, like: Tensors, betas: tuple[float, float], epsilon: float, wrong: str):
        self.m, self.v, self.largest, self.t = _zeros(like), _zeros(like), _zeros(like), 0
        self.betas, self.epsilon, self.wrong = betas[:: -1 if wrong == "betas swapped" else 1], epsilon, wrong

    def after(self, gradient: Tensors) -> list[np.ndarray]:
        self.t += 1
        (b1, b2), found = self.betas, []
        for i, g in enumerate(gradient):
            self.m[i] = b1 * self.m[i] + (1 if self.wrong == "the first moment not averaged" else 1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g**2
            self.largest[i] = np.maximum(self.largest[i], self.v[i])
            corrected = self.wrong != "no bias correction"
            m = self.m[i] / (1 - b1**self.t if corrected else 1)
            v = (self.largest if self.wrong == "AMSGrad" else self.v)[i] / (1 - b2**self.t if corrected else 1)
            inside = self.wrong == "epsilon inside the root"
            found.append(m / (np.sqrt(v + self.epsilon) if inside else np.sqrt(v) + self.epsilon))
        return found


def schedule(name: str, step: int, *, steps: int, warmup: int = 0, wrong: str = "") -> float:
    """The multiplier of the learning rate: (t + 1) / W while t < W, then the shape at (t - W) / (T - W).

    constant (De et al. 2022, C.3); step: 1, 1/10 from a half on, 1/100 from three quarters on (C.3, pre-training on
    CIFAR-100); cosine: (1 + cos(pi p)) / 2 = cos(pi p / 2)^2 and linear: 1 - p (Mehta et al. 2022, tables 6 and 7).
    """
    if step < warmup:
        return step / warmup if wrong == "the warm-up begins at zero" else (step + 1) / warmup
    passed, whole = step - warmup, steps - warmup
    if wrong == "warm-up counted as decay":
        passed, whole = step, steps
    if wrong == "ends at zero":
        whole = max(1, whole - 1)
    if name == "constant":
        return 1.0
    if name == "step":  # in whole numbers: 2 (t - W) >= T - W is the second half
        late = 2 * passed > whole if wrong == "a step late" else 2 * passed >= whole
        drop = 2 if wrong == "halved" else 10
        return 1 / drop ** (late + (4 * passed >= 3 * whole))
    if name == "linear":
        return (whole - passed) / whole
    quarter = math.cos(math.pi / 2 * passed / whole)
    return quarter if wrong == "not squared" else quarter**2


SCHEDULE_MISTAKES = {
    "constant": ("the warm-up begins at zero",),
    "step": ("the warm-up begins at zero", "warm-up counted as decay", "a step late", "halved"),
    "linear": ("the warm-up begins at zero", "warm-up counted as decay", "ends at zero"),
    "cosine": ("the warm-up begins at zero", "warm-up counted as decay", "ends at zero", "not squared"),
}


def distance(found: Tensors, expected: Tensors) -> float:
    """The largest difference of a tensor, in parts of its norm; infinite for what is no number."""
    parts = [
        _norm([np.asarray(one, np.float64) - two]) / (_norm([two]) or 1.0)
        for one, two in zip(found, expected, strict=True)
    ]
    return max(part if math.isfinite(part) else math.inf for part in parts)


def _ratio(weights: float, update: float, exception: bool = True) -> float:
    if exception and (weights == 0 or update == 0):
        return 1.0
    return weights / update if update else math.nan


def _norm(tensors: Tensors) -> float:
    return math.sqrt(sum(float((value**2).sum()) for value in tensors))


def _copies(tensors: Tensors) -> list[np.ndarray]:
    return [np.array(value, np.float64) for value in tensors]


def _zeros(tensors: Tensors) -> list[np.ndarray]:
    return [np.zeros(np.shape(value)) for value in tensors]
