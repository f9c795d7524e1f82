"""What a run is, besides its plan: the choices that shape the model, and those that only shape the computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sfumato import _devices
from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato._choices import OfParts, choice, recorded
from sfumato.averaging.averages import Averages
from sfumato.data.images.augmentation import Augmentation
from sfumato.experiment.budget import NOISES, STANDARD
from sfumato.models.choices import Network, Norms, Objective
from sfumato.optim.descent import Descent

if TYPE_CHECKING:
    from sfumato.data import Views


@dataclass(frozen=True, kw_only=True, init=False)
class Settings(OfParts):
    """Choices that shape the model. None of them changes epsilon.

    They are given flat, `Settings(model="wrn-16-4", learning_rate=4.0, shift=4)`, or by the parts that they are made
    of, `Settings(network=Network(model="wrn-16-4"), ...)`. docs/reference.md has them all.

    Args:
        network: the model and its first weights; "module" for an object of the caller's own.
        objective: the loss, and class weights.
        descent: optimizer, learning rate and schedule.
        augmentation: views of an example.
        averages: averages of the weights over the steps.
        norms: what stands in the place of the model's normalisation layers.
        noise: "standard", or "secure": rounded correctly to a public grid, and drawn by a cryptographic generator.
        seed: None for a secret run key; a number for experiments, which promise nothing.
    """

    network: Network
    objective: Objective
    descent: Descent
    augmentation: Augmentation
    averages: Averages
    norms: Norms
    noise: str = choice(STANDARD)
    seed: int | None = None

    def __init__(self, **given: Any):
        super().__init__(**given)
        one_of("noise", self.noise, NOISES, remedy="choose one of these; `noise_multiplier` says how much noise")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise SfumatoError(f"seed must be a whole number, got {self.seed!r}", "give a number such as 0")

    def flat(self) -> dict[str, Any]:
        """Every choice by its own name; first those that most wish to know."""
        known = super().flat()
        return {name: known[name] for name in ("model", "learning_rate", "optimizer")} | known

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.network.model

    @property
    def views(self) -> Views:
        """How the views of an example are made."""
        return self.augmentation.rule()


@dataclass(frozen=True, kw_only=True)
class Performance:
    """Choices that shape only the computation. None of them is in the plan, yet they change how sums are rounded. A run
    goes on with those that it began with; on another device or with other threads it says so.

    Args:
        device: "cpu", or an accelerator as torch names it: "cuda", "cuda:N", "xpu".
        threads: CPU threads of torch.
        micro_batch: the most examples that are in memory at once.
        precision: what matrix products and convolutions of a step are computed in; norms, sums and noise stay as
            precise.
        methods: how each site's gradient norms are computed (`ClippedGradient.methods`), measured when the run began.
    """

    device: str = "cpu"
    threads: int = 1
    micro_batch: int = 64
    precision: str = "float32"
    methods: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.methods, Mapping):
            raise SfumatoError(f"methods must be a mapping, got {self.methods!r}", "give those of a ClippedGradient")
        positive_integer("threads", self.threads)
        positive_integer("micro_batch", self.micro_batch)
        one_of("precision", self.precision, _devices.PRECISIONS)
        _devices.checked(self.device)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Performance:
        """The settings that `to_dict` wrote."""
        return cls(**recorded(cls, data))
