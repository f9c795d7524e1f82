"""The likelihood-ratio attack (LiRA): membership inference with shadow models.

Carlini et al. 2022 (arXiv 2112.03570). For each record the attack computes phi = log(p / (1 - p)), with p the model's
probability of the record's class. It compares the target's phi with Gaussians fitted to the phi of shadow models
trained with and without the record (*online*), or only of those without it (*offline*). The true-positive rate at low
false-positive rates is compared with the largest rate that the guarantee allows any attack.

The owner runs the attack on a finished run and their own records. They know the members (the training part) and the
non-members (the test part); the attack does not. The result is measured on private records without noise, so it is for
the owner alone. By default the attacker is strong, as in the guarantee: they know all training records except the
attacked ones, and each shadow model is trained with a random half of these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn

from sfumato._checks import SfumatoError, fraction, one_of, positive_integer
from sfumato.audit import at_least, at_most
from sfumato.data import CachedRecords, Part, Preparation, Source
from sfumato.evaluation import accuracy
from sfumato.evaluation.diagnostic import auc
from sfumato.experiment import users
from sfumato.experiment.settings import Performance, Settings
from sfumato.models.losses import NEXT_WORD, is_exclusive
from sfumato.observers.progress import NoProgress, Progress, default_progress
from sfumato.privacy import PrivacyPlan, true_positive_rates
from sfumato.privacy.statements.display import percent_up
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.loaded import Loaded, load
from sfumato.training.job import PrivateJob, is_public
from sfumato.training.loop import take_steps
from sfumato.training.preparation.from_record import source_of
from sfumato.training.preparation.prepare import own_threads, prepare
from sfumato.training.preparation.start import RunOptions

VARIANTS = ("online", "offline")
RATES = (0.001, 0.01)
"""The false-positive rates at which true-positive rates are reported."""
OWN_VARIANCE = 64
"""The least number of shadow models for fitting a variance to each record. With fewer, all records share one."""
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class RateResult:
    """The attack's success at one false-positive rate.

    Args:
        false_positives: the target rate.
        alarms: the number of non-members above the threshold: the largest within the target rate.
        false_positives_at_most: an upper bound of the true false-positive rate, with confidence 97.5%.
        true_positives: the share of the members above the threshold.
        true_positives_at_least, true_positives_at_most: its 95% interval.
        allowed: the largest true-positive rate that the guarantee allows any attack at the target rate; None without a
            guarantee.
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
        """Whether the interval lies above the rate that the guarantee allows at `false_positives_at_most`."""
        return self.allowed_at_most is not None and self.true_positives_at_least > self.allowed_at_most


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """The result of the attack: an estimate, private to the owner of the records.

    Args:
        variant: online or offline, as Carlini et al. 2022 call them.
        shadows: the number of shadow models.
        members, others: the number of attacked records of the training part, and of others.
        rates: the success at each false-positive rate.
        auc: the area under the ROC curve, with its 95% interval.
        curve: (false-positive rate, true-positive rate), at most 200 points, ascending.
    """

    variant: str
    shadows: int
    members: int
    others: int
    rates: tuple[RateResult, ...]
    auc: tuple[float, float, float]
    curve: list[tuple[float, float]]

    @property
    def exceeds(self) -> bool:
        """Whether, at some rate, the attack succeeds more often than the guarantee allows, beyond the intervals."""
        return any(rate.exceeds for rate in self.rates)

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        successes = "; ".join(_words(rate) for rate in self.rates)
        return (
            f"With {self.shadows} shadow models ({self.variant} attack) a stranger who has the model file, and knows "
            f"all other training records, recognises {successes}. An estimate by this attack, of {self.members} "
            f"training records and {self.others} others, and private: it was measured on them"
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        return {
            **vars(self),
            "rates": [asdict(rate) | {"exceeds": rate.exceeds} for rate in self.rates],
            "exceeds": self.exceeds,
            "sentence": self.sentence,
        }


def attack(
    target: np.ndarray,
    shadows: np.ndarray,
    included: np.ndarray,
    members: np.ndarray,
    *,
    plan: PrivacyPlan | None,
    variant: str = "online",
    rates: Sequence[float] = RATES,
) -> AttackResult:
    """Attack a model with the phi of records under the model and under shadow models.

    Args:
        target: float (n,), phi of each record under the attacked model.
        shadows: float (S, n), phi under each shadow model.
        included: bool (S, n), whether each shadow model was trained with each record.
        members: bool (n,), the records that the attacked model was trained on; known to the owner alone.
        plan: the attacked model's plan; None without a guarantee.
        variant: see `VARIANTS`.
        rates: the false-positive rates.

    Errors: `SfumatoError` if all records are members or none is, if too few shadow models were trained with or without
    a record, and for phi that are not finite.
    """
    one_of(VARIANTS, variant=variant)
    for rate in rates:
        fraction(rates=rate, remedy="give rates such as 0.001")
    if not (np.isfinite(target).all() and np.isfinite(shadows).all()):
        raise SfumatoError("some scores are not finite: a model has diverged", "attack a model that was trained well")
    if members.all() or not members.any():
        raise SfumatoError(
            f"{int(members.sum())} of {len(members)} records were trained on", "give records of both kinds"
        )
    scores = online(target, shadows, included) if variant == "online" else offline(target, shadows, included)
    member_scores, other_scores = scores[members], np.sort(scores[~members])[::-1]
    results = tuple(_result_at_rate(rate, member_scores, other_scores, plan) for rate in rates)
    true, false = (np.searchsorted(np.sort(part), other_scores, "right") for part in (member_scores, other_scores))
    places = np.unique(np.linspace(0, len(other_scores) - 1, min(200, len(other_scores))).round().astype(int))
    points = [(float(1 - false[at] / len(other_scores)), float(1 - true[at] / len(member_scores))) for at in places]
    area: tuple[float, float, float] = auc(member_scores, other_scores)
    return AttackResult(
        variant=variant,
        shadows=len(shadows),
        members=len(member_scores),
        others=len(other_scores),
        rates=results,
        auc=area,
        curve=[*points, (1.0, 1.0)],
    )


def online(target: np.ndarray, shadows: np.ndarray, included: np.ndarray) -> np.ndarray:
    """log N(phi; mean_in, var_in) - log N(phi; mean_out, var_out) for each record: Carlini et al. 2022, algorithm 1."""
    inside, outside = fit_gaussians(shadows, included), fit_gaussians(shadows, ~included)
    return norm.logpdf(target, *inside) - norm.logpdf(target, *outside)


def offline(target: np.ndarray, shadows: np.ndarray, included: np.ndarray) -> np.ndarray:
    """The standardised distance of phi above the models without the record: a one-sided test.

    It orders records like Pr[Z > phi] in Carlini et al. 2022, equation 4, but does not round to 0.
    """
    mean, deviation = fit_gaussians(shadows, ~included)
    return (target - mean) / deviation


def fit_gaussians(shadows: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (n,) of each record's phi under the shadow models selected by `which`, bool (S, n).

    With fewer than `OWN_VARIANCE` shadow models all records share one variance, as in Carlini et al. 2022, section
    VI-B.
    """
    counts = which.sum(axis=0)
    if counts.min() < 2:
        raise SfumatoError(
            f"{len(shadows)} shadow models are too few: each record needs 2 that were trained with it, and 2 without",
            "train more shadow models, such as 64",
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
    """log(p / (1 - p)) of each record's class, float64 (..., n), from logits (..., n, K) and labels (n,).

    For "softmax" it is the logit of the class minus the logsumexp of the others, which is the same, but accurate for p
    near 1. For "sigmoid" it is the logit of the class.
    """
    logits = logits.double()
    place = labels.expand(logits.shape[:-1]).unsqueeze(-1)
    log_odds = logits.gather(-1, place).squeeze(-1)
    if loss == "softmax":
        log_odds = log_odds - logits.scatter(-1, place, -torch.inf).logsumexp(-1)
    return log_odds.numpy()


def _result_at_rate(rate: float, members: np.ndarray, others: np.ndarray, plan: PrivacyPlan | None) -> RateResult:
    """The success at one rate, with the threshold that the most non-members within the rate exceed. `others` descend.

    The share of all possible non-members above the (k + 1)th of n scores has the distribution Beta(k + 1, n - k),
    whatever the distribution of the scores. So Clopper and Pearson's bound for k of n holds although the threshold was
    chosen on the same records.
    """
    alarms, tail = int(rate * len(others) + 1e-9), (1 - CONFIDENCE) / 2
    hits = int((members > others[alarms]).sum())
    most = at_most(alarms, len(others), tail)
    allowed = (None, None) if plan is None else true_positive_rates(plan, [rate, min(most, 1 - 1e-9)])
    return RateResult(
        false_positives=rate,
        alarms=alarms,
        false_positives_at_most=most,
        true_positives=hits / len(members),
        true_positives_at_least=at_least(hits, len(members), tail),
        true_positives_at_most=at_most(hits, len(members), tail),
        allowed=allowed[0],
        allowed_at_most=allowed[1],
    )


def _words(rate: RateResult) -> str:
    """The success at one rate, in words."""
    allowed = "" if rate.allowed is None else f", where the guarantee allows {percent_up(rate.allowed)}"
    return (
        f"{rate.true_positives:.2%} of the training records ({rate.true_positives_at_least:.2%} to "
        f"{rate.true_positives_at_most:.2%}) at {rate.false_positives:.1%} false alarms{allowed}"
    )


SHADOWS = 64


@own_threads()
def shadow_attack(
    directory: str | os.PathLike[str],
    shadows: int = SHADOWS,
    *,
    source: Source | None = None,
    variant: str = "online",
    seed: int | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """Attack the model file of a finished private run with shadow models (`attack`).

    The attacked records are equally many random training and test records. Each shadow model is trained by the run's
    plan and settings on all other training records and a random half of the attacked ones, so it has as many records as
    the run.

    Args:
        directory: the run directory.
        shadows: the number of shadow models.
        source: the run's source; None to open it by the run's record.
        variant: "online" (shadow models with and without a record) or "offline" (only those without it).
        seed: the seed of halves, coins and noise; None for a random one.
        progress: where to report progress.

    **Guarantee.** None: the result depends on private records, is for their owner alone, and enters no statement or
    model file. Shadow models are not kept or listed as uses, and their noise is unrelated to the run's.

    Errors: `SfumatoError` for a run that has no guarantee, protects people rather than examples, predicts several
    labels, or was trained on other records than the source's.
    """
    positive_integer(shadows=shadows, remedy="give the number of shadow models, such as 64")
    run, progress = RunDirectory(directory), default_progress(progress)
    run.require_finished()
    run.refuse_custom_loop("audit its code: `sfumato.audit` takes scores and observations")
    if is_public(run):
        raise SfumatoError(f"the run in {run.path} was trained without privacy", "attack a run with a guarantee")
    record = run.read_json(names.SETTINGS)
    plan, settings = PrivacyPlan.from_dict(run.read_json(names.PLAN)), Settings.from_dict(record["settings"])
    loss = settings.objective.loss
    if plan.users is not None or not is_exclusive(loss) or loss == NEXT_WORD:
        raise SfumatoError(
            f"the run in {run.path} protects each {plan.unit.name} and has the loss {loss}",
            "attack a run that protects examples with one class each",
        )
    if source is None:
        source = users.cap_for_plan(source_of(str(run.path), record), plan)
    if source.fingerprint != record["data"]["fingerprint"]:
        raise SfumatoError(
            f"the run in {run.path} was trained on other records than those of {source.kind}",
            "give its own source, with the owner's key that split it: the members must be known",
        )
    if source.zoomed is not None:
        raise SfumatoError(
            f"the run in {run.path} crops its views from larger images, which test records lack", "attack another run"
        )
    key = RunKey.fresh() if seed is None else RunKey.from_seed(seed, f"shadow models of {record['run']}")
    question = AttackedRecords.sample(source, shadows, key)
    about, around = replace(settings, seed=None), vars(RunOptions.from_record(record)).copy()
    around["precision"] = Performance.from_dict(record["performance"]).precision

    def make_job(records: Source) -> PrivateJob:
        return prepare(None, records, plan, about, threads=1, **around)

    loaded, job = load(run.path), make_job(source)
    target, shadow_phi = _phi_of_models(make_job, job, loaded, question, progress)
    return attack(target, shadow_phi, question.halves, question.members, plan=plan, variant=variant)


@dataclass(frozen=True, kw_only=True)
class AttackedRecords:
    """The attacked records.

    Args:
        source: the run's source.
        positions: int64 (n,), their positions in the training part followed by the test part.
        halves: bool (S, n), the attacked records that each shadow model is trained with.
    """

    source: Source
    positions: np.ndarray
    halves: np.ndarray

    @classmethod
    def sample(cls, source: Source, shadows: int, key: RunKey) -> AttackedRecords:
        """Equally many random records of both parts, and each shadow model's half of them."""
        generator, train, test = key.generator("asked", 0), len(source.train), len(source.test)
        size = min(train, test)
        if not size:
            raise SfumatoError(f"{source.kind} has {train} training and {test} test records", "give one with both")
        members, others = (np.sort(generator.choice(count, size, replace=False)) for count in (train, test))
        return cls(
            source=source,
            positions=np.concatenate([members, train + others]),
            halves=_halves(shadows, 2 * size, key.generator("halves", 0)),
        )

    @property
    def members(self) -> np.ndarray:
        """bool (n,), the records that the run was trained on."""
        return self.positions < len(self.source.train)

    @property
    def labels(self) -> Tensor:
        """The labels of the attacked records, int64 (n,)."""
        return torch.from_numpy(np.concatenate([self.source.train.labels, self.source.test.labels])[self.positions])

    @property
    def training_masks(self) -> np.ndarray:
        """bool (S, N + M), the training records of each shadow model among all records, the training part first."""
        masks = np.zeros((len(self.halves), len(self.source.train) + len(self.source.test)), bool)
        masks[:, : len(self.source.train)] = True
        masks[:, self.positions] = self.halves
        return masks


def _halves(shadows: int, records: int, generator: np.random.Generator) -> np.ndarray:
    """bool (S, n): random halves. Every second model has the complement of the previous one, so that each record is in
    half of the models (Carlini et al. 2022, section VI) and each model has half of the records."""
    pairs = np.tile(np.arange(records) < records // 2, (-(-shadows // 2), 1))
    first = generator.permuted(pairs, axis=1)
    return np.stack([first, ~first], axis=1).reshape(-1, records)[:shadows]


def _phi_of_models(
    make_job: Callable[[Source], PrivateJob],
    job: PrivateJob,
    loaded: Loaded,
    question: AttackedRecords,
    progress: Progress,
) -> tuple[np.ndarray, np.ndarray]:
    """phi of the attacked records under the run's model (n,) and under all shadow models (S, n)."""
    source, loss, shadow_phi = question.source, job.settings.objective.loss, []
    module, transform = loaded.module_for(source)
    target = phi(_logits(module, question, transform, torch.device("cpu")), question.labels, loss)
    progress.begin("training shadow models", len(question.halves))
    for number, used in enumerate(question.training_masks, start=1):
        inside, outside = used[: len(source.train)], used[len(source.train) :]
        part = _concatenate(source.train.select(inside), source.test.select(outside))
        shadow = make_job(replace(source, train=part))
        shadow_phi.append(
            phi(_logits(train_in_memory(shadow), question, shadow.transform, shadow.device), question.labels, loss)
        )
        progress.advance(number)
    return target, np.stack(shadow_phi)


def _logits(module: nn.Module, question: AttackedRecords, transform: Preparation, device: torch.device) -> Tensor:
    """Logits (n, classes) of the attacked records."""
    train, test = question.source.train, question.source.test
    members = question.members
    places = (train, question.positions[members]), (test, question.positions[~members] - len(train))
    return torch.cat([accuracy.logits(module, part, transform, device, places=rows) for part, rows in places])


def _concatenate(first: Part, second: Part) -> Part:
    """A part with the records of both parts."""
    if isinstance(first, CachedRecords):
        assert isinstance(second, CachedRecords)
        return first.joined(second)
    both = {field.name: (getattr(first, field.name), getattr(second, field.name)) for field in fields(first)}
    arrays = {name: pair for name, pair in both.items() if all(isinstance(value, np.ndarray) for value in pair)}
    return replace(first, **{name: np.concatenate(pair) for name, pair in arrays.items()})


def train_in_memory(job: PrivateJob) -> nn.Module:
    """The model after a job's steps, for an attack. Nothing is kept, listed or released."""
    with TemporaryDirectory() as place:
        steps = job.kind.steps(job, job.key, NoProgress())
        outcome = take_steps(job, RunDirectory(place), steps, job.first_checkpoint("shadow"))
    job.module.load_state_dict(outcome.weights)
    return job.module
