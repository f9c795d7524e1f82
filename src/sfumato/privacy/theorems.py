"""Which theorem speaks for which (adjacency, sampling rule, mechanism), and what it says.

One table. A combination that has no row is refused, and the refusal lists the rows that exist. dp-accounting's
accountants differ in their conventions (only its PLD doubles the sensitivity under replace-one, for instance), so
every row names its adjacency, its event and its accountants explicitly.

Private selection stands on top of a row: the best of a random number of runs, each of which the row speaks for.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sfumato._checks import SfumatoError, fraction, one_of, positive_integer
from sfumato.privacy.draws import Draws
from sfumato.privacy.mechanism import Gaussian, Mechanism
from sfumato.privacy.sampling import FullBatch, Poisson, SamplingRule

Adjacency = Literal["add-or-remove"]
Accountant = Literal["pld", "rdp"]

FINE_GRID = 1e-4
COARSE_GRID = 1e-3
ACCOUNTANTS = ("pld", "rdp")
LEAST_NOISE, MOST_NOISE = 1e-3, 1e9
"""Between these noise multipliers the accountants compute; beyond them they end in overflows."""

# Renyi orders of a selection: dp-accounting's own, and eight to the octave from 64 to 1024, where small epsilons lie.
SELECTION_ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(round(64 * 2 ** (eighth / 8)) for eighth in range(33)),
)


@dataclass(frozen=True, kw_only=True)
class Theorem:
    """One row of the table.

    Args:
        adjacency: the relation between data sets under which it holds.
        sampling: the name of the sampling rule.
        mechanism: the name of the mechanism.
        name: what a statement calls it.
        citation: where it is proven.
        tight: how the default accountant evaluates it.
    """

    adjacency: Adjacency
    sampling: str
    mechanism: str
    name: str
    citation: str
    tight: str


TABLE = (
    Theorem(
        adjacency="add-or-remove",
        sampling="Poisson",
        mechanism="Gaussian",
        name="Poisson-subsampled Gaussian mechanism",
        citation=(
            "Zhu, Dong and Wang 2022 (dominating pair under add-or-remove); Koskela et al. 2020 and Doroshenko et al. "
            "2022 (privacy loss distributions, pessimistic connect-the-dots); Mironov, Talwar and Zhang 2019 (RDP)"
        ),
        tight="privacy loss distribution (PLD)",
    ),
    Theorem(
        adjacency="add-or-remove",
        sampling="FullBatch",
        mechanism="Gaussian",
        name="composed Gaussian mechanism without sampling",
        citation="Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022 (composition); Mironov 2017 (RDP)",
        tight="exact Gaussian composition",
    ),
)


def theorem_for(adjacency: str, sampling: SamplingRule, mechanism: Mechanism) -> Theorem:
    """The row for this combination, or a refusal that lists the rows there are."""
    wanted = (adjacency, type(sampling).__name__, type(mechanism).__name__)
    for row in TABLE:
        if (row.adjacency, row.sampling, row.mechanism) == wanted:
            return row
    rows = "; ".join(f"({row.adjacency}, {row.sampling}, {row.mechanism})" for row in TABLE)
    raise SfumatoError(
        f"no theorem here covers (adjacency, sampling, mechanism) = ({', '.join(wanted)})", f"choose one of: {rows}"
    )


def of_selection(row: Theorem, draws: Draws) -> Theorem:
    """What speaks for the best of K runs, where `row` speaks for each."""
    number = "6 (Poisson)" if draws.is_poisson else "2 (truncated negative binomial)"
    return replace(
        row,
        name=f"private selection over the {row.name}",
        citation=f"Papernot and Steinke 2021 (arXiv 2110.03620), theorem {number}; for each candidate: {row.citation}",
        tight="Renyi differential privacy (RDP)",
    )


@dataclass(frozen=True, kw_only=True)
class Releases:
    """`steps` releases of one mechanism under one sampling rule: what an accountant needs to know of a plan."""

    sampling: SamplingRule
    mechanism: Mechanism
    steps: int
    adjacency: Adjacency = "add-or-remove"

    def __post_init__(self) -> None:
        positive_integer("steps", self.steps, remedy="give the number of training steps")
        theorem_for(self.adjacency, self.sampling, self.mechanism)


def epsilon(releases: Releases, delta: float, *, accountant: str = "pld", grid: float = FINE_GRID) -> float:
    """The epsilon that the theorem gives at this delta.

    Args:
        releases: what was released.
        delta: strictly between 0 and 1.
        accountant: "pld" (for full-batch Gaussian steps its exact closed form) or "rdp".
        grid: the discretisation of privacy losses, for "pld". Coarser is faster and larger, never below the truth.

    **Guarantee.** An upper bound on the true epsilon at delta for the row's adjacency: PLD rounds pessimistically, RDP
    is a bound for each order. Unit and sensitivity are the plan's: the mechanism's noise must have been scaled by the
    sum's sensitivity under the same adjacency.
    """
    return compose((releases,), delta, accountant=accountant, grid=grid)


def compose(many: Sequence[Releases], delta: float, *, accountant: str = "pld", grid: float = FINE_GRID) -> float:
    """The epsilon of several plans' releases together, on one data set, at one delta.

    **Guarantee.** Composition of plans that were fixed, with their number, before the first release; what a release
    computes may depend on earlier ones. Plans that were chosen after seeing earlier releases need an odometer or a
    filter (Rogers et al. 2016), which this is not.
    """
    fraction("delta", delta, remedy="give a number such as 1e-5, well below 1/N")
    one_of("accountant", accountant, ACCOUNTANTS)
    if not many:
        raise SfumatoError("there is nothing to compose: no releases given", "give at least one")
    for item in many:
        within_bounds(item)
    return _composed(tuple(many), delta, accountant, grid)


def merge_full_batch(many: Sequence[Releases]) -> list[Releases]:
    """The same releases with all full-batch Gaussians in one, which is exact."""
    rest = [item for item in many if not _is_exact(item)]
    whole = [item for item in many if _is_exact(item)]
    if len(whole) < 2:
        return list(many)
    return [replace(whole[0], mechanism=Gaussian(noise_multiplier=_as_one(whole)), steps=1), *rest]


def _is_exact(item: Releases) -> bool:
    return isinstance(item.sampling, FullBatch) and isinstance(item.mechanism, Gaussian)


def _as_one(many: Sequence[Releases]) -> float:
    """T_i full-batch Gaussians of multiplier s_i are one Gaussian with 1/s^2 = sum_i T_i / s_i^2."""
    return 1 / math.sqrt(sum(item.steps / item.mechanism.noise_multiplier**2 for item in many))


def best_of(releases: Releases, draws: Draws, delta: float) -> float:
    """The epsilon of the best of K independent runs, each making these releases, when nothing else is released.

    With (lambda, eps(lambda)) the Renyi curve of one run, the best of K satisfies eps' at lambda > 1, where

        truncated negative binomial (theorem 2):
            eps' = eps(lambda) + log E[K] / (lambda - 1)
                   + (1 + eta) min over l >= 1 of ((1 - 1 / l) eps(l) + log(1 / gamma) / l)
        Poisson (theorem 6):
            eps' = eps(lambda) + log E[K] / (lambda - 1) + E[K] d, where one run is (log(1 + 1 / (lambda - 1)), d)-DP.

    **Guarantee.** An upper bound for the row's adjacency, if K is drawn by `draws` independently of everything, the
    runs are independent given the data and all of one law, and they are compared by a total order on what a run gives
    out (Papernot and Steinke 2021). Runs that are equal in it may be told apart by anything but the data, such as their
    number. It holds for each pair of neighbouring data sets by itself. The Poisson law needs E[K] >= 1, which `Draws`
    sees to: below, log E[K] would promise a divergence under zero.
    """
    fraction("delta", delta, remedy="give a number such as 1e-5, well below 1/N")
    within_bounds(releases)
    return _best_of(releases, draws, delta)


def within_bounds(releases: Releases) -> None:
    """Beyond these the accountants' arithmetic ends: they would answer 0."""
    sigma = releases.mechanism.noise_multiplier
    if not LEAST_NOISE <= sigma <= MOST_NOISE:
        raise SfumatoError(
            f"noise_multiplier must lie between {LEAST_NOISE:g} and {MOST_NOISE:g}, got {sigma!r}",
            "give the noise's standard deviation over the clipping norm",
        )


@functools.lru_cache(maxsize=256)
def _best_of(releases: Releases, draws: Draws, delta: float) -> float:
    import dp_accounting
    import numpy as np
    from dp_accounting import rdp

    run = dp_accounting.SelfComposedDpEvent(_event(releases), releases.steps)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = rdp.RdpAccountant(SELECTION_ORDERS, neighboring_relation=relation)
    with _quiet_absl():
        if draws.shape >= 0:
            accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(run, draws.mean, draws.shape))
            return float(accountant.get_epsilon(delta))
        curve = accountant.compose(run)._rdp  # dp-accounting's own theorem 2 begins at shape 0
        selected = _theorem_2(np.asarray(SELECTION_ORDERS), curve, draws)
        return float(rdp.compute_epsilon(SELECTION_ORDERS, selected, delta)[0])


def _theorem_2(orders: Any, curve: Any, draws: Draws) -> Any:
    """The Renyi curve of the best of K, K truncated negative binomial; `orders` and `curve` of shape (orders,)."""
    choice = ((1 - 1 / orders) * curve + draws.log_inverse_gamma / orders).min()
    return curve + math.log(draws.mean) / (orders - 1) + (1 + draws.shape) * choice


@functools.lru_cache(maxsize=256)
def _composed(many: tuple[Releases, ...], delta: float, accountant: str, grid: float) -> float:
    """A pure function of frozen data, asked for again by every part of a run that prints epsilon."""
    if accountant == "rdp":
        return _rdp(many, delta)
    if all(map(_is_exact, many)):
        return _exact_gaussian(many, delta)
    return _pld(many, delta, grid)


def _exact_gaussian(many: Sequence[Releases], delta: float) -> float:
    import dp_accounting

    return float(dp_accounting.get_epsilon_gaussian(_as_one(many), delta))


def _pld(many: Sequence[Releases], delta: float, grid: float) -> float:
    import numpy as np

    width = grid * min(_coarsening(item) for item in many)
    total: Any = None
    for item in many:
        one = _one_step(item.mechanism.noise_multiplier, item.sampling.probability, width)
        part = one if item.steps == 1 else one.self_compose(item.steps)
        total = part if total is None else total.compose(part)
    with np.errstate(over="ignore"):  # hardly any noise: an epsilon beyond all numbers is infinite
        return float(total.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=8)
def _one_step(sigma: float, probability: float, width: float) -> Any:
    """The privacy loss distribution of one step: slow to build, so kept for other numbers of steps."""
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.privacy_accountant import NeighboringRelation

    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        sampling_prob=probability,
        value_discretization_interval=width,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _coarsening(item: Releases) -> float:
    """The grid's width over its nominal one: finer where a step's losses are tiny, wider where they spread far.

    Either way one step's losses fall on between about a hundred and a million points.
    """
    sigma = item.mechanism.noise_multiplier
    typical = item.sampling.probability / sigma
    spread = 1 / (2 * sigma**2) + 10 / sigma
    return max(min(1.0, typical / 0.003), spread / 10, math.sqrt(item.steps) * typical / 20)


def _rdp(many: Sequence[Releases], delta: float) -> float:
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    with _quiet_absl():
        for item in many:
            accountant.compose(_event(item), item.steps)
        return float(accountant.get_epsilon(delta))


def _event(item: Releases) -> Any:
    """dp-accounting's event of one step."""
    import dp_accounting

    one = dp_accounting.GaussianDpEvent(item.mechanism.noise_multiplier)
    if isinstance(item.sampling, Poisson):
        return dp_accounting.PoissonSampledDpEvent(item.sampling.probability, one)
    return one


@contextlib.contextmanager
def _quiet_absl() -> Iterator[None]:
    """dp-accounting logs each RDP order that it leaves out; leaving one out only makes the bound larger."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
