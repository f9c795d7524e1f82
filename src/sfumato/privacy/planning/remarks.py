"""A plan as plain data, and notes on it before it is run, such as that little can be learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from sfumato.privacy.clipping import QuantileClipping
from sfumato.privacy.participation import FixedOrder
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.unit import User

ENOUGH_SIGNAL = 10.0
"""Below this `signal_per_class` most trials learnt less than half of what can be learnt: docs/models.md."""


class ExpectedGain(NamedTuple):
    """The share of the non-private gain over chance that comparable runs reached: lowest, median and highest."""

    least_signal: float
    trials: int
    lowest: float
    median: float
    highest: float


MEASURED_GAINS = (
    ExpectedGain(100, 8, 0.66, 0.88, 0.99),
    ExpectedGain(20, 16, 0.37, 0.72, 0.95),
    ExpectedGain(10, 13, 0.19, 0.63, 0.98),
    ExpectedGain(5, 11, 0.10, 0.47, 0.64),
    ExpectedGain(0, 15, 0.03, 0.10, 0.36),
)
"""Measured with the default model (benchmarks/results/little-data.json); see docs/models.md."""
HIDDEN = MEASURED_GAINS[-2].least_signal
"""Below this signal over the noise, trials learnt a tenth of what is learnt without privacy (median)."""
SHOWN = 12
"""Largest number of classes that are all named."""
EXAMPLE_ACCURACY = 0.9
"""Accuracy without privacy in the example of a forecast."""
LEAST_SENSIBLE_NOISE = 0.05


def figures(plan: PrivacyPlan) -> dict[str, Any]:
    """The plan's numbers as plain data, including derived ones. Its cost is in `costs`."""
    of_users: dict[str, Any] = {}
    if isinstance(plan.unit, User):
        kept = "all" if plan.unit.at_most is None else plan.unit.at_most
        of_users = {"users": plan.users, "per_user": kept}
        if not plan.unit.clients:
            of_users["per_step"] = "all" if plan.unit.per_step is None else plan.unit.per_step
        if plan.unit.grouped:
            of_users["fixed_groups"] = plan.population
    return {
        "unit": plan.unit.name,
        **of_users,
        "adjacency": plan.adjacency,
        **({} if of_users else {"examples": plan.population}),
        "participation": plan.participation.name,
        **plan.participation.facts(plan.population),
        "steps": plan.steps,
        "expected_epochs": plan.expected_epochs,
        "mechanism": plan.mechanism.name,
        "noise_multiplier": plan.noise_multiplier,
        **({} if plan.mechanism.independent else {"copies_of_the_model": plan.mechanism.buffers(plan.steps)}),
        "max_norm": plan.max_norm,
        **(
            {"quantile": plan.clipping.quantile, "count_noise": plan.clipping.count_noise}
            if isinstance(plan.clipping, QuantileClipping)
            else {}
        ),
        "delta": plan.delta,
        "fingerprint": plan.fingerprint,
    }


def costs(plan: PrivacyPlan) -> dict[str, Any]:
    """Epsilon of the plan with its accountant and theorem, and epsilon by Renyi DP for comparison with papers."""
    return {
        "epsilon": plan.epsilon(),
        "epsilon_rdp": plan.epsilon_rdp,
        "accountant": plan.theorem.tight,
        "theorem": plan.theorem.name,
    }


def notes(plan: PrivacyPlan, classes: int) -> list[str]:
    """Notes on what looks wrong with a plan for this number of classes."""
    return [*filter(None, (large_delta_note(plan), unused_examples_note(plan), weak_signal_note(plan, classes)))]


def large_delta_note(plan: PrivacyPlan) -> str | None:
    """A note if delta is so large that a record may be published verbatim; None otherwise."""
    if plan.delta <= 1 / plan.units:
        return None
    if plan.users is not None:
        return (
            f"delta {plan.delta!r} is above 1 over {plan.users} users, a chance at which the records of some may be "
            "published"
        )
    return f"delta {plan.delta!r} is above 1/N, a chance at which some records may be published"


def unused_examples_note(plan: PrivacyPlan) -> str | None:
    """A note if the steps end before every bin of a fixed order took part; None otherwise."""
    rule = plan.participation
    bins = rule.bins(plan.population) if isinstance(rule, FixedOrder) else 0
    if plan.steps >= bins:
        return None
    return f"{plan.steps} of {bins} bins take part: the examples of the other {bins - plan.steps} are not used"


def signal_per_class(plan: PrivacyPlan, classes: int) -> float:
    """B T / (sigma K F): the signal of one of K classes over the noise in the sum of all steps.

    F is the standard deviation of each coordinate of that noise, in units of sigma C; it is sqrt(T) if the steps are
    independent. An example's clipped gradient has norm at most C and mostly concerns its own class. How much of it
    helps to tell classes apart depends on the features, so this only compares plans. A user who is sampled as a whole
    counts as one vector, as if it concerned one class.
    """
    return plan.expected_batch_size * plan.steps / (classes * _noise_in_the_sum(plan))


def _noise_in_the_sum(plan: PrivacyPlan) -> float:
    """Standard deviation of each coordinate's noise in the sum of all steps, over C."""
    independent = plan.mechanism.independent
    return plan.noise_multiplier * (math.sqrt(plan.steps) if independent else plan.noise_in_weights().final)


def drowned_updates_note(plan: PrivacyPlan, *, clients: int, parameters: int) -> str | None:
    """A note if the noise of all rounds is longer than all clients' updates together can be; None otherwise.

    m clients in T rounds add up to at most m T C, if all updates have one direction. The norm of the noise in d
    parameters is sqrt(d) times its standard deviation in each.
    """
    noise = _noise_in_the_sum(plan) * math.sqrt(parameters) / (clients * plan.steps)
    if noise < 1:
        return None
    rounds = f"in {plan.steps} rounds of {clients} client{'s' if clients > 1 else ''}"
    return (
        f"{rounds} the noise in {parameters:,} parameters is {float(f'{noise:.2g}'):,.6g} times as long as all updates "
        "can be together, so next to nothing can be learnt; what helps: more users, more clients in a round, a larger "
        "epsilon, or pretrained weights of which less is trained"
    )


def expected_gain(signal: float) -> ExpectedGain:
    """The runs measured at comparable `signal_per_class`.

    >>> expected_gain(46.0).median, expected_gain(1.1).median
    (0.72, 0.1)
    """
    return next(gain for gain in MEASURED_GAINS if signal >= gain.least_signal)


def forecast(plan: PrivacyPlan, classes: int, rarest: float | None = None) -> str:
    """The accuracy that comparable runs of the default model reached, from public facts alone.

    Args:
        rarest: declared share of the rarest class, for which the forecast then is; None for equally frequent classes.
    """
    runs = expected_gain(signal_per_class(plan, classes) * (1 if rarest is None else rarest * classes))
    low, high = ((1 - share) / classes + share * EXAMPLE_ACCURACY for share in (runs.lowest, runs.highest))
    of = "accuracy" if rarest is None else f"of the rarest class (declared share {rarest:g}) recognised"
    return f"{100 * low:.0f} to {high:.0%} {of} if the same model reaches {EXAMPLE_ACCURACY:.0%} without privacy"


def unlearnt(plan: PrivacyPlan, counts: Mapping[str, int]) -> dict[str, int]:
    """The classes that the plan's noise hides, with their numbers of training records. **Private**, for the owner.

    Args:
        counts: the number of training records of each class.

    >>> plan = PrivacyPlan.calibrate(examples=1438, batch_size=1438, steps=60, epsilon=3.0, delta=1e-5)
    >>> unlearnt(plan, {"A": 1428, "B": 7, "J": 3})
    {'J': 3}
    """
    of_all = signal_per_class(plan, 1) / max(1, sum(counts.values()))
    return {name: count for name, count in counts.items() if of_all * count < HIDDEN}


def counted(counts: Mapping[str, int], what: str = "image") -> str:
    """Classes with their numbers of records, in words.

    >>> counted({"I": 1, "J": 3})
    'I (1 image), J (3 images)'
    """
    named = [f"{name} ({count} {what}{'' if count == 1 else 's'})" for name, count in counts.items()]
    more = [] if len(named) <= SHOWN else [f"and {len(named) - SHOWN + 1} more"]
    return ", ".join([*named[: SHOWN - len(more)], *more])


def weak_signal_note(plan: PrivacyPlan, classes: int) -> str | None:
    """A note if little can be learnt with the plan, and what would help; None otherwise."""
    signal = signal_per_class(plan, classes)
    if signal >= ENOUGH_SIGNAL:
        return None
    short, what = ENOUGH_SIGNAL / signal, "image" if plan.users is None else "person"
    helps = [*(["fewer classes"] if classes > 2 else []), "features of a public network (sfumato features)"]
    if plan.sampling_probability == 1:
        helps.insert(0, f"some {math.ceil(plan.population / classes * short)} {what}s of each class")
    if plan.noise_multiplier / short > LEAST_SENSIBLE_NOISE:
        enough = plan.with_noise(plan.noise_multiplier / short).epsilon()
        helps.insert(0, f"epsilon {enough:.2g} in place of {plan.epsilon():.2g}")
    count = f"{plan.population / classes:.0f}"
    return (
        f"about {count} {what}{'' if count == '1' else 's'} for each of {classes} classes are few for this noise: "
        "comparable runs learnt less than half of what they learn without privacy. What helps: "
        f"{', or '.join(filter(None, (', '.join(helps[:-1]), helps[-1])))}"
    )
