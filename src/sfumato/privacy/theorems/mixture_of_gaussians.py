"""Gaussian steps under Poisson sampling, for a person with several records: a mixture of Gaussians.

Sources: Charles et al. 2024 (arXiv 2407.07737: a user's records under Poisson sampling); Choquette-Choo et al. 2024
(arXiv 2310.15526, corollary 4.7: vectors are dominated by their norms); Doroshenko et al. 2022 (privacy loss
distributions, pessimistic connect-the-dots).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sfumato.privacy.theorems.theorem import RepeatedSteps

NEGLIGIBLE = 1e-20
"""The per-step probability of record counts that are cut off. It is added to delta."""
_POINTS, _NEWTON = 4097, 4


@dataclass(frozen=True, kw_only=True)
class MixedGaussians(RepeatedSteps):
    """`steps` Gaussian releases of noise `sigma` over one record's sensitivity, each with k of a user's records.

    Args:
        probability: q, the probability that a record is sampled into a step, independently of the others.
        records: G, the most records of one user; k follows Binomial(G, q).

    **Guarantee.** For users added, removed or zeroed out. With k of a user's records, a step's sum differs by a vector
    of norm at most k C, so the step is dominated by the pair of sum_k w_k N(k, sigma^2) and N(0, sigma^2), where w are
    the binomial weights (arXiv 2407.07737; arXiv 2310.15526, corollary 4.7). Users with fewer records are dominated by
    users with G, because their k is stochastically smaller. The largest k, of total weight at most 1e-20, are moved to
    an unbounded sensitivity, which is an unbounded loss with that probability. The smallest k are moved up to the least
    k that is kept. No weight moves to a smaller sensitivity.
    """

    sigma: float
    probability: float
    records: int

    def equivalent_steps(self, mu: float) -> float:
        """The number of steps T whose composition tends to the Gaussian mechanism of mu.

        It solves T (E[e^(j k / sigma^2)] - 1) = mu^2, where j and k are independent numbers of records in a step. For
        G = 1 this is the formula of Poisson sampling.
        """
        import numpy as np

        weights = _weights(self.records, self.probability)
        # E over k, given j, of e^(j k / sigma^2) is (1 - q + q e^(j / sigma^2))^G.
        logs = self.records * np.logaddexp(
            math.log1p(-self.probability), math.log(self.probability) + weights.counts / self.sigma**2
        )
        return mu**2 / max(float(weights.masses @ np.expm1(np.minimum(logs, 700.0))), 1e-300)

    @property
    def coarsening(self) -> float:
        typical = self.records * self.probability / self.sigma
        reach = _curve(self.sigma, self.probability, self.records).losses[-1]
        return max(min(1.0, typical / 0.003), reach / 10, math.sqrt(self.steps) * typical / 20)

    def step_distribution(self, width: float) -> Any:
        """The privacy loss distribution of one step.

        Equal to dp-accounting's `from_mixture_gaussian_mechanism`, which inverts losses one by one and takes minutes
        for many records. Here all losses are inverted together.
        """
        import numpy as np
        from dp_accounting.pld import privacy_loss_distribution
        from scipy.special import log_ndtr, logsumexp

        from sfumato.privacy.theorems.sampled_losses import connect_dots, grid

        counts, masses, lost = _weights(self.records, self.probability)
        sigma, curve = self.sigma, _curve(self.sigma, self.probability, self.records)

        def log_mixture(points: Any, sign: float) -> Any:
            """The logarithm of the mixture's mass above (sign 1) or below (sign -1) each point."""
            return logsumexp(log_ndtr(sign * np.subtract.outer(counts, points) / sigma), axis=0, b=masses[:, None])

        # The hockey-stick divergence counts the outcomes whose loss exceeds epsilon: with the user's records, those
        # above a point; without, those below one. Outcomes beyond the curve add at most the negligible mass.
        low, _, epsilons = grid(curve.losses[0], curve.losses[-1], width)
        points = curve.points_of(epsilons)
        removed = (
            np.exp(log_mixture(points, 1))
            - np.exp(np.minimum(epsilons + log_ndtr(-points / sigma), 0))
            + lost
            + NEGLIGIBLE
        )
        remove = connect_dots(low, removed, width)

        low, _, epsilons = grid(-curve.loss(curve.farthest)[0], -curve.losses[0], width)
        points = curve.points_of(-epsilons)
        added = (
            np.exp(log_ndtr(points / sigma)) - np.exp(np.minimum(epsilons + log_mixture(points, -1), 0)) + NEGLIGIBLE
        )
        return privacy_loss_distribution.PrivacyLossDistribution(remove, connect_dots(low, added, width))


class _Weights(NamedTuple):
    """The numbers of a user's records in one step, their probabilities, and the probability of more.

    Args:
        counts, masses: arrays of shape (kept,).
        lost: the probability of more records than the last of `counts`.
    """

    counts: Any
    masses: Any
    lost: float


@functools.lru_cache(maxsize=64)
def _weights(records: int, probability: float) -> _Weights:
    """Binomial(G, q) without its tails. No probability moves to a smaller number of records."""
    import numpy as np
    from scipy.stats import binom

    counts = np.arange(records + 1)
    masses, above = binom.pmf(counts, records, probability), binom.sf(counts, records, probability)
    last = int(np.argmax(above <= NEGLIGIBLE))
    below = np.cumsum(masses)
    first = int(np.argmax(below > NEGLIGIBLE))
    masses[first] = below[first]
    kept = slice(first, last + 1)
    return _Weights(counts[kept].astype(float), masses[kept], float(above[last]))


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """The loss of an outcome x of the mixture against N(0, sigma^2): log sum_k w_k e^((k x - k^2 / 2) / sigma^2).

    Args:
        farthest: the x that N(0, sigma^2) exceeds with probability `NEGLIGIBLE`.
        points, losses: increasing together, arrays of shape (points,), covering all outcomes that are not negligible.
    """

    sigma: float
    weights: _Weights
    farthest: float
    points: Any = None
    losses: Any = None

    def terms(self, points: Any) -> Any:
        """The logarithms of the terms of the sum: shape (points, kept)."""
        import numpy as np

        counts = self.weights.counts
        return (np.multiply.outer(points, counts) - counts**2 / 2) / self.sigma**2 + np.log(self.weights.masses)

    def loss(self, points: Any) -> Any:
        """The loss of each point."""
        import numpy as np
        from scipy.special import logsumexp

        return logsumexp(self.terms(np.atleast_1d(points)), axis=1)

    def points_of(self, losses: Any) -> Any:
        """The outcomes with these losses, by bracketed Newton steps. The loss is convex and increasing."""
        import numpy as np

        place = np.clip(np.searchsorted(self.losses, losses), 1, len(self.points) - 1)
        low, high = self.points[place - 1], self.points[place]
        outcomes = np.clip(np.interp(losses, self.losses, self.points), low, high)
        for _ in range(_NEWTON):
            terms = self.terms(outcomes)
            most = terms.max(axis=1, keepdims=True)
            shares = np.exp(terms - most)
            total = shares.sum(axis=1)
            slope = shares @ self.weights.counts / total / self.sigma**2
            over = np.log(total) + most[:, 0] - losses
            outcomes = np.clip(outcomes - over / np.maximum(slope, 1e-300), low, high)
        return outcomes


@functools.lru_cache(maxsize=64)
def _curve(sigma: float, probability: float, records: int) -> _Curve:
    """The curve over all outcomes but those that both distributions exceed, or fall below, with probability 1e-20."""
    import numpy as np
    from scipy.special import ndtr, ndtri

    weights = _weights(records, probability)
    farthest = -float(ndtri(NEGLIGIBLE)) * sigma
    low, high = farthest, farthest + float(weights.counts[-1])
    while high - low > 1e-3 * sigma:
        middle = (low + high) / 2
        beyond = float(weights.masses @ ndtr((weights.counts - middle) / sigma))
        low, high = (middle, high) if beyond > NEGLIGIBLE else (low, middle)
    curve = _Curve(sigma=sigma, weights=weights, farthest=farthest)
    points = np.linspace(-farthest, high, _POINTS)
    return replace(curve, points=points, losses=curve.loss(points))
