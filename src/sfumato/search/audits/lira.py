"""The likelihood-ratio attack (LiRA): was this record among those that a model was trained on?

Carlini et al. 2022 (arXiv 2112.03570). Of each record the attack looks at phi = log(p / (1 - p)), p what the model says
of the record's own class, and asks how likely the target's phi is among models trained with the record and among models
trained without it, each a Gaussian: *online*, with both; *offline*, with the models without it alone. How often it is
right at a few false alarms is set beside what the promise allows any attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from sfumato._checks import SfumatoError, fraction, one_of
from sfumato.audit import at_least, at_most
from sfumato.evaluation.diagnostic import auc
from sfumato.privacy import PrivacyPlan, detections

VARIANTS = ("online", "offline")
RATES = (0.001, 0.01)
"""False positives at which true positives are given."""
OWN_VARIANCE = 64
"""From so many shadow models on each record has a variance of its own; of fewer, all records share one."""
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class AtRate:
    """How often the attack is right at one rate of false alarms.

    Args:
        false_positives: the rate aimed at.
        alarms: how many of the records that were not trained on lie above the threshold: the most that keep to it.
        false_positives_at_most: the rate behind it, but for 2.5%.
        true_positives: the share of the training records above the threshold.
        true_positives_at_least, true_positives_at_most: its interval, 95%.
        allowed: the most that the promise allows any attack at the rate aimed at; None without a promise.
        allowed_at_most: the same at `false_positives_at_most`.
    """

    false_positives: float
    alarms: int
    false_positives_at_most: float
    true_positives: float
    true_positives_at_least: float
    true_positives_at_most: float
    allowed: float | None
    allowed_at_most: float | None

    @property
    def exceeds(self) -> bool:
        """Whether the interval lies above what the promise allows at the most false alarms there may be."""
        return self.allowed_at_most is not None and self.true_positives_at_least > self.allowed_at_most


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What the attack found out: an estimate, private to the owner of the records.

    Args:
        variant: online or offline, as Carlini et al. 2022 call them.
        shadows: how many models were trained to attack by.
        members, others: how many records of the training part, and of those none was trained on, were asked about.
        rates: at each rate of false alarms.
        auc: the area under the ROC curve, with its 95% interval.
        curve: (false-positive rate, true-positive rate), at most 200 points, rising.
    """

    variant: str
    shadows: int
    members: int
    others: int
    rates: tuple[AtRate, ...]
    auc: tuple[float, float, float]
    curve: list[tuple[float, float]]

    @property
    def exceeds(self) -> bool:
        """Whether it is right more often than the promise allows, at some rate, beyond the intervals."""
        return any(rate.exceeds for rate in self.rates)

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        found = "; ".join(_words(rate) for rate in self.rates)
        return (
            f"With {self.shadows} shadow models ({self.variant} attack) a stranger who has the model file, and knows "
            f"all other training records, recognises {found}. An estimate by this attack, of {self.members} training "
            f"records and {self.others} others, and private: it was measured on them"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **vars(self),
            "rates": [asdict(rate) | {"exceeds": rate.exceeds} for rate in self.rates],
            "exceeds": self.exceeds,
            "sentence": self.sentence,
        }


def attack(
    target: np.ndarray,
    shadows: np.ndarray,
    trained_with: np.ndarray,
    members: np.ndarray,
    *,
    promise: PrivacyPlan | None,
    variant: str = "online",
    rates: Sequence[float] = RATES,
) -> Attack:
    """Attack a model by the phi of records under it and under shadow models.

    Args:
        target: float (n,), phi of each record under the attacked model.
        shadows: float (S, n), the same under each shadow model.
        trained_with: bool (S, n), which shadow model was trained with which record.
        members: bool (n,), which records the attacked model was trained on; known to the owner alone.
        promise: what the attacked model promises.
        variant: see `VARIANTS`.
        rates: of false positives.

    Errors: `SfumatoError` where all records are members or none is, where too few shadow models were trained with or
    without one, and for phi that are no numbers.
    """
    one_of("variant", variant, VARIANTS)
    for rate in rates:
        fraction("rates", rate, remedy="give rates such as 0.001")
    if not (np.isfinite(target).all() and np.isfinite(shadows).all()):
        raise SfumatoError("some scores are no numbers: a model has diverged", "attack one that was trained well")
    if members.all() or not members.any():
        raise SfumatoError(
            f"{int(members.sum())} of {len(members)} records were trained on", "give records of both kinds"
        )
    scores = online(target, shadows, trained_with) if variant == "online" else offline(target, shadows, trained_with)
    own, others = scores[members], np.sort(scores[~members])[::-1]
    found = tuple(_at(rate, own, others, promise) for rate in rates)
    true, false = (np.searchsorted(np.sort(part), others, "right") for part in (own, others))
    places = np.unique(np.linspace(0, len(others) - 1, min(200, len(others))).round().astype(int))
    points = [(float(1 - false[at] / len(others)), float(1 - true[at] / len(own))) for at in places]
    area: tuple[float, float, float] = auc(own, others)
    return Attack(
        variant=variant,
        shadows=len(shadows),
        members=len(own),
        others=len(others),
        rates=found,
        auc=area,
        curve=[*points, (1.0, 1.0)],
    )


def online(target: np.ndarray, shadows: np.ndarray, trained_with: np.ndarray) -> np.ndarray:
    """log N(phi; mean_in, var_in) - log N(phi; mean_out, var_out) of each record: Carlini et al. 2022, algorithm 1."""
    inside, outside = fitted(shadows, trained_with), fitted(shadows, ~trained_with)
    return norm.logpdf(target, *inside) - norm.logpdf(target, *outside)


def offline(target: np.ndarray, shadows: np.ndarray, trained_with: np.ndarray) -> np.ndarray:
    """How far phi lies above those of models without the record, in standard deviations: a one-sided test.

    Carlini et al. 2022, equation 4, Pr[Z > phi] for Z of those models, in an order that does not round to 0.
    """
    mean, deviation = fitted(shadows, ~trained_with)
    return (target - mean) / deviation


def fitted(shadows: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (n,) of each record's phi under the shadow models (S, n) that are marked.

    With fewer than `OWN_VARIANCE` shadow models one variance for all records, as Carlini et al. 2022, section VI-B.
    """
    counts = which.sum(axis=0)
    if counts.min() < 2:
        raise SfumatoError(
            f"{len(shadows)} shadow models are too few: each record needs 2 that were trained with it, and 2 without",
            "train more of them, such as 64",
        )
    chosen = np.where(which, shadows, 0.0)
    mean = chosen.sum(axis=0) / counts
    squares = np.where(which, (shadows - mean) ** 2, 0.0).sum(axis=0)
    if len(shadows) < OWN_VARIANCE:
        variance = np.full(len(mean), squares.sum() / (counts - 1).sum())
    else:
        variance = squares / (counts - 1)
    return mean, np.sqrt(np.maximum(variance, 1e-12))


def phi(logits: Tensor, labels: Tensor, loss: str) -> np.ndarray:
    """log(p / (1 - p)) of each record's own class, float64 (..., n), from logits (..., n, K) and labels (n,).

    Of "softmax" the logit of the class less the log of the sum of exponentials of all others, which is the same and
    keeps its digits where p is all but 1; of "sigmoid" the logit of the class.
    """
    logits = logits.double()
    place = labels.expand(logits.shape[:-1]).unsqueeze(-1)
    own = logits.gather(-1, place).squeeze(-1)
    if loss == "softmax":
        own = own - logits.scatter(-1, place, -torch.inf).logsumexp(-1)
    return own.numpy()


def _at(rate: float, own: np.ndarray, others: np.ndarray, promise: PrivacyPlan | None) -> AtRate:
    """At one rate, by the threshold that as many of the others exceed as keep to it; `others` fall.

    The share of all possible others above the (k + 1)th score of n has the law Beta(k + 1, n - k), whatever theirs is:
    so Clopper and Pearson's bound for k of n holds for a threshold that was chosen on these very records.
    """
    alarms, tail = int(rate * len(others) + 1e-9), (1 - CONFIDENCE) / 2
    hits = int((own > others[alarms]).sum())
    most = at_most(alarms, len(others), tail)
    allowed = (None, None) if promise is None else detections(promise, [rate, min(most, 1 - 1e-9)])
    return AtRate(
        false_positives=rate,
        alarms=alarms,
        false_positives_at_most=most,
        true_positives=hits / len(own),
        true_positives_at_least=at_least(hits, len(own), tail),
        true_positives_at_most=at_most(hits, len(own), tail),
        allowed=allowed[0],
        allowed_at_most=allowed[1],
    )


def _words(rate: AtRate) -> str:
    """Of one rate."""
    allowed = "" if rate.allowed is None else f", where the promise allows {rate.allowed:.2%}"
    return (
        f"{rate.true_positives:.2%} of the training records ({rate.true_positives_at_least:.2%} to "
        f"{rate.true_positives_at_most:.2%}) at {rate.false_positives:.1%} false alarms{allowed}"
    )
