"""Statements of training without privacy. They are separate types, so no switch of a private run leads here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato.privacy.statements.circumstances import FACT_NAMES, FILTERED, ORIGINS
from sfumato.privacy.statements.display import StatementBase

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
