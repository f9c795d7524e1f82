"""What a statement mentions besides the plan, and the statements of training without privacy.

Facts read from data, the origin of weights, a search. Statements without a guarantee are separate types, so no switch
of a private run leads to them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from sfumato._checks import SfumatoError, fraction, not_negative, one_of, positive_integer
from sfumato.privacy.clipping import NoiseGrid
from sfumato.privacy.noisy_table import NoisyTable
from sfumato.privacy.statements.display import StatementBase

FACT_NAMES = {
    "examples": "the number of training examples",
    "drift": "how many training examples each of the two alternating groups has",
    "users": "the number of persons",
    "groups": "the number of groups of persons",
    "classes": "the list of classes",
    "size": "the image size",
    "channels": "whether the images are grey or in colour",
    "left_out": "how many files were left out because no image could be read from them",
}

_TRAINED = "The initial weights. They come from"
ORIGINS = {
    "filtered data": f"{_TRAINED} data that were filtered by looking at private data without noise. No guarantee here "
    "covers what the filter reveals.",
    "private run": f"{_TRAINED} another private run, whose own statement covers its data. If both runs used the same "
    "data, their epsilons add up.",
    "seeded run": f"{_TRAINED} a seeded run, which has no guarantee. They may reveal any record of its data.",
    "unknown": "The features. They were computed elsewhere: sfumato cannot check on what their network was trained, or "
    "that each row depends on its own record alone.",
    "own model": "Your model's initial weights. If they were trained on private data, this guarantee does not cover "
    "that.",
    "file": f"{_TRAINED} one of the owner's files. The data behind them are taken as public.",
    "public run": f"{_TRAINED} training without privacy, on data that their owner declared public.",
    "public images": "The images that whiten the features. Their owner declared them public.",
    "timm": f"{_TRAINED} timm. The data behind them are taken as public.",
    "torchvision": f"{_TRAINED} torchvision. The data behind them are taken as public.",
    "synthetic images": "The fixed features. They were made from synthetic images and a public seed, without any real "
    "image.",
}
"""Possible origins of a model's first weights, or of the features it is trained on. Several may apply."""
FILTERED = (
    "The choice of the training data. They were filtered by looking at private data without noise, so what was left "
    "out reveals something about the private data."
)


PREPARATION = "preparation of the data"
OWN_CODE = ("loss", "optimizer", PREPARATION)
"""Parts of a run, besides the model, that may be the owner's own code."""

_LISTS = ("read", "origins", "kept", "own_code")
_IF_ANY = ("steps_copied",)


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for settings on the same data that no theorem here covers.

    Args:
        runs: the number of runs in the search, including the statement's own.
        epsilon: the composed epsilon of all of them, had they been planned in advance.
        delta: the delta of that epsilon.
    """

    runs: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive_integer(runs=self.runs, remedy="give the number of runs of the search")
        if self.epsilon != math.inf:
            not_negative(epsilon=self.epsilon, remedy="give the composed epsilon of the runs")
        fraction(delta=self.delta, remedy="give the delta of the composed epsilon")

    def __add__(self, other: Search) -> Search:
        """Both searches together, by basic composition: epsilons and deltas add up.

        >>> Search(runs=2, epsilon=1.0, delta=1e-5) + Search(runs=1, epsilon=0.5, delta=1e-5)
        Search(runs=3, epsilon=1.5, delta=2e-05)
        """
        return Search(runs=self.runs + other.runs, epsilon=self.epsilon + other.epsilon, delta=self.delta + other.delta)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """The facts that a statement must mention besides the plan. None may depend on the private data's content.

    Args:
        read: the facts that were read from the data instead of declared: some of `FACT_NAMES`.
        data_public: the owner declared the training data public.
        test_public: the test split's data are public, so figures measured on it reveal nothing private.
        seeded: the run key was derived from a seed, so there is no guarantee.
        key_bits: the width of the secret from which all randomness is drawn.
        noise_sampler: how the noise was generated.
        origins: the sources of the initial weights or of the features: some of `ORIGINS`.
        filtered: the training data were chosen by looking at private data without noise.
        steps_taken: the number of the plan's steps that were taken, if the run ended early.
        search: the search that the run's settings came from, unless the search was on public data.
        published: the training data are a published collection, so no owner has to declare them public.
        kept: the steps after which the weights are released too, besides the model.
        public_examples: the number of public examples whose statistics normalise the model.
        public_filtered: whether these were chosen by looking at private data.
        tokens: for texts, a description of how they became numbers.
        figures: the noisy table of the test part, whose figures may be published; None if there is none.
        class_prevalence: the declared share of each class; examples are weighted by its inverse. Empty if all have the
            same weight.
        noise_grid: the grid of secure noise; None for floating-point noise.
        own_loop: the steps were taken inside the owner's own training loop.
        own_code: which of `OWN_CODE` were the owner's own code.
        steps_lost: the number of paid steps that did not change the model because they could not be repeated.
        steps_copied: the number of steps that other copies of the run may have taken. Recorded only if there are some.
        rounds: the number of times that the site exchanges weights with others; 0 outside a federation.
    """

    read: tuple[str, ...] = ()
    data_public: bool = False
    test_public: bool = False
    seeded: bool = False
    key_bits: int = 256
    noise_sampler: str = "float64 Gaussian (Philox counter generator, ziggurat), rounded to float32"
    origins: tuple[str, ...] = ()
    filtered: bool = False
    steps_taken: int | None = None
    search: Search | None = None
    published: bool = False
    kept: tuple[int, ...] = ()
    public_examples: int = 0
    public_filtered: bool = False
    tokens: str | None = None
    figures: NoisyTable | None = None
    class_prevalence: tuple[tuple[str, float], ...] = ()
    noise_grid: NoiseGrid | None = None
    own_loop: bool = False
    own_code: tuple[str, ...] = ()
    steps_lost: int = 0
    steps_copied: int = 0
    rounds: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("read", FACT_NAMES), ("origins", ORIGINS), ("own_code", OWN_CODE)):
            for value in getattr(self, name):
                one_of(allowed, **{name: value})

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        data = asdict(self) | {name: list(getattr(self, name)) for name in _LISTS}
        data["class_prevalence"] = dict(self.class_prevalence)
        data["figures"] = None if self.figures is None else self.figures.to_dict()
        return {name: value for name, value in data.items() if value or name not in _IF_ANY}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Circumstances:
        """The circumstances that `to_dict` wrote."""
        try:
            search = None if data["search"] is None else Search(**data["search"])
            lists = {name: tuple(data[name]) for name in _LISTS}
            lists["class_prevalence"] = tuple(data["class_prevalence"].items())
            figures = None if data["figures"] is None else NoisyTable.from_dict(data["figures"])
            grid = None if data["noise_grid"] is None else NoiseGrid(**data["noise_grid"])
            typed = {field.name: {"bool": bool, "int": int, "str": str}.get(str(field.type)) for field in fields(cls)}
            if {*data, *_IF_ANY} != {*typed} or any(typed[name] not in (None, type(data[name])) for name in data):
                raise KeyError
            values: dict[str, Any] = {**data, **lists, "search": search, "figures": figures, "noise_grid": grid}
            return cls(**values)
        except (AttributeError, TypeError, KeyError):
            raise SfumatoError(
                "circumstances have missing, unknown or ill-typed fields", "restore the run's own record"
            ) from None


_NAMED = ("filtered data", "private run", "synthetic images")
"""The origins of weights that a statement without a guarantee names."""
OPENING = "This model has no privacy guarantee: it was trained"


@dataclass(frozen=True, kw_only=True)
class NoGuarantee(StatementBase):
    """The statement of a model that was trained without any privacy, on data declared public.

    **Guarantee.** None, for any unit and adjacency, and the statement says so.

    Args:
        published: whether the data are a published collection; otherwise their owner declared them public.
        origins: the sources of the initial weights: some of `circumstances.ORIGINS`.
        filtered: whether the data were filtered by looking at private data.
    >>> NoGuarantee(published=True).sentence.split(":")[0]
    'This model has no privacy guarantee'
    """

    published: bool
    origins: tuple[str, ...] = ()
    filtered: bool = False

    @property
    def sentence(self) -> str:
        return (
            f"{OPENING} without privacy on {self._data}, and may reveal any example of them. It may be the start of "
            "private training on other data."
        )

    @property
    def _data(self) -> str:
        return "a published collection" if self.published else "data that their owner declared public"

    def to_dict(self) -> dict[str, Any]:
        named = [words for name, words in ORIGINS.items() if name in self.origins and name in _NAMED]
        return {
            "sentence": self.sentence,
            "plain": [
                "There is no privacy here. Whoever sees the model may learn that any training example was used, and "
                "perhaps what it shows."
            ],
            "not_covered": [
                "Everything. Private data must not be trained on in this way.",
                *([FILTERED] if self.filtered else []),
                *named,
            ],
            "promises": False,
            "epsilon": None,
            "delta": None,
            "published": self.published,
            "origins": list(self.origins),
            "filtered": self.filtered,
        }


@dataclass(frozen=True, kw_only=True)
class ClippedWithoutNoise(NoGuarantee):
    """The statement of a model that was trained with clipped updates but without noise.

    **Guarantee.** None. Clipping bounds the contribution of one user to a sum; without noise the sum still reveals it.

    Args:
        method: the training method.
    """

    method: str

    @property
    def sentence(self) -> str:
        return (
            f"{OPENING} by {self.method}, with clipped updates and without noise, on {self._data}. Clipping "
            "alone protects nobody: the model may reveal any example of them. It may be the start of private training "
            "on other data."
        )

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"method": self.method}


@dataclass(frozen=True, kw_only=True)
class DisprovedClaim(NoGuarantee):
    """The statement of a model that was trained by a published method whose privacy claim does not hold.

    **Guarantee.** None. The method's claim is reported as one that does not hold, next to an epsilon of null.

    Args:
        method: the name of the published method.
        claimed: the (epsilon, delta) that its accounting would state.
        reason: why the claim does not hold.
    """

    method: str
    claimed: tuple[float, float]
    reason: str

    @property
    def sentence(self) -> str:
        epsilon, delta = self.claimed
        return (
            f"{OPENING} by {self.method}, whose claim, here epsilon {epsilon:.3g} at delta {delta:g}, does not hold: "
            f"{self.reason}. It may reveal any example that it was trained on."
        )

    def to_dict(self) -> dict[str, Any]:
        epsilon, delta = self.claimed
        return super().to_dict() | {
            "claimed": {"epsilon": epsilon, "delta": delta},
            "status": "claimed, does not hold",
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class NoPrivateData(NoGuarantee):
    """The statement of a model without any training: it is a public function, whatever the data contain.

    **Guarantee.** None is claimed and none is needed: no record was read to make the model. No epsilon is stated,
    because nothing was released to which it could apply.

    Args:
        test_public: whether the images on which it was measured are public.
        read: the facts that determine the model and were read from the data: some of `FACT_NAMES`.

    >>> NoPrivateData(published=False).sentence.split(":")[0]
    'This model has used no private data'
    """

    test_public: bool = False
    read: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        behind = " For the data behind the weights of its features, see what is not covered." if self.origins else ""
        return (
            "This model has used no private data: it consists of fixed features and a public projection of them, the "
            f"same whatever the data contain. Nothing was trained, and no budget was spent.{behind}"
        )

    def to_dict(self) -> dict[str, Any]:
        data = super().to_dict()
        lines = [f"Read from the data and treated as public: {FACT_NAMES[name]}." for name in self.read]
        if not self.test_public:
            lines.append("Figures and images of the test part. They have no noise, wherever they are shown.")
        return data | {
            "plain": [
                "Whoever sees the model learns nothing about anybody's images. It would be the same without them.",
                "There is no epsilon, and none of the data's budget is spent.",
            ],
            "not_covered": [*lines, *(ORIGINS[name] for name in self.origins)],
            "test_public": self.test_public,
            "read": list(self.read),
        }
