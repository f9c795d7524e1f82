"""A run of the printed algorithm on public data, without a promise.

It is public training with the steps of `algorithm_1`: batches are drawn and noise is added by the plan. The run
directory states the claimed epsilon, and that it does not hold. The model file holds the model of the paper's test
phase, which normalises each image in a separate batch with the public examples.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato.data import Source, SourceSpec, Views
from sfumato.experiment.experiment import Experiment
from sfumato.experiment.settings import STANDARD, Settings
from sfumato.models.choices import PUBLIC_EXAMPLES
from sfumato.observers.progress import NoProgress, Progress, open_with_progress
from sfumato.privacy import DisprovedClaim, Example, FixedClipping, Gaussian, Poisson, PrivacyPlan
from sfumato.randomness import Noise, NoiseState, RunKey, Sampler
from sfumato.runs.directory import RunDirectory
from sfumato.training import pretraining
from sfumato.training.job import PublicJob, PublicTraining
from sfumato.training.planned import RunKind
from sfumato.training.preparation.start import Start
from sfumato.training.public_examples import PublicExamples, public_examples
from sfumato.training.run import PublicRun, execute
from sfumato.training.scorers import Scorer
from studies.algorithm_1 import METHOD, WHY, clipped_sum

TEST_PHASE = "public-batch-joint"
"""The normalisation of the model file: each image is normalised in a separate batch with the public examples."""


@dataclass(frozen=True, kw_only=True)
class PrintedJob(PublicJob):
    """The job of a training by the printed algorithm.

    Args:
        plan: batches, steps, noise and clipping. Its epsilon is the claimed one.
        public_examples: the public examples.
    """

    plan: PrivacyPlan
    public_examples: PublicExamples

    @property
    def statement(self) -> DisprovedClaim:
        """The statement that the claimed epsilon does not hold."""
        return DisprovedClaim(
            **self.statement_facts,
            method=METHOD,
            claimed=(self.plan.epsilon(), self.plan.delta),
            reason=WHY,
        )

    @property
    def step_facts(self) -> dict[str, Any]:
        """The digest of the public examples, and the plan."""
        return {"public examples": {"hash": self.public_examples.digest}, "plan": self.plan.to_dict()}

    @property
    def inputs(self) -> Tensor:
        """The public examples (M, ...) as inputs of the model."""
        return self.public_examples.inputs(self.transform).to(self.device)

    def in_test_phase(self) -> nn.Module:
        """The released model, with the normalisation of the test phase."""
        return models.replace_norms(copy.deepcopy(self.module), TEST_PHASE, self.inputs)

    def released_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of the released model, including the public examples, but without running statistics."""
        return {name: weights.get(name, value) for name, value in self.in_test_phase().state_dict().items()}


class PrintedSteps:
    """Algorithm 1: noisy sums of gradients that are clipped one by one, but depend on the whole batch."""

    def __init__(self, job: PrintedJob, key: RunKey, progress: Progress | None = None):
        self._job, self._public = job, job.inputs
        self._noise = Noise(job.plan.mechanism, max_norm=job.plan.max_norm, key=key)
        self._sampler = Sampler(job.plan, key, records=len(job.source.train))

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """The noisy sum over a batch, divided by B C."""
        job, plan, rows = self._job, self._job.plan, np.asarray(self._sampler.draw(step))
        images = job.transform(torch.from_numpy(job.source.train.take(rows))).to(job.device)
        labels = torch.from_numpy(job.source.train.labels[rows]).to(job.device)
        total = clipped_sum(job.module, images, labels, self._public, max_norm=plan.max_norm)
        noisy, state = self._noise.add(total, step, state)
        divisor = plan.expected_batch_size * plan.max_norm
        return {name: value / divisor for name, value in noisy.items()}, state

    def figures(self, step: int) -> dict[str, Any]:
        """Empty: no epsilon is spent, since none is promised."""
        return {}


class PrintedScorer(Scorer):
    """Scores the test split in the paper's test phase."""

    def __init__(self, job: PrintedJob, progress: Progress | None = None):
        super().__init__(replace(job, module=job.in_test_phase()), progress)
        self._released = job.released_weights

    def outputs(self, weights: Mapping[str, Tensor], places: Any = None) -> Tensor:
        """The logits (N, classes) of the released model with these weights."""
        return super().outputs(self._released(weights), places)


PRINTED = RunKind(steps=PrintedSteps, scorer=PrintedScorer)


def train(
    source: str | SourceSpec | Source,
    experiment: Experiment,
    *,
    directory: str | os.PathLike[str],
    device: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> PublicRun:
    """Train by algorithm 1 of Davody et al. 2020 as printed, on public data. Nothing is promised.

    Args:
        source: a public source.
        experiment: an experiment with the normalisation `TEST_PHASE`, and with `public_data`.
        directory: the run directory. An unfinished run is resumed.

    **Guarantee.** None. Private data are refused.

    Errors: `SfumatoError` for private data, a model without batch norm, and plans and views that the paper lacks.
    """
    progress, run = progress or NoProgress(), RunDirectory(directory)
    if isinstance(source, str):
        source = SourceSpec(spec=source)
    spec = source if isinstance(source, SourceSpec) else None
    if spec is not None:
        experiment.check_source(spec)
    source = source if isinstance(source, Source) else open_with_progress(source, progress)
    plain = {"views": 1, "shift": 0, "flip": False}
    source.require_classes("the printed algorithm")
    if not source.public:
        raise SfumatoError(
            f"the printed algorithm has no guarantee, but this {source.kind} source is private",
            "declare it public (`public=True`) if it is, or train by normalisation public-batch",
        )
    left_out = {name: value for name, value in plain.items() if getattr(experiment, name) is None}
    plan, settings, reasons = replace(experiment, **left_out).decide(source)
    _check(plan, settings)
    beside = public_examples(settings, source)
    assert beside is not None
    bare = replace(settings, normalisation=None, public_data=None, public_examples=PUBLIC_EXAMPLES)
    job = pretraining.prepare(
        source,
        PublicTraining(settings=bare, steps=plan.steps, batch_size=min(plan.expected_batch_size, len(source.train))),
        start=Start.for_run(
            run, device=device, threads=threads, request={} if spec is None else {"source": spec.record()}
        ),
    )
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in job.module.modules()):
        raise SfumatoError(f"the model {settings.model} has no batch norm", "give one such as lenet5,norm=batch")
    given: dict[str, Any] = {one.name: getattr(job, one.name) for one in fields(job)}
    printed = PrintedJob(plan=plan, public_examples=beside, **{**given, "settings": settings, "kind": PRINTED})
    if not run.exists:
        for line in reasons:
            progress.report(line)
    return execute(printed, run, progress=progress)


def _check(plan: PrivacyPlan, settings: Settings) -> None:
    """Refuse choices that the paper does not have."""
    if settings.norms.normalisation != TEST_PHASE:
        raise SfumatoError(f"normalisation is {settings.norms.normalisation}", f"give {TEST_PHASE}")
    odd = {
        "mechanism": not isinstance(plan.mechanism, Gaussian),
        "participation": not isinstance(plan.participation, Poisson),
        "clipping": not isinstance(plan.clipping, FixedClipping),
        "unit": not isinstance(plan.unit, Example),
        "views": settings.views != Views(),
        "noise": settings.noise != STANDARD,
        "trainable": bool(settings.descent.trainable),
        "loss": settings.objective.loss != "softmax",
        "class_prevalence": bool(settings.objective.class_prevalence),
    }
    for name, is_odd in odd.items():
        if is_odd:
            raise SfumatoError(
                f"{name} is not as in the printed algorithm",
                "leave it out",
            )
