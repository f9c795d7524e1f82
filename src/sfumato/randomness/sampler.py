"""Draws the participants of a step by the plan's rule. One function for each rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.privacy import (
    CyclicPoisson,
    DriftingPoisson,
    FixedOrder,
    FullBatch,
    Participation,
    Poisson,
    PrivacyPlan,
    TruncatedPoisson,
)
from sfumato.randomness.keys import RunKey

Draw = Callable[[int], np.ndarray]
"""Given a step, returns its participants: ascending record numbers, int64."""


class _Records(NamedTuple):
    """The number of records, and the record data that a rule may read."""

    number: int
    groups: object


def _uniforms(key: RunKey, step: int, records: _Records) -> np.ndarray:
    """A uniform number in [0, 1) for each record."""
    return key.for_step(step).generator("sampling", step).random(records.number)


def _poisson(rule: Poisson, plan: PrivacyPlan, key: RunKey, records: _Records) -> Draw:
    return lambda step: np.flatnonzero(_uniforms(key, step, records) < plan.sampling_probability)


def _full_batch(rule: FullBatch, plan: PrivacyPlan, key: RunKey, records: _Records) -> Draw:
    return lambda step: np.arange(records.number)


def _truncated_poisson(rule: TruncatedPoisson, plan: PrivacyPlan, key: RunKey, records: _Records) -> Draw:
    if records.number != plan.population:
        raise SfumatoError(
            f"truncated sampling takes N as public, but of {plan.population} declared examples there are "
            f"{records.number}",
            f"declare {records.number} examples, or use Poisson sampling without truncation",
        )
    poisson = _poisson(rule, plan, key, records)

    def draw(step: int) -> np.ndarray:
        drawn = poisson(step)
        if len(drawn) <= rule.largest:
            return drawn
        generator = key.for_step(step).generator("truncation", step)
        return np.sort(generator.choice(drawn, rule.largest, replace=False, shuffle=False))

    return draw


def _cyclic_poisson(rule: CyclicPoisson, plan: PrivacyPlan, key: RunKey, records: _Records) -> Draw:
    members = _members(key.generator("groups", 0).integers(rule.groups, size=records.number))
    probability = rule.turn_probability(plan.population)

    def draw(step: int) -> np.ndarray:
        group = members(step % rule.groups)
        return group[key.for_step(step).generator("sampling", step).random(len(group)) < probability]

    return draw


def _drifting_poisson(rule: DriftingPoisson, plan: PrivacyPlan, key: RunKey, records: _Records) -> Draw:
    in_second = np.array(records.groups)
    if in_second.shape != (records.number,) or in_second.dtype != bool:
        raise SfumatoError(
            f"`groups` must be {records.number} truth values, got {in_second.dtype} of shape {in_second.shape}",
            "give `groups`, whether each record is in the drift's second group, as bool",
        )

    def draw(step: int) -> np.ndarray:
        first, second = rule.probabilities(step)
        return np.flatnonzero(_uniforms(key, step, records) < np.where(in_second, second, first))

    return draw


def _fixed_order(rule: FixedOrder, plan: PrivacyPlan, key: RunKey, records: _Records) -> Draw:
    bins = rule.bins(plan.population)
    if rule.assignment == "position":
        members = _members(np.arange(records.number) // rule.batch_size)
    else:
        members = _members(key.generator("bins", 0).integers(bins, size=records.number))
    return lambda step: members(step % bins)


DRAWS: dict[type[Participation], Callable[[Any, PrivacyPlan, RunKey, _Records], Draw]] = {
    Poisson: _poisson,
    FullBatch: _full_batch,
    FixedOrder: _fixed_order,
    CyclicPoisson: _cyclic_poisson,
    TruncatedPoisson: _truncated_poisson,
    DriftingPoisson: _drifting_poisson,
}


class Sampler:
    """Draws index sets by a plan's participation rule.

    Args:
        plan: the plan with the rule and the population.
        key: the run key.
        records: the actual number of records. Each has the plan's probability, whatever N was declared.
        groups: whether each record is in group 1, by its own group or class, bool (records,). Needed by
            `DriftingPoisson` and not read by any other rule.

    **Guarantee.** The draw is a function of (key, step), so a replayed step has the same participants. A record's own
    participation depends only on the key, its number and, with drifting participation, its own group; never on another
    record, except for the truncation of `TruncatedPoisson`. Batches have random sizes; an empty one is returned like
    any other.

    - `Poisson`: each record's coin in each step is independent of all other records and steps, and comes up with the
      plan's probability (to one part in 2^53).
    - `TruncatedPoisson`: the same; if more than `largest` come up, a uniformly random subset of that size is kept,
      independently of the coins.
    - `CyclicPoisson`: each record's group is an independent uniform draw for its number. Its coin in each step of that
      group's turn is independent of everything else and comes up with `turn_probability`.
    - `DriftingPoisson`: each record's coin in each step is independent of all other records and steps, and comes up
      with its group's probability in that step.
    - `FixedOrder`, random: each record's bin is an independent uniform draw for its number, drawn once for all epochs,
      so its participations are exactly `bins` steps apart. By position: bin i holds the records i B to (i + 1) B, and
      those beyond the last bin take no part.

    Bins and groups are as secret as the key. They are drawn from it again whenever they are needed.

    >>> plan = PrivacyPlan.calibrate(examples=10, batch_size=3, steps=9, noise_multiplier=1.0, delta=1e-5)
    >>> sampler = Sampler(plan, RunKey.from_seed(0), records=10)
    >>> bool((sampler.draw(7) == sampler.draw(7)).all())
    True
    """

    def __init__(self, plan: PrivacyPlan, key: RunKey, *, records: int, groups: object = None):
        self.plan = plan
        self.records = records
        self._draw = DRAWS[type(plan.participation)](plan.participation, plan, key, _Records(records, groups))

    def draw(self, step: int) -> np.ndarray:
        """The participants of a step: ascending record indices, int64, of any number from none to all."""
        return self._draw(step)


def _members(places: np.ndarray) -> Draw:
    """Given a bin or group, returns its records."""
    order = np.argsort(places, kind="stable")
    ends = places[order]

    def at(place: int) -> np.ndarray:
        start, end = np.searchsorted(ends, (place, place + 1))
        return order[start:end].copy()

    return at
