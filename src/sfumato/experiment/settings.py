"""Options of a plan, settings that shape the model, and settings that only shape the computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sfumato import _devices
from sfumato._checks import SfumatoError, one_of, positive_integer, whole_number
from sfumato._choices import NestedChoices, all_optional, choice, choices_of, optional_choice, recorded
from sfumato.averaging.choices import Averages
from sfumato.models.choices import LossSettings, Network, NormSettings
from sfumato.optim.descent import Descent
from sfumato.privacy.participation import FullBatch
from sfumato.privacy.planning import by_name
from sfumato.privacy.planning.target import Epsilon, target_of

if TYPE_CHECKING:
    from sfumato.data import SourceSpec, Views
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.unit import Unit


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """K views of each example, and how they are made."""

    views: int = choice(1)
    """K, the augmented views of each example, whose mean gradient is clipped."""
    shift: int = choice(0)
    """Largest shift of a view in pixels. Edges are filled by reflection."""
    flip: bool = choice(False, "True|False")
    """Whether half of the views are mirrored."""
    zoom: float = choice(1.0, by_default="1")
    """Enlarge images by this factor and cut views out of them at random places, instead of --shift."""
    crop_area: float = choice(1.0, by_default="1")
    """Random crops as in Inception: smallest share of the image's area that a view shows. 1 means no crops."""

    def __post_init__(self) -> None:
        _ = self.rule  # validates

    @cached_property
    def rule(self) -> Views:
        """The views of an example."""
        from sfumato.data.views import Views

        return Views(count=self.views, shift=self.shift, flip=self.flip, zoom=self.zoom, crop_area=self.crop_area)


OWN_MODEL = "module"
"""The name of a model that the caller gave as an object."""
STANDARD, SECURE = "standard", "secure"
NOISES = (STANDARD, SECURE)
"""Values of `noise`."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Options of the privacy plan: budget, batch size and steps. None if not given."""

    epsilon: float | None = optional_choice("EPSILON", "3")
    """Privacy budget."""
    delta: float | None = optional_choice("DELTA", "a power of ten, at most 1e-5 and 1/(10 N)")
    """Probability with which the epsilon bound may fail."""
    noise_multiplier: float | None = optional_choice("SIGMA", "the least that meets epsilon")
    """Standard deviation of the noise divided by the clipping norm."""
    accountant: str | None = optional_choice("pld|rdp", "pld")
    """Accountant that finds noise, steps or batch size: privacy loss distributions (pld), or Renyi DP (rdp), as in most
    papers, which takes more noise."""
    batch_size: int | None = optional_choice("B")
    """B, the expected number of examples in a step, or of users with --unit user. N means full-batch steps."""
    steps: int | None = optional_choice("T")
    """Number of training steps."""
    max_norm: float | None = optional_choice(by_default="1")
    """C, the norm to which the gradient of each example, or of each user, is clipped."""

    @property
    def target(self) -> Epsilon | None:
        """The epsilon that the plan is calibrated to; None without one."""
        return None if self.epsilon is None else Epsilon(self.epsilon)

    def check_numbers(self) -> None:
        """Refuses invalid values of epsilon, steps and batch size."""
        _ = self.target
        positive_integer(optional=True, steps=self.steps, remedy="give the number of training steps")
        positive_integer(
            optional=True, batch_size=self.batch_size, remedy="give the expected number of examples in a step"
        )


@dataclass(frozen=True, kw_only=True)
class Pair(all_optional(by_name.Pair, without=by_name.PARTICIPATION_OPTIONS["drifting"])):
    """Options of participation and mechanism. None if not given."""

    participation: str | None = optional_choice("poisson|full-batch|fixed-order|cyclic|truncated")
    """Who takes part in a step: a Poisson sample, all (full-batch), fixed batches in turn (fixed-order), a sample of
    one group in turn (cyclic), or a Poisson sample cut at a fixed size (truncated)."""

    def request(self, examples: int, *, momentum: float | None = None, **counted: Any) -> by_name.Request:
        """Arguments for `PrivacyPlan.calibrate`. Correlated noise is optimal for heavy-ball SGD with the schedule.

        Args:
            momentum: replaces the one that was asked for, or the rule's.
            counted: options that were counted in the data.
        """
        names = (field.name for field in fields(PairOfRecords if isinstance(self, PairOfRecords) else Pair))
        pair: dict[str, Any] = {name: getattr(self, name) for name in names} | counted
        chosen: float | None = getattr(self, "momentum", None)
        if momentum is None:
            heavy_ball = getattr(self, "optimizer", None) in (None, "momentum")
            momentum = 0.0 if not heavy_ball else 0.9 if chosen is None else chosen
        rates = rates_of(getattr(self, "schedule", None), getattr(self, "warmup", None))
        return by_name.request_by_names(examples=examples, momentum=momentum, rates=rates, **pair)


@dataclass(frozen=True, kw_only=True)
class PairOfRecords(all_optional(by_name.Pair), Pair):
    """The same options for sampling of records, which may drift between two groups."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """Options of the unit of privacy. None if not given."""

    unit: str | None = optional_choice("example|user", "example")
    """What one guarantee covers: each record (example), or each person with all of their records (user)."""
    per_user: int | None = optional_choice("G", "all")
    """G, for --unit user: the most records kept of each user."""
    per_step: int | None = optional_choice("K", "all if their features are computed once, else 1")
    """For --unit user: the most of these records that a user shows in a step, drawn anew each time. It changes no
    epsilon."""


@dataclass(frozen=True, kw_only=True)
class NoiseMade:
    """Option for how noise is drawn and added. None if not given."""

    noise: str | None = optional_choice("standard|secure", "standard")
    """How noise is drawn and added: as floating-point numbers (standard), or exactly on a public grid (secure), which
    also covers rounding."""


def make_plan(budget: Any, population: int, unit: Unit, request: by_name.Request, **changes: Any) -> PrivacyPlan:
    """The plan of a request: of batch size, steps, noise and epsilon, the one that is None follows from the others.

    Args:
        budget: holds these and `delta`, which follows a rule if it is None.
        population: how many records or users are drawn from.
        changes: values that replace those of `budget`.

    Errors: `SfumatoError` where not exactly one of the four is None, where no plan meets the others, and for an
    accountant without an epsilon to meet.
    """
    from sfumato.privacy import PrivacyPlan
    from sfumato.privacy.plan import default_delta

    target = target_of(budget.epsilon, changes.get("mu"), changes.get("attack_risk"))
    if budget.accountant is not None and target is None and budget.noise_multiplier is not None:
        raise SfumatoError(
            f"accountant {budget.accountant!r} is given, and no epsilon that a plan should meet by it",
            "give epsilon, or leave accountant out: both accountants' epsilons are always shown",
        )
    numbers = ("batch_size", "steps", "noise_multiplier", "epsilon", "max_norm")
    return PrivacyPlan.calibrate(
        examples=population,
        unit=unit,
        delta=default_delta(unit.count(population)) if budget.delta is None else budget.delta,
        accountant=budget.accountant or "pld",
        **{**{name: getattr(budget, name) for name in numbers}, **changes},
        **request._asdict(),
    )


MOST_EXAMPLES = 10**9
"""A number of examples with which every choice is possible that is possible with fewer."""


def check_plan(
    budget: Any, unit: Unit, request: by_name.Request, *, examples: int = MOST_EXAMPLES, **changes: Any
) -> None:
    """Refuses combinations of participation, noise, adjacency and unit without a theorem, and numbers out of range.

    It makes a plan for this many examples: if that is refused, so is any plan for fewer examples. Noise whose
    coefficients are computed from the plan is tried with two steps, to save time.
    """
    batch_size = examples if isinstance(request.participation, FullBatch) else 1
    if budget.batch_size is not None and examples != MOST_EXAMPLES:
        batch_size = budget.batch_size
    steps = 2 if isinstance(request.mechanism, by_name.OptimalToeplitz) else budget.steps or 1
    noise = 1.0 if budget.noise_multiplier is None else budget.noise_multiplier
    changes = {"batch_size": batch_size, "steps": steps, "noise_multiplier": noise, "epsilon": None} | changes
    make_plan(budget, examples, unit, request, **changes)


def refuse_noise(noise: str | None, mechanism: Any, clipping: Any = None) -> None:
    """Refuses secure noise for mechanisms without it: see `refuse_without_grid`."""
    if noise == SECURE:
        from sfumato.privacy.clipping import refuse_without_grid

        refuse_without_grid(mechanism, clipping)


def rates_of(schedule: str | None, warmup: int | None) -> Callable[[int], tuple[float, ...]] | None:
    """A function from a number of steps to the learning-rate factor of each step; None if the rate is constant."""
    if schedule in (None, "constant") and not warmup:
        return None
    from sfumato import optim

    def rates(steps: int) -> tuple[float, ...]:
        factor = optim.schedule(schedule or "constant", steps=steps, warmup=min(warmup or 0, steps - 1))
        return tuple(map(factor, range(steps)))

    return rates


@dataclass(frozen=True, kw_only=True, init=False)
class Settings(NestedChoices):
    """Choices that shape the model. None of them changes epsilon.

    Give them flat, `Settings(model="wrn-16-4", learning_rate=4.0, shift=4)`, or as parts,
    `Settings(network=Network(model="wrn-16-4"), ...)`. docs/reference.md lists them all.

    Args:
        network: the model and its initial weights; "module" for an object of the caller's.
        objective: the loss, and class weights.
        descent: optimizer, learning rate and schedule.
        augmentation: views of an example.
        averages: averages of the weights over the steps.
        norms: replacements for the model's normalisation layers.
        noise: "standard", or "secure": rounded correctly to a public grid, and drawn by a cryptographic generator.
        seed: None for a secret run key; a number for experiments, which have no guarantee.
    """

    network: Network
    objective: LossSettings
    descent: Descent
    augmentation: Augmentation
    averages: Averages
    norms: NormSettings
    noise: str = choice(STANDARD)
    seed: int | None = None

    def __init__(self, **choices: Any):
        super().__init__(**choices)
        one_of(NOISES, noise=self.noise, remedy="choose one of these; `noise_multiplier` sets the amount of noise")
        whole_number(least=None, optional=True, seed=self.seed, remedy="give a number such as 0")

    def flat(self) -> dict[str, Any]:
        """Every setting by name, the most important first."""
        settings = super().flat()
        return {name: settings[name] for name in ("model", "learning_rate", "optimizer")} | settings

    @classmethod
    def provisional(cls, options: Mapping[str, Any], **by_rule: Any) -> Settings:
        """Settings with the given choices, and placeholders for defaults that depend on the data."""
        from sfumato.experiment.defaults import aggregate_rules

        rules = {name: rule.value for name, rule in aggregate_rules(options).items()}
        chosen = {name: options[name] for name in choices_of(cls) if options.get(name) is not None}
        return cls(**{"model": OWN_MODEL, "learning_rate": 1e-3, **rules, **by_rule, **chosen})

    def check_steps(self, steps: int | None) -> None:
        """Refuses optimizers, schedules and averages that are impossible for this number of steps; with None, for any
        number."""
        from sfumato import optim
        from sfumato.averaging import EMA

        descent, averages = self.descent, self.averages
        optim.check_schedule(descent.schedule, steps=steps, warmup=descent.warmup)
        optim.check(
            descent.optimizer,
            learning_rate=descent.learning_rate,
            momentum=descent.momentum,
            weight_decay=descent.weight_decay,
        )
        if averages.aggregate_last is None:
            EMA(averages.ema, averages.ema_form)
        if averages.aggregate is not None and steps is not None and averages.aggregate_from >= steps:
            raise SfumatoError(
                f"`aggregate_from` is {averages.aggregate_from}, but the run has only {steps} steps, so that none "
                "would be taken at the aggregate",
                "give an earlier step, or leave `aggregate` out",
            )

    def check_source(self, spec: SourceSpec, model: str | None) -> None:
        """Refuses settings that are impossible for this source, as far as its spelling and declarations show.

        Args:
            model: the model if it was given by name.
        """
        from sfumato import data, models

        self.objective.check_shares(spec.declared.labels.classes, spec.declared.labels.label_columns)
        weights = self.network.initial_weights
        if weights is not None and weights != "timm":
            models.check_weights(weights)
        if self.norms.public_data is not None:
            data.refuse_absent(self.norms.public_data)
        if model in (None, OWN_MODEL):
            return
        if (width := spec.feature_width) is not None:
            models.create_head(model, classes=2, width=width)
            return
        pixels = spec.declared.pixels
        size = {"channels": pixels.channels, "size": pixels.size}
        models.check(model, records=spec.records, pretrained=self.network.pretrained, **size)

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.network.model

    @cached_property
    def views(self) -> Views:
        """The views of an example."""
        return self.augmentation.rule


@dataclass(frozen=True, kw_only=True)
class Performance:
    """Settings that shape only the computation. None of them is in the plan, but they change how sums are rounded. A
    resumed run keeps its settings, and reports another device or number of threads.

    Args:
        device: "cpu", or an accelerator as torch names it: "cuda", "cuda:N", "xpu".
        threads: CPU threads of torch.
        micro_batch: largest number of examples in memory at once.
        precision: data type of a step's matrix products and convolutions. Norms, sums and noise keep full precision.
        methods: how each site's gradient norms are computed (`ClippedGradient.methods`), timed when the run started.
    """

    device: str = "cpu"
    threads: int = 1
    micro_batch: int = 64
    precision: str = "float32"
    methods: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.methods, Mapping):
            raise SfumatoError(f"methods must be a mapping, got {self.methods!r}", "give those of a ClippedGradient")
        positive_integer(threads=self.threads, micro_batch=self.micro_batch)
        one_of(_devices.PRECISIONS, precision=self.precision)
        _devices.check_name(self.device)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Performance:
        """The settings that `to_dict` wrote."""
        return cls(**recorded(cls, data))
