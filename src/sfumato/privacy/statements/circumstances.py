"""What a statement must say of a run beyond its plan: facts that were read, where its weights come from, a search."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from sfumato._checks import SfumatoError, fraction, not_negative, one_of, positive_integer
from sfumato.privacy.noise_grid import NoiseGrid
from sfumato.privacy.noisy_table import NoisyTable

FACT_NAMES = {
    "examples": "the number of training examples",
    "drift": "how many training examples each of the two groups has that take turns",
    "users": "the number of persons",
    "groups": "the number of groups of persons",
    "classes": "the list of classes",
    "size": "the image size",
    "channels": "whether the images are grey or in colour",
    "left_out": "how many files were left out, since no image could be read from them",
}

ORIGINS = {
    "filtered data": "from training on data that were filtered by looking at private data): the filter is a function "
    "of those without noise, which no promise here covers",
    "private run": "from another private run), for which that run's own statement speaks: where both have used the "
    "same data, their epsilons add up",
    "seeded run": "from a run by a seed), which promises nothing: they may show any record of its data",
    "unknown": "behind features that were made elsewhere), and whether each row was made of its own record alone: for "
    "both their owner answers",
    "own model": "of a model of the owner's own), where it begins with such: for what its first weights tell, its "
    "owner answers",
    "file": "from a file of the owner), which are taken as public",
    "public run": "from training without privacy), which their owner declared public",
    "timm": "from timm), which are taken as public",
    "torchvision": "from torchvision), which are taken as public",
    "synthetic images": "of fixed features: synthetic images from a public seed), into which no real image has gone",
}
"""What may stand behind a model's first weights, or behind the features it is trained on; several of them may."""


OWN_CODE = ("loss", "optimizer")
"""What of a run may be code of its owner's own, besides the model."""

_LISTS = ("read", "origins", "kept", "own_code")
_SHARES = ("class_prevalence", "prevalence", "training_prevalence")


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for settings on the same data that no theorem here covers.

    Args:
        runs: how many runs it made, the one that the statement is about included.
        epsilon: what all of them cost together by composition, had they been planned in advance.
        delta: the delta of that figure.
    """

    runs: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive_integer("runs", self.runs, remedy="give the number of runs of the search")
        if self.epsilon != math.inf:
            not_negative("epsilon", self.epsilon, remedy="give what the runs cost together")
        fraction("delta", self.delta, remedy="give the delta of the runs' common epsilon")

    def __add__(self, other: Search) -> Search:
        """Both together, by basic composition: epsilons and deltas add up.

        >>> Search(runs=2, epsilon=1.0, delta=1e-5) + Search(runs=1, epsilon=0.5, delta=1e-5)
        Search(runs=3, epsilon=1.5, delta=2e-05)
        """
        return Search(runs=self.runs + other.runs, epsilon=self.epsilon + other.epsilon, delta=self.delta + other.delta)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What a statement must say about a run beyond its plan. Nothing here may depend on the private data's content.

    Args:
        read: which of "examples", "users", "classes", "size", "channels" were read from the data instead of declared.
        data_public: the owner declared the training data public.
        test_public: the test split's data are public, so figures measured on it reveal nothing private.
        seeded: the run key was derived from a seed: nothing is promised.
        key_bits: the width of the secret from which every draw was made.
        noise_sampler: how the noise was made.
        origins: what stands anywhere behind the initial weights, or behind the features: some of `ORIGINS`.
        filtered: the training data were chosen by looking at private data without noise.
        steps_taken: how many of the plan's steps were taken, where the run ended early.
        search: the search that the run's settings came from, where it is not covered: in no private selection, and not
            on public data.
        published: the training data are a published collection, which nobody had to declare public.
        kept: after which steps the weights are released too, beside the model.
        public_examples: how many public examples the model normalises by.
        public_filtered: whether these were chosen by looking at private data.
        tokens: of texts, how they became numbers, in words.
        figures: the noisy table of the test part, whose figures may be published; None for none.
        calibrated_on_public: the model's temperature was fitted on data that their owner declared public.
        class_prevalence: the declared share of each class, by whose inverse its examples are weighted; empty where all
            weigh alike.
        prevalence: the declared share of each class where the model is to be used, to which its scores are moved.
        training_prevalence: the same in the training data, from which they are moved.
        noise_grid: of secure noise; None for noise of floating-point numbers.
        audit: how many canaries there were, records of nobody's of which coins put about half among the examples.
        own_loop: the steps were taken within a training loop of the owner's own code.
        own_code: which of "loss" and "optimizer" were code of the owner's own.
        steps_lost: how many of the steps that are paid moved nothing, since they could not be taken again.
        audit_directions: these were directions of the weights, and about half of them was added to the sums.
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
    calibrated_on_public: bool = False
    class_prevalence: tuple[tuple[str, float], ...] = ()
    prevalence: tuple[tuple[str, float], ...] = ()
    training_prevalence: tuple[tuple[str, float], ...] = ()
    noise_grid: NoiseGrid | None = None
    audit: int = 0
    own_loop: bool = False
    own_code: tuple[str, ...] = ()
    audit_directions: bool = False
    steps_lost: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.read) - set(FACT_NAMES)
        if unknown:
            raise SfumatoError(f"read names unknown facts {sorted(unknown)}", f"use {', '.join(FACT_NAMES)}")
        for name in self.origins:
            one_of("origins", name, tuple(ORIGINS))
        for name in self.own_code:
            one_of("own_code", name, OWN_CODE)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        data = asdict(self) | {name: list(getattr(self, name)) for name in _LISTS}
        data |= {name: dict(getattr(self, name)) for name in _SHARES}
        data["figures"] = None if self.figures is None else self.figures.to_dict()
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Circumstances:
        """The circumstances that `to_dict` wrote."""
        try:
            search = None if data["search"] is None else Search(**data["search"])
            lists = {name: tuple(data[name]) for name in _LISTS}
            lists |= {name: tuple(data[name].items()) for name in _SHARES}
            figures = None if data["figures"] is None else NoisyTable.from_dict(data["figures"])
            grid = None if data["noise_grid"] is None else NoiseGrid(**data["noise_grid"])
            if set(data) != {one.name for one in fields(cls)}:
                raise KeyError
            known: dict[str, Any] = {**data, **lists, "search": search, "figures": figures, "noise_grid": grid}
            return cls(**known)
        except (AttributeError, TypeError, KeyError):
            raise SfumatoError("circumstances have missing or unknown fields", "restore the run's own record") from None
