"""Training without privacy: a type of its own, so that no switch of a private run could lead there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato.privacy.statement import FILTERED_ORIGINS, PRIVATE_ORIGINS


@dataclass(frozen=True, kw_only=True)
class NoPromise:
    """The statement of a model that was trained without any privacy, on data declared public.

    **Guarantee.** None, for any unit and adjacency, and it says so.

    Args:
        published: whether the data are a published collection; otherwise their owner declared them public.
        pretrained: where the initial weights came from: None or one of `statement.ORIGINS`.
        filtered: whether the data were filtered by looking at private data.

    >>> NoPromise(published=True).sentence.split(":")[0]
    'This model promises nothing'
    """

    published: bool
    pretrained: str | None = None
    filtered: bool = False

    @property
    def sentence(self) -> str:
        """That nothing is promised."""
        data = "a published collection" if self.published else "data that their owner declared public"
        return (
            f"This model promises nothing: it was trained without privacy on {data}, and may reveal any example of "
            "them. It may be the start of private training on other data."
        )

    def to_dict(self) -> dict[str, Any]:
        """The statement as JSON-ready data; epsilon is null."""
        lines = ["Everything. Private data must not be trained on in this way."]
        if self.pretrained in PRIVATE_ORIGINS:
            lines.append(
                "A private run stands behind the weights that this training began with: that run's own statement "
                "speaks for its data, and where the same data are used again, epsilons add up."
            )
        if self.filtered or self.pretrained in FILTERED_ORIGINS:
            lines.append(
                "The data, or those behind the weights that this training began with, were filtered by looking at "
                "private data. What was left out tells of those, without noise."
            )
        return {
            "sentence": self.sentence,
            "plain": [
                "There is no privacy here: whoever sees the model may learn of any training example that it was used, "
                "and perhaps what it shows."
            ],
            "not_covered": lines,
            "epsilon": None,
            "delta": None,
            "published": self.published,
            "pretrained": self.pretrained,
            "filtered": self.filtered,
        }
