"""What a run is, besides its plan: the choices that shape the model, and those that only shape the computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sfumato import models
from sfumato._checks import SfumatoError, not_negative, number, one_of, positive, positive_integer
from sfumato.data import Views
from sfumato.experiment import class_weights
from sfumato.models.losses import LOSSES

AGGREGATES = ("ema", "uta")
LAST = 5
PUBLIC_EXAMPLES = 128
"""k of uta where none is given: as few copies of the weights as still average the noise of steps."""
LARGEST_RATE = 3e38
"""Float32 ends there."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Choices that shape the model. None of them changes epsilon.

    Args:
        model: a name that `models.create` knows, or "module" for an object of the caller's own.
        pretrained: where initial weights come from: None, "timm" or a path.
        pretrained_weights: which of a run's weights: None for those that it has released, "ema" or "last".
        head: "new" for a classifier of zeros on pre-trained weights, "pretrained" for the one that they bring.
        head_deviation: of the Gaussian that a new head's weights are drawn from; None for zeros, or for what the model
            itself begins with where nothing is pre-trained.
        head_bias: what a new head's biases begin with; None likewise.
        loss: "softmax", or "sigmoid" for one yes-or-no question per class; "multilabel" where none, one or many of the
            classes are true of a record, and for such records alone.
        class_prevalence: each class's declared share where the model is to be used, by name, or as texts such as
            "normal=0.98": examples count the less the more frequent their class (`class_weights`). None for all alike.
        pretrained_rate: by what the learning rate of all layers but the classifier is multiplied (alpha of Mehta et al.
            2022, table 7).
        trainable: which parameters are trained, as `models.select` takes them; none for what the model itself says.
        optimizer: a name that `optim.create` knows.
        learning_rate: for gradients that are divided by the clipping norm (De 2022, equation 3).
        momentum: heavy-ball coefficient, or first beta of the Adam family.
        weight_decay: L2 coefficient.
        schedule: "constant", "cosine", "linear" or "step".
        warmup: steps of linear warm-up.
        views: K, augmented copies of an example whose mean gradient is clipped.
        shift: by how many pixels a view may be moved.
        flip: whether a view may be mirrored.
        zoom: how much larger than a view the image is that it is cut out of; 1 for none.
        crop_area: the least share of the image's area that a random crop shows (`Views`); 1 for no random crops.
        ema: decay of the weights' moving average (De 2022, appendix C.3); 0 keeps the last weights.
        ema_form: "warm-up" or "constant" (`EMA`).
        aggregate: what gradients are taken at instead of the last weights: None, "ema" for the moving average, or "uta"
            for the mean of the last ones, which is then released as well (`TrainingOver`).
        aggregate_from: tau, the first step for which that is so.
        aggregate_last: k of uta; 5 where it is None.
        aggregate_restart: whether a step starts at the aggregate too.
        normalisation: what stands in the place of the model's normalisation layers (`models.normalised`).
        public_data: the public source whose examples it takes, where it takes some.
        public_examples: M, how many.
        seed: None for a secret run key; a number for experiments, which voids the promise to whoever knows it.
    """

    model: str
    learning_rate: float
    optimizer: str = "momentum"
    pretrained: str | None = None
    pretrained_weights: str | None = None
    head: str = "new"
    head_deviation: float | None = None
    head_bias: float | None = None
    loss: str = "softmax"
    class_prevalence: Mapping[str, float] | None = None
    pretrained_rate: float = 1.0
    trainable: tuple[str, ...] = ()
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup: int = 0
    views: int = 1
    shift: int = 0
    flip: bool = False
    zoom: float = 1.0
    crop_area: float = 1.0
    ema: float = 0.9999
    ema_form: str = "warm-up"
    aggregate: str | None = None
    aggregate_from: int = 0
    aggregate_last: int | None = None
    aggregate_restart: bool = False
    normalisation: str | None = None
    public_data: str | None = None
    public_examples: int = PUBLIC_EXAMPLES
    seed: int | None = None

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate, remedy="give a number such as 0.5")
        one_of("head", self.head, models.HEADS)
        if self.head == "pretrained" and self.pretrained is None:
            raise SfumatoError("head is pretrained, but no pre-trained weights are given", "give them, or head new")
        if self.pretrained_weights is not None and self.pretrained in (None, "timm"):
            raise SfumatoError(
                f"pretrained_weights is {self.pretrained_weights}, and pretrained is {self.pretrained or 'not given'}",
                "name a run of sfumato pretrain, or leave pretrained_weights out",
            )
        one_of("loss", self.loss, LOSSES)
        if self.class_prevalence is not None:
            object.__setattr__(self, "class_prevalence", class_weights.declared(self.class_prevalence))
        positive("pretrained_rate", self.pretrained_rate, remedy="give a number such as 0.1")
        if self.learning_rate * max(1.0, self.pretrained_rate) > LARGEST_RATE:
            raise SfumatoError(
                f"learning_rate {self.learning_rate!r} is more than the numbers of a model hold", "give one such as 0.5"
            )
        if self.head_deviation is not None:
            not_negative("head_deviation", self.head_deviation, remedy="give a small number such as 1e-3, or 0")
        if self.head_bias is not None:
            number("head_bias", self.head_bias, remedy="give a number such as -10")
        if self.head == "pretrained" and (self.head_deviation is not None or self.head_bias is not None):
            raise SfumatoError(
                "head is pretrained, but head_deviation or head_bias say how a new one begins", "leave one of them out"
            )
        if isinstance(self.trainable, str):
            raise SfumatoError(f"trainable must be a list of names, got {self.trainable!r}", "give it in brackets")
        object.__setattr__(self, "trainable", tuple(self.trainable))
        positive_integer("views", self.views, remedy="give the number of views of each example, such as 1 or 16")
        not_negative("shift", self.shift, remedy="give a number of pixels")
        self.view_rule  # noqa: B018 - refuses what the views refuse
        self._check_aggregate()
        self._check_normalisation()
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise SfumatoError(f"seed must be a whole number, got {self.seed!r}", "give a number such as 0")

    @property
    def view_rule(self) -> Views:
        """How the views of an example are made."""
        return Views(count=self.views, shift=self.shift, flip=self.flip, zoom=self.zoom, crop_area=self.crop_area)

    @property
    def initial_weights(self) -> str | None:
        """Where they really come from: None, "timm", or a path, that of the very file where a run has several."""
        if self.pretrained is None or self.pretrained_weights is None:
            return self.pretrained
        return models.weights_file(self.pretrained, self.pretrained_weights)

    def _check_aggregate(self) -> None:
        """Refuse averages that exclude each other, or that nothing would come of; k by rule."""
        if self.aggregate is None:
            given = {name: value for name, value in _asked(self).items() if name.startswith("aggregate_")}
            if given:
                raise SfumatoError(
                    f"{' and '.join(f'`{name}`' for name in given)} given, and gradients are taken at no average",
                    "give `aggregate=ema` or `aggregate=uta`, or leave them out",
                )
        else:
            one_of("aggregate", self.aggregate, AGGREGATES)
        if self.aggregate == "ema" and not self.ema:
            raise SfumatoError("aggregate is ema, and ema 0 keeps no moving average", "give an ema such as 0.9999")
        if self.aggregate == "uta" and self.ema:
            raise SfumatoError(
                f"aggregate is uta, which releases the mean of the last weights, and ema is {self.ema:g}",
                "give ema 0, or `aggregate=ema`",
            )
        if self.ema_form != "warm-up" and not self.ema:
            raise SfumatoError(
                f"`ema_form` is {self.ema_form}, and there is no moving average", "give `ema`, or leave it out"
            )
        if self.aggregate == "uta":
            last = LAST if self.aggregate_last is None else self.aggregate_last
            object.__setattr__(self, "aggregate_last", positive_integer("aggregate_last", last))
        elif self.aggregate_last is not None:
            raise SfumatoError(
                f"`aggregate_last` is {self.aggregate_last}, and a moving average has all weights",
                "give `aggregate=uta`, or leave it out",
            )
        if isinstance(self.aggregate_from, bool) or not isinstance(self.aggregate_from, int) or self.aggregate_from < 0:
            raise SfumatoError(
                f"aggregate_from must be the number of a step, got {self.aggregate_from!r}", "give one from 0"
            )

    def _check_normalisation(self) -> None:
        """Refuse an unknown normalisation, and public examples that are missing or not wanted."""
        kind = self.normalisation
        if kind is not None:
            one_of("normalisation", kind, models.KINDS)
        if kind in models.PUBLIC and self.public_data is None:
            raise SfumatoError(
                f"normalisation {kind} takes its statistics from public examples, and no public_data is given",
                "give a public source, such as npz:PATH, or another normalisation, such as group",
            )
        if kind not in models.PUBLIC and (self.public_data is not None or self.public_examples != PUBLIC_EXAMPLES):
            raise SfumatoError(
                f"public_data is {self.public_data}, and normalisation {kind or 'as the model has it'} takes none",
                f"give normalisation {models.PUBLIC[0]}, or leave it out",
            )
        positive_integer("public_examples", self.public_examples, remedy="give a number such as 128")

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back; what nobody asked for of `MAY_BE_ABSENT` is not in it.

        Keys of seeded runs, and what a ledger is bound to, are made of it.
        """
        known = asdict(self) | {"trainable": list(self.trainable)}
        asked = _asked(self)
        return {name: value for name, value in known.items() if name not in MAY_BE_ABSENT or name in asked}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Settings:
        """The settings that `to_dict` wrote."""
        return cls(**_known(cls, data, MAY_BE_ABSENT))


MAY_BE_ABSENT = (
    "class_prevalence",
    *("pretrained_weights", "ema_form", "crop_area"),
    *("aggregate", "aggregate_from", "aggregate_last", "aggregate_restart"),
    *("normalisation", "public_data", "public_examples"),
)
"""Fields of `Settings` that a record need not have: they stand in it where they differ from their defaults."""


def _asked(settings: Settings) -> dict[str, Any]:
    """Those of these fields that differ from their defaults."""
    defaults = {one.name: one.default for one in fields(settings) if one.name in MAY_BE_ABSENT}
    return {name: getattr(settings, name) for name, value in defaults.items() if getattr(settings, name) != value}


@dataclass(frozen=True, kw_only=True)
class Performance:
    """Choices that shape only the computation. None of them is in the plan, yet they change how sums are rounded, so
    they are pinned for the life of a run.

    Args:
        device: "cpu", "cuda" or "cuda:N".
        threads: CPU threads of torch.
        micro_batch: the most examples that are in memory at once.
        ways: how each site's gradient norms are computed (`ClippedGradient.ways`), as measured when the run began.
    """

    device: str = "cpu"
    threads: int = 1
    micro_batch: int = 64
    ways: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.ways, Mapping):
            raise SfumatoError(f"ways must be a mapping, got {self.ways!r}", "give those of a ClippedGradient")
        positive_integer("threads", self.threads)
        positive_integer("micro_batch", self.micro_batch)
        one_of("device", self.device.split(":")[0], ("cpu", "cuda"), remedy="give cpu, cuda or cuda:0")

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Performance:
        """The settings that `to_dict` wrote."""
        return cls(**_known(cls, data))


def _known(cls: type, data: Mapping[str, Any], may_be_absent: tuple[str, ...] = ()) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}
    odd = sorted((set(data) ^ names) - (set(may_be_absent) - set(data)))
    if odd:
        raise SfumatoError(
            f"the run's record of its {cls.__name__.lower()} has missing or unknown fields: {', '.join(odd)}",
            "restore settings.json from a copy, or start another run",
        )
    return dict(data)
