"""The subject of an audit: the model, the plan and the settings of a run, without its data. Also collects the noise of
each parameter: the release of a private step minus its clipped sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import models
from sfumato._checks import SfumatoError
from sfumato.audit.noise import WINDOW, ParameterNoise
from sfumato.data import FeatureTransform, Form, Images, NextWords, Tokens
from sfumato.experiment.settings import Settings
from sfumato.gradients import ClippedGradient, UserGradient
from sfumato.models.losses import is_exclusive, weighted_loss
from sfumato.privacy import PrivacyPlan, QuantileClipping
from sfumato.randomness import Noise, RunKey
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.loaded import load
from sfumato.training.inputs import features_alone, head_on_features
from sfumato.training.job import SYNTHETIC, PrivateJob, is_public
from sfumato.training.preparation.building import noise_named

MADE_BY = 0
"""The public seed of all synthetic inputs."""
RECORDS = 2
"""The records of each unit, if users are drawn."""


def _standard(plan: PrivacyPlan, key: RunKey) -> Noise:
    return Noise(plan.mechanism, max_norm=plan.max_norm, key=key)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The parts of a run that an audit of its step needs.

    Args:
        name: the name of the run or the recipe.
        plan: the plan of the run.
        module: the model in training mode, on the CPU, with any weights.
        form: the form of its inputs.
        loss, views: from the run's settings.
        classes: the number of classes.
        prevalence: the declared shares of several labels by name, which weight the labels in the loss.
        noise: makes the noise of the run's settings from a plan and a key.
    """

    name: str
    plan: PrivacyPlan
    module: nn.Module = field(repr=False)
    form: Form
    loss: str
    views: int
    classes: int
    prevalence: Mapping[str, float] | None = None
    noise: Callable[[PrivacyPlan, RunKey], Noise] = field(default=_standard, repr=False)

    def __post_init__(self) -> None:
        plan, problem = self.plan, None
        if isinstance(plan.clipping, QuantileClipping):
            problem = "its clipping norm follows a quantile of the norms"
        elif plan.unit.drawn == "clients":
            problem = "it draws virtual clients"
        if problem is not None:
            raise SfumatoError(
                f"{self.name} cannot be audited step by step: {problem}",
                "audit a run with a fixed clipping norm and drawn examples or users",
            )

    @property
    def clipped_loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss whose gradient the run clips."""
        return weighted_loss(self.loss, self.prevalence, tuple(self.prevalence or ()), "cpu")

    @property
    def is_user_level(self) -> bool:
        """Whether a step's sum is over users."""
        return self.plan.unit.drawn == "users"

    @cached_property
    def trunk(self) -> models.Trunk | None:
        """The module's frozen trunk, if there is one. Its features are then the inputs."""
        if not isinstance(self.form, Images):
            return None
        return models.trunk_of(self.module, (self.form.channels, self.form.size, self.form.size))

    @cached_property
    def trained(self) -> nn.Module:
        """The module whose gradient is clipped."""
        return self.module if self.trunk is None else head_on_features(self.module, self.trunk.head)

    def gradient(self) -> ClippedGradient | UserGradient:
        """The run's clipped gradient, after its self-check."""
        kind = UserGradient if self.is_user_level else ClippedGradient
        gradient = kind(self.trained, self.clipped_loss, max_norm=self.plan.max_norm, views=self.views)
        inputs = self.inputs(1)[0, 0, 0]
        gradient.self_check(inputs if isinstance(self.form, Tokens) else inputs.shape, targets=self._targets)
        return gradient

    @property
    def _targets(self) -> Tensor | None:
        if isinstance(self.form, NextWords):
            return self.form.synthetic_targets(SYNTHETIC)
        return None if is_exclusive(self.loss) else self.labels(2 * self.classes).flatten(0, 1)

    def inputs(self, units: int) -> Tensor:
        """Synthetic inputs (units, R, K, ...) from a public seed: R records of each unit, K views of each record."""
        count, records = units * self.records * self.views, (units, self.records, self.views)
        if isinstance(self.form, Tokens):
            return self.form.synthetic(count + 4)[4:].unflatten(0, records)
        generator = torch.Generator().manual_seed(MADE_BY)
        if isinstance(self.form, FeatureTransform):
            return torch.randn(count, *self.form.shape, generator=generator).unflatten(0, records)
        images = 2 * torch.rand(count, *self.form.shape, generator=generator) - 1
        return (images if self.trunk is None else features_alone(self.trunk, images)).unflatten(0, records)

    def labels(self, units: int) -> Tensor:
        """Synthetic labels (units, R), (units, R, L) or (units, R, T), which differ between neighbouring units."""
        if isinstance(self.form, NextWords):
            return self.form.synthetic_targets(units * self.records + 4)[4:].unflatten(0, (units, self.records))
        places = torch.arange(units)[:, None].expand(units, self.records)
        if is_exclusive(self.loss):
            return places % self.classes
        return (places[..., None] + torch.arange(self.classes)) // 2 % 2

    @property
    def records(self) -> int:
        """R, the number of records of a unit."""
        return RECORDS if self.is_user_level else 1


def from_job(job: PrivateJob, name: str) -> Subject:
    """The subject of a job that has not run."""
    return Subject(
        name=name,
        plan=job.plan,
        module=job.module.cpu().train(),
        form=job.source.form,
        loss=job.settings.objective.loss,
        views=job.views.count,
        classes=len(job.source.classes),
        prevalence=_ordered_shares(job.settings, job.source.classes),
        noise=partial(noise_named, job.noise),
    )


def from_run(directory: str | PathLike[str], *, model: nn.Module | str | None = None) -> Subject:
    """The subject of a finished run, from its files.

    Args:
        model: as for `load`.

    Errors: `SfumatoError` for anything but a finished private run of a classifier with its record.
    """
    run = RunDirectory(directory)
    run.require_finished()
    run.refuse_custom_loop("audit its code: `sfumato.audit` takes scores and observations")
    record = run.read_json(names.SETTINGS)
    if is_public(run) or "circumstances" not in record or "embedding" in record:
        raise SfumatoError(f"{run.path} is no private training of a classifier", "audit a run of sfumato train")
    settings, loaded = Settings.from_dict(record["settings"]), load(directory, model=model)
    module, transform = loaded.module, loaded.transform
    if loaded.features is not None:
        module, transform = models.on_features(module), FeatureTransform(width=loaded.features["width"])
    module.train()
    if settings.descent.trainable:
        models.select_trainable(module, settings.descent.trainable)
    return Subject(
        name=str(directory),
        plan=PrivacyPlan.from_dict(run.read_json(names.PLAN)),
        module=module,
        form=_form(transform),
        loss=loaded.loss,
        views=settings.augmentation.views,
        classes=len(loaded.classes),
        prevalence=_ordered_shares(settings, loaded.classes),
        noise=partial(noise_named, settings.noise),
    )


def _ordered_shares(settings: Settings, classes: Sequence[str]) -> Mapping[str, float] | None:
    """The declared shares in the order of the model's outputs."""
    prevalence = settings.objective.class_prevalence
    return None if prevalence is None else {name: prevalence[name] for name in classes}


def _form(transform: Any) -> Form:
    if isinstance(transform, (FeatureTransform, Tokens)):
        return transform
    return Images(size=transform.size, channels=transform.channels)


def with_noise(plan: PrivacyPlan, noise_multiplier: float, steps: int) -> PrivacyPlan:
    """The plan with another noise multiplier and number of steps."""
    return replace(plan, mechanism=replace(plan.mechanism, noise_multiplier=noise_multiplier), steps=steps)


RUNS = 2
"""The number of runs, each with its own key."""


class Residuals:
    """Collects the noise of single steps: the sum of squares of each coordinate, and all values of a few coordinates.

    Args:
        like: tensors of the parameters' shapes, by name.
        steps: the number of steps in each of the two runs.
    """

    def __init__(self, like: Mapping[str, Tensor], steps: int):
        self._sizes = {name: value.numel() for name, value in like.items() if value.numel()}
        self._starts = np.cumsum([0, *self._sizes.values()])[:-1]
        self._squares, self._largest = np.zeros(len(self._sizes)), np.zeros(len(self._sizes))
        self._coordinates = np.zeros(sum(self._sizes.values()), np.float32)
        chosen = [np.unique(np.linspace(0, size - 1, WINDOW).round().astype(int)) for size in self._sizes.values()]
        self._places = np.concatenate([start + places for start, places in zip(self._starts, chosen, strict=True)])
        self._ends = np.cumsum([len(places) for places in chosen])
        self._observations = np.empty((RUNS, steps, len(self._places)))

    def add(
        self,
        run: int,
        step: int,
        private: Mapping[str, Tensor],
        total: Mapping[str, Tensor],
        *,
        scale: float,
        unit: float,
    ) -> None:
        """Add one step of a run.

        Args:
            private: the release of the step.
            total: the clipped sum of its batch.
            scale: the divisor of the noisy sum.
            unit: the standard deviation of the plan's noise, in the units of the sum.
        """
        flat = torch.cat([(scale * private[name].double() - total[name].double()).flatten() for name in self._sizes])
        noise = flat.div_(unit).numpy()
        self._observations[run, step] = noise[self._places]
        magnitudes = np.abs(noise, out=noise)
        np.maximum(self._largest, np.maximum.reduceat(magnitudes, self._starts), out=self._largest)
        squares = np.square(magnitudes, out=magnitudes)
        self._squares += np.add.reduceat(squares, self._starts)
        self._coordinates += squares

    @property
    def parameter_noise(self) -> list[ParameterNoise]:
        """The collected noise of each parameter."""
        least, kept = (
            np.minimum.reduceat(self._coordinates, self._starts),
            np.split(self._observations, self._ends[:-1], axis=2),
        )
        return [
            ParameterNoise(
                name=name,
                coordinates=size,
                steps=self._observations.shape[0] * self._observations.shape[1],
                squares=float(self._squares[place]),
                least=float(least[place]),
                largest=float(self._largest[place]),
                kept=kept[place],
            )
            for place, (name, size) in enumerate(self._sizes.items())
        ]
