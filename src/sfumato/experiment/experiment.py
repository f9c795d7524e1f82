"""What a user asks for, from the command line, a recipe or Python alike; whatever was left out follows by rule."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sfumato._checks import SfumatoError, positive

if TYPE_CHECKING:
    from sfumato.averaging import EMA
    from sfumato.data import Clock, Source
    from sfumato.experiment.settings import Settings
    from sfumato.privacy import Example, PrivacyPlan, User
    from sfumato.privacy.planning.requested import Request


Kind = TypeVar("Kind")


OF_SOURCES = frozenset(
    {"classes", "size", "channels", "bit_depth", "window", "test_fraction", "examples", "public", "label_columns"}
    | {"user_from", "skip_unreadable", "text_column", "root", "download"}
)
"""What is declared of a source where it is opened, and is no field of an experiment."""
SHORT = {"eps": "epsilon", "lr": "learning_rate", "sigma": "noise_multiplier", "wd": "weight_decay"}
"""What fields are called elsewhere."""
OF_OPTIMIZERS = frozenset(
    {"beta1", "beta2", "betas", "adam_beta1", "adam_beta2", "adam_epsilon", "adam_eps", "epsilon_root"}
    | {"nesterov", "dampening", "amsgrad", "always_adapt", "trust_clip", "grad_averaging", "decoupled_decay"}
)
"""What optimizers take elsewhere, and is fixed here."""
THEIR_OWN = "{} (the first beta of adam, adamw and lamb) and {} are an optimizer's only options besides {}"
"""In place of them, with the names of the momentum, the weight decay and the learning rate."""


class Decided(NamedTuple):
    """A plan, settings, and in lines for the reader why whatever was left out is what it is."""

    plan: PrivacyPlan
    settings: Settings
    reasons: list[str]


def left_out(metavar: str = "NUMBER", by_default: str = "by rule") -> Any:
    """A field that may be left out, with how the command line spells its value and what stands in for it."""
    return field(default=None, metadata={"metavar": metavar, "default": by_default})


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a plan is made of, and by what clock it goes, as far as they are asked for."""

    epsilon: float | None = left_out("EPSILON", "3")
    """The privacy budget."""
    delta: float | None = left_out("DELTA", "at most 1e-5 and 1/(10 N)")
    """The chance at which the bound may fail."""
    noise_multiplier: float | None = left_out("SIGMA", "the least that meets epsilon")
    """Standard deviation of the noise over the clipping norm."""
    batch_size: int | None = left_out("B")
    """Expected number of examples in a step, of users where these are drawn; as many as N means full-batch steps."""
    steps: int | None = left_out("T")
    """Number of training steps."""
    max_norm: float | None = left_out(by_default="1")
    """C, the norm to which the gradient of each example, or of each user, is clipped."""
    start: str | None = left_out("TIME", "")
    """When step 0 begins, where each record's own time stamp decides its step: 2026-01-31, or a number."""
    period: str | None = left_out("DURATION", "")
    """How much time each step then covers: a number of weeks, days, hours, minutes or seconds, such as 1d, 12h, 30m."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Participation and mechanism, as far as they are asked for."""

    mechanism: str | None = left_out("gaussian|tree|banded|blt")
    """How the noise of the steps hangs together: not at all (gaussian), or by a tree, bands, or buffers (blt)."""
    participation: str | None = left_out("poisson|full-batch|fixed-order|cyclic|truncated")
    """Who takes part in a step: drawn anew (poisson, truncated), all, bins in turn, or drawn from groups in turn."""
    adjacency: str | None = left_out("add-or-remove|zero-out", "add-or-remove, where the participation allows it")
    """What the promise compares: with and without a record, or with its contribution and with none in its place."""
    order: str | None = left_out("random|position|time", "random")
    """Of a fixed order: bins by secret draws, by the place in the file, or by each record's own time stamp."""
    groups: int | None = left_out(by_default="8")
    """Of cyclic participation: how many groups take turns."""
    largest_batch: int | None = left_out(by_default="five standard deviations above the batch size")
    """Of truncated participation: at how many examples a step is cut."""
    bands: int | None = left_out(by_default="64, or the groups")
    """Of banded noise: over how many steps it is correlated; so many copies of the model are kept, less one."""
    buffers: int | None = left_out(by_default="2")
    """Of buffered noise (blt): how many copies of the model are kept, from 1 to 4."""
    steps_per_tree: int | None = left_out(by_default="one tree")
    """Of tree noise: after how many steps another tree begins."""
    complete_trees: bool | None = left_out("True|False", "False")
    """Of tree noise: whether a tree is completed by virtual steps before another begins."""

    def request(
        self, examples: int, *, momentum: float = 0.0, schedule: str | None = None, warmup: int | None = None
    ) -> Request:
        """Both as `PrivacyPlan.calibrate` takes them, the noise the best for heavy-ball SGD with this schedule."""
        from sfumato.privacy.planning.requested import requested

        return requested(examples=examples, momentum=momentum, rates=rates_of(schedule, warmup), **self.pair)

    @property
    def pair(self) -> dict[str, Any]:
        """All of this by name."""
        return {one.name: getattr(self, one.name) for one in fields(Pair)}


@dataclass(frozen=True, kw_only=True)
class PairOfRecords(Pair):
    """The same where single records take part, which may be of two groups."""

    participation: str | None = left_out("poisson|full-batch|fixed-order|cyclic|truncated|drifting")
    """Who takes part in a step: drawn anew (poisson, truncated), all, bins in turn, drawn from groups in turn, or drawn
    by turns rather from one of two groups of records (drifting)."""
    drift: int | None = left_out("STEPS", "")
    """Draw records from two groups by turns (participation drifting): the period in which shares rise and fall."""
    drift_shape: str | None = left_out("linear|cosine", "linear")
    """Of a drift: whether shares rise and fall by straight lines or as a cosine does."""
    drift_groups: tuple[str, ...] | None = left_out("NAME [NAME ...]", "")
    """Of a drift: the classes of the second group, or its groups where the source has a column of them."""
    drift_size: int | None = left_out(by_default="counted in the data")
    """Of a drift: how many of the training examples are in the second group, declared."""

    @property
    def pair(self) -> dict[str, Any]:
        """All of this by name."""
        return {one.name: getattr(self, one.name) for one in fields(PairOfRecords)}


@dataclass(frozen=True, kw_only=True)
class Units:
    """What one promise covers, as far as it is asked for."""

    unit: str | None = left_out("example|user", "example")
    """What one promise covers: each single record (example), or all that is kept of each person (user)."""
    per_user: int | None = left_out("G", "by rule; all, where users are drawn")
    """Of users: how many records of each are kept at most."""
    drawn: str | None = left_out("examples|users", "the one with less noise over the signal")
    """Of users: what takes part in a step by itself, each of their records or each user with all that is kept."""


@dataclass(frozen=True, kw_only=True)
class Averages:
    """Averages of the weights over the steps, as far as they are asked for."""

    ema: float | None = left_out()
    """Decay of the weights' moving average; 0 keeps the last weights."""
    ema_form: str | None = left_out("warm-up|constant", "warm-up")
    """warm-up for a decay of at most (1 + t) / (10 + t) at step t, constant for the same decay in all steps."""
    aggregate: str | None = left_out("ema|uta", "none")
    """Take gradients at an average of the weights so far: that of --ema, or the mean of the last ones (uta)."""
    aggregate_from: int | None = left_out("STEP", "0")
    """From which step on."""
    aggregate_last: int | None = left_out("K", "5")
    """Of uta: how many of the last weights; so many copies of what is trained are kept."""
    aggregate_restart: bool | None = left_out("True|False", "False")
    """Whether a step starts at the average too, instead of at the last weights."""


@dataclass(frozen=True, kw_only=True)
class ClassShares:
    """How frequent the classes are where the model is to be used, as far as it is declared."""

    class_prevalence: tuple[str, ...] | None = left_out("NAME=SHARE [NAME=SHARE ...]", "all classes weigh alike")
    """Each class's share, declared: its examples weigh the less the more frequent it is."""


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """What stands in the place of a model's normalisation layers, as far as it is asked for."""

    normalisation: str | None = left_out("NAME", "as the model has it")
    """public-batch, public-batch-own, public-batch-joint, public-batch-through, frozen-batch, lsuv, group, layer,
    instance, weight-standardised or none, in the place of the model's own; printed-2020 for the algorithm of Davody et
    al. 2020 as printed, which promises nothing, on public data."""
    public_data: str | None = left_out("SOURCE", "")
    """A public source, whose examples give batch norm its statistics; a private record among them is left out."""
    public_examples: int | None = left_out("M", "128")
    """How many of its training examples are taken, by a public draw."""


@dataclass(frozen=True, kw_only=True)
class Choices(Averages):
    """The fields of `Settings`, as far as they are asked for. What is None follows a written rule.

    The command line's options are these fields: name, type, words and metadata.
    """

    model: str | None = left_out("NAME")
    """scattering, lenet5, lenet, cnn, linear, mobilenet-v2, resnet-50, wrn-DEPTH-WIDTH, nf-resnet-DEPTH, timm:NAME, or
    package:function; head for features; options follow after commas, as in wrn-16-4,norm=none."""
    pretrained: str | None = left_out("PATH", "")
    """Initial weights, from public data: a run directory, a safetensors file, or the word timm."""
    pretrained_weights: str | None = left_out("ema|last", "those that the run has released")
    """Of a run of sfumato pretrain that has averaged its weights: the averaged ones (ema), or the last ones."""
    head: str | None = left_out("new|pretrained", "new")
    """On pre-trained weights: new for a classifier of zeros, pretrained for the one that they bring."""
    head_deviation: float | None = left_out(by_default="0 on pre-trained weights")
    """Standard deviation of a new classifier's first weights."""
    head_bias: float | None = left_out(by_default="0 on pre-trained weights")
    """What a new classifier's biases begin with; -10 for the sigmoid loss in Mehta et al. 2022."""
    loss: str | None = left_out("softmax|sigmoid|multilabel", "softmax; multilabel for --label-columns")
    """softmax, or sigmoid for one yes-or-no question per class; multilabel for images with several labels."""
    pretrained_rate: float | None = left_out(by_default="1")
    """By what the learning rate of all layers but the classifier is multiplied."""
    trainable: tuple[str, ...] | None = left_out("NAME [NAME ...]", "all")
    """What is trained: all, classifier, norm, first, or patterns of parameter names."""
    optimizer: str | None = left_out("NAME")
    """sgd, momentum, adam, adamw or lamb."""
    learning_rate: float | None = left_out()
    """Step size; in private training gradients are divided by the clipping norm."""
    momentum: float | None = left_out(by_default="0.9")
    """Heavy-ball coefficient, or the first beta of the Adam family."""
    weight_decay: float | None = left_out(by_default="0")
    """L2 coefficient."""
    schedule: str | None = left_out("NAME", "constant")
    """constant, cosine, linear or step."""
    warmup: int | None = left_out(by_default="0")
    """Steps of linear warm-up."""
    views: int | None = left_out()
    """K, views of each example whose mean gradient is clipped."""
    shift: int | None = left_out()
    """By how many pixels a view is moved."""
    flip: bool | None = left_out("True|False")
    """Whether views are mirrored."""
    zoom: float | None = left_out(by_default="1")
    """How much larger than a view the image is that it is cut out of; for large images, in place of shift."""
    crop_area: float | None = left_out(by_default="1")
    """Random crops as in Inception: the least share of the image's area that a view shows, such as 0.08; 1 for none."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Choices, ClassShares, Normalisation, Units, PairOfRecords, Budget):
    """A private training as it is asked for. What is None follows a written rule, from public facts alone.

    With all four of epsilon, noise, steps and batch size the plan may spend at most epsilon; else see
    `PrivacyPlan.calibrate`. With a seed it is for experiments: the promise is void to whoever knows the number.
    """

    seed: int | None = None

    def refuse_momentum(self) -> None:
        """Refuse momentum for an optimizer that has none."""
        if self.optimizer == "sgd" and self.momentum:
            raise SfumatoError(
                f"momentum is {self.momentum!r}, and the optimizer sgd has none",
                "leave it out, or give optimizer=momentum",
            )

    def kept(self, source: Source) -> Source:
        """The source as it is trained on: where the unit is a user, with at most so many records of each."""
        from sfumato.experiment import users

        return users.kept(source, users.most_of_each(source, self.unit, self.per_user, self.drawn))

    @property
    def clock(self) -> Clock | None:
        """Which step each record's own time stamp belongs to; None where nothing was declared of it."""
        from sfumato.data import Clock

        return Clock.declared(self.start, self.period)

    def decide(self, source: Source) -> Decided:
        """Plan and settings for this source.

        Errors: `SfumatoError` for what cannot be, before anything is spent.
        """
        from sfumato.experiment import defaults
        from sfumato.experiment.settings import Settings

        given, source = asdict(self), self.kept(source)
        self.refuse_momentum()
        plan, reasons = self._plan(source)
        rules = defaults.training_rules(
            plan,
            given=given,
            size=source.size,
            channels=source.channels,
            cached=source.cached_views,
            texts=source.tokens is not None,
            multilabel=source.multilabel,
        )
        values = {name: rule.value for name, rule in rules.items()}
        values |= {one.name: given[one.name] for one in fields(Settings) if given[one.name] is not None}
        reasons += self._remarks(plan, source)
        return Decided(plan, Settings(**values), [*reasons, *defaults.reasons(rules, given)])

    def _plan(self, source: Source) -> tuple[PrivacyPlan, list[str]]:
        """The plan, with the reasons for its batch size and steps."""
        from sfumato.experiment import defaults
        from sfumato.privacy import PrivacyPlan, User
        from sfumato.privacy.plan import default_delta
        from sfumato.privacy.statements.statement import rounded_up

        epsilon, noise, steps, batch_size = self.epsilon, self.noise_multiplier, self.steps, self.batch_size
        if epsilon is None and noise is None:
            epsilon = defaults.EPSILON
        bounded = None not in (epsilon, noise, steps, batch_size)  # as by the rows of papers, which state it roundly
        solved = {
            "steps": None not in (epsilon, noise) and steps is None,
            "batch_size": None not in (epsilon, noise, steps),
        }
        heavy_ball = self.optimizer in (None, "momentum")
        momentum = 0.9 if self.momentum is None else self.momentum
        request = self._sized(source).request(
            source.examples, momentum=momentum if heavy_ball else 0.0, schedule=self.schedule, warmup=self.warmup
        )
        sizes = defaults.plan_rules(source.examples, request, batch_size=batch_size, steps=steps)
        unit, why = self._unit(source, request, sizes)
        population, units = source.examples, source.examples
        if isinstance(unit, User):
            units = source.users or 0
        if unit.drawn == "users":
            population, sizes = units, defaults.of_users(sizes, source.examples, units, request)
            if self.drawn is None and batch_size is not None:
                batch_size = defaults.users_like(batch_size, source.examples, units, request)
        elif self.unit == "user" and self.drawn is None and batch_size is not None:
            batch_size = min(batch_size, population)  # as many gradients as there are
        plan = PrivacyPlan.calibrate(
            examples=population,
            unit=unit,
            delta=default_delta(units) if self.delta is None else self.delta,
            batch_size=sizes["batch_size"].value if batch_size is None and not solved["batch_size"] else batch_size,
            steps=sizes["steps"].value if steps is None and not solved["steps"] else steps,
            noise_multiplier=noise,
            epsilon=None if bounded else epsilon,
            max_norm=1.0 if self.max_norm is None else self.max_norm,
            **request._asdict(),
        )
        given = {name: solved[name] or getattr(self, name) or None for name in sizes}
        reasons = [*why, *defaults.reasons(sizes, given)]
        if bounded:
            if plan.epsilon() > positive("epsilon", epsilon):
                raise SfumatoError(
                    f"noise multiplier {noise:g}, {steps} steps and batch size {batch_size} come to epsilon "
                    f"{rounded_up(plan.epsilon())}, above epsilon {epsilon:g}",
                    "give more noise, fewer steps or a smaller batch",
                )
            reasons.append(
                f"note: noise multiplier {noise:g} comes to epsilon {rounded_up(plan.epsilon())}, within {epsilon:g}"
            )
        return plan, reasons

    def _sized(self, source: Source) -> Experiment:
        """With the number of examples in a drift's second group, counted where nothing was declared."""
        from sfumato.experiment import drift

        if self.drift is None or self.drift_size is not None:
            return self
        return replace(self, drift_size=drift.counted_size(source, self.drift_groups or ()))

    def _unit(self, source: Source, request: Request, sizes: Mapping[str, Any]) -> tuple[Example | User, list[str]]:
        """The unit, with the reason for what is drawn."""
        from sfumato.experiment import defaults, users
        from sfumato.privacy import Example

        if self.unit != "user":
            return Example(), []
        drawn, why = self.drawn, []
        if drawn is None:
            drawn, why = users.drawn_by_rule(
                source,
                request,
                gradients=self.batch_size or sizes["batch_size"].value,
                steps=self.steps or sizes["steps"].value,
                epsilon=defaults.EPSILON if self.epsilon is None else self.epsilon,
                delta=self.delta,
                noise_multiplier=self.noise_multiplier,
            )
        return users.unit_of(source, drawn), [*users.reasons(source, self.per_user), *why]

    @property
    def _rarest(self) -> float | None:
        """The share of the rarest class, where shares are declared."""
        from sfumato.experiment.class_weights import declared

        return None if self.class_prevalence is None else min(declared(self.class_prevalence).values())

    def _remarks(self, plan: PrivacyPlan, source: Source) -> list[str]:
        """What should be known of the plan before it is paid for."""
        from sfumato.experiment import defaults, drift, users
        from sfumato.privacy.planning import remarks

        notes = [remarks.above_one_record(plan), remarks.uneven(plan), drift.misdeclared(source, plan)]
        what, counted = users.counted(source, plan)
        if not 0.8 * counted <= plan.population <= 1.25 * counted:
            order = getattr(plan.participation, "assignment", None)
            sizes = {
                "position": f"and the first {plan.population} places alone have bins",
                "time": f"but the sums of steps, however many their time stamps bring, are divided by "
                f"{plan.expected_batch_size}",
            }
            notes.append(
                f"{plan.population} {what} are declared, and the data hold {counted}; the promise holds as stated, "
                + sizes.get(
                    order or "",
                    f"but steps have about {counted * plan.sampling_probability:.0f} {what}, and are divided by "
                    f"{plan.expected_batch_size}",
                )
            )
        if not source.multilabel:  # trials have shown what signals are worth for classes alone
            notes.append(remarks.weak_signal(plan, len(source.classes)))
        notes.append(defaults.by_hand(self.model, self.pretrained, source.examples))
        notes.append(users.several_of_one(source, plan))
        if self.trainable and "all" not in self.trainable and self.pretrained is None and source.cache is None:
            notes.append("only a part is trained, and no pre-trained weights are given: the rest stays random")
        notes.append(defaults.cut_off(source.cropped_share))
        lines = [f"note: {note}" for note in notes if note is not None]
        images = source.cache is None and source.tokens is None
        if images and source.size_rule != "declared":
            colours = "grey" if source.channels == 1 else "colour"
            lines.append(f"by rule: size {source.size} ({source.size_rule}), {colours}")
        if self.model in (None, "scattering") and images and not source.multilabel:
            lines.append(f"forecast: {remarks.forecast(plan, len(source.classes), self._rarest)}")
        if self.delta is None:
            counted_as, of = plan.epsilon(min(0.5, 1 / plan.units)), "" if plan.users is None else ", N users"
            lines.append(
                f"by rule: delta {plan.delta:g} (at most 1e-5 and 1/(10 N){of}); at 1/N, where a record may be "
                f"published as it is, the same noise would count as epsilon {counted_as:.3g}"
            )
        return lines


def rates_of(schedule: str | None, warmup: int | None) -> Callable[[int], tuple[float, ...]] | None:
    """Of a number of steps, the factor of the learning rate in each; None for a constant one."""
    if schedule in (None, "constant") and not warmup:
        return None
    from sfumato import optim

    def rates(steps: int) -> tuple[float, ...]:
        factor = optim.schedule(schedule or "constant", steps=steps, warmup=min(warmup or 0, steps - 1))
        return tuple(map(factor, range(steps)))

    return rates


def experiment_of(
    settings: Settings | None, model: str | None, averaging: EMA | None, choices: Mapping[str, Any]
) -> Experiment:
    """What a call without a plan asks for: the budget among the choices, and settings as such or as their fields."""
    of_plan = {one.name for one in (*fields(Budget), *fields(PairOfRecords), *fields(Units))}
    budget = {name: value for name, value in choices.items() if name in of_plan}
    others = {name: value for name, value in choices.items() if name not in of_plan}
    if settings is not None:
        return of_fields(Experiment, {**asdict(settings_of(settings, model, averaging, others)), **budget})
    return of_fields(Experiment, {**_averages(averaging, others), "model": model, **others, **budget})


def refuse_budget(choices: Mapping[str, Any]) -> None:
    """Refuse parts of a budget beside a plan, which has them already."""
    both = [one.name for one in (*fields(Budget), *fields(PairOfRecords), *fields(Units)) if one.name in choices]
    if both:
        raise SfumatoError(f"a plan and {', '.join(both)} are both given", "give the plan, or a budget without it")


def settings_of(
    settings: Settings | None,
    model: str | None,
    averaging: EMA | None,
    choices: Mapping[str, Any],
    source: Source | None = None,
) -> Settings:
    """The settings that were given as such, or as their fields; the loss by rule is the source's."""
    from sfumato.experiment.settings import Settings
    from sfumato.models.losses import MULTILABEL

    if settings is None:
        named = {} if model is None else {"model": model}
        by_rule = {"loss": MULTILABEL} if source is not None and source.multilabel else {}
        return of_fields(Settings, {**_averages(averaging, choices), **named, **by_rule, **choices})
    if choices:
        raise SfumatoError(f"settings and {', '.join(choices)} are both given", "give settings, or their fields")
    if model not in (None, settings.model):
        raise SfumatoError(f"the model is {model}, and that of the settings {settings.model}", "name one model")
    return settings


def _averages(averaging: EMA | None, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The average as fields of `Settings`; the one that stands where none was given makes way for uta."""
    from sfumato.averaging import EMA

    if averaging is None or (choices.get("aggregate") == "uta" and averaging == EMA()):
        return {"ema": 0.0}
    constant = {} if averaging == EMA(averaging.decay) else {"ema_form": averaging.form}
    return {"ema": averaging.decay, **constant}


def of_fields(kind: Callable[..., Kind], choices: Mapping[str, Any]) -> Kind:
    """Settings, or an experiment, with these fields; others are refused, and a near one is named."""
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    for name in choices:
        if name not in known:
            near = [SHORT[name]] if SHORT.get(name) in known else difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}" if near else f"give {', '.join(known)}"
            if name in OF_OPTIMIZERS:
                remedy = f"leave it out: {THEIR_OWN.format('momentum', 'weight_decay', 'learning_rate')}"
            if name in OF_SOURCES:
                remedy = (
                    f"give it to sfumato.open_source, and the source in place of its name: open_source(..., {name}=...)"
                )
            raise SfumatoError(f"{name} is no field of {getattr(kind, '__name__', kind)}", remedy)
    missing = [name for name, one in known.items() if one.default is MISSING and name not in choices]
    if missing:
        raise SfumatoError(f"{', '.join(missing)} must be given beside a plan", "give it, or no plan but a budget")
    return kind(**choices)
