"""What all statements have, whatever they promise: a sentence, its data, a card in a notebook."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from sfumato._cards import card
from sfumato.privacy.statements.rounding import rounded_up


class Presented:
    """A statement as its readers meet it."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """What is promised, or that nothing is."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The statement as JSON-ready data."""

    def _repr_html_(self) -> str:
        data = self.to_dict()
        epsilon = data["epsilon"]
        figures = [("epsilon", "none")]
        if epsilon is not None:
            figures = [("epsilon", rounded_up(epsilon)), ("delta", repr(data["delta"]))]
        lines = (f"Not covered ({len(data['not_covered'])})", data["not_covered"])
        return card("Statement", figures, data["sentence"], more=lines)
