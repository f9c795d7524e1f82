"""Attacks a finished run's model file with shadow models that are trained by the same recipe.

The owner runs it on their own records. They know the members (the training part) and the non-members (the test part);
the attack does not. The result is measured on private records without noise, so it is for the owner alone. By default
the attacker is strong, as in the promise: they know all training records except the attacked ones, and each shadow
model is trained with a random half of these.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import CachedRecords, Part, Preparation, Source
from sfumato.evaluation import accuracy
from sfumato.experiment import users
from sfumato.experiment.settings import Performance, Settings
from sfumato.models.losses import NEXT_WORD, is_exclusive
from sfumato.observers.progress import NoProgress, Progress, default_progress
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.loaded import Loaded, load
from sfumato.search.audits.lira import AttackResult, attack, phi
from sfumato.training.job import PrivateJob, is_public
from sfumato.training.loop import take_steps
from sfumato.training.parts.options import RunOptions
from sfumato.training.preparation.from_record import source_of
from sfumato.training.preparation.prepare import own_threads, prepare

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

    Errors: `SfumatoError` for a run that promises nothing, promises for users, predicts several labels, or was trained
    on other records than the source's.
    """
    positive_integer("shadows", shadows, remedy="give the number of shadow models, such as 64")
    run, progress = RunDirectory(directory), default_progress(progress)
    run.require_finished()
    run.refuse_custom_loop("audit its code: `sfumato.audit` takes scores and observations")
    if is_public(run):
        raise SfumatoError(f"the run in {run.path} was trained without privacy", "attack a run with a guarantee")
    record = run.read_json(names.SETTINGS)
    plan, settings = PrivacyPlan.from_dict(run.read_json(names.PLAN)), Settings.from_dict(record["settings"])
    if plan.users is not None:
        raise SfumatoError(
            f"the run in {run.path} protects each {plan.unit.name}", "attack a run that protects examples"
        )
    if not is_exclusive(settings.objective.loss) or settings.objective.loss == NEXT_WORD:
        raise SfumatoError(
            f"the run in {run.path} has the loss {settings.objective.loss}, by which a record may have several classes",
            "attack a run with one class for each record",
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

    def make_job(own: Source) -> PrivateJob:
        return prepare(None, own, plan, about, threads=1, **around)

    loaded, job = load(run.path), make_job(source)
    target, found = _phi_of_models(make_job, job, loaded, question, progress)
    return attack(target, found, question.halves, question.members, promise=plan, variant=variant)


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
        each = min(train, test)
        if not each:
            raise SfumatoError(f"{source.kind} has {train} training and {test} test records", "give one with both")
        own, others = (np.sort(generator.choice(count, each, replace=False)) for count in (train, test))
        return cls(
            source=source,
            positions=np.concatenate([own, train + others]),
            halves=_halves(shadows, 2 * each, key.generator("halves", 0)),
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
        found = np.zeros((len(self.halves), len(self.source.train) + len(self.source.test)), bool)
        found[:, : len(self.source.train)] = True
        found[:, self.positions] = self.halves
        return found


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
    source, loss, found = question.source, job.settings.objective.loss, []
    module, transform = loaded.module_for(source)
    target = phi(_logits(module, question, transform, torch.device("cpu")), question.labels, loss)
    progress.begin("training shadow models", len(question.halves))
    for number, used in enumerate(question.training_masks, start=1):
        inside, outside = used[: len(source.train)], used[len(source.train) :]
        part = _concatenate(source.train.select(inside), source.test.select(outside))
        own = make_job(replace(source, train=part))
        found.append(phi(_logits(train_in_memory(own), question, own.transform, own.device), question.labels, loss))
        progress.advance(number)
    return target, np.stack(found)


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
    both = {one.name: (getattr(first, one.name), getattr(second, one.name)) for one in fields(first)}
    arrays = {name: pair for name, pair in both.items() if all(isinstance(value, np.ndarray) for value in pair)}
    return replace(first, **{name: np.concatenate(pair) for name, pair in arrays.items()})


def train_in_memory(job: PrivateJob) -> nn.Module:
    """The model after a job's steps, for an attack. Nothing is kept, listed or released."""
    with TemporaryDirectory() as place:
        how = job.kind.steps(job, job.key, NoProgress()), job.first_checkpoint("shadow")
        outcome = take_steps(job, RunDirectory(place), *how)
    job.module.load_state_dict(outcome.weights)
    return job.module
