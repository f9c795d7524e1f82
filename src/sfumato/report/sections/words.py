"""The evaluation of next-word prediction, as plain data, and its part of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sfumato.report.plots.drawing import render
from sfumato.report.sections.multilabel import FigureInterval
from sfumato.report.sections.numbers import percent


@dataclass(frozen=True, kw_only=True)
class WordEvaluation:
    """The results of next-word prediction on the test split.

    Attributes:
        accuracy: the share of correctly predicted words, without padding, unknown words and ends of texts.
        top5: the share of these words that are among the five likeliest.
        loss: the mean cross-entropy over all words, unknown words and ends of texts included, in nats; None if it is
            not finite.
        texts: the number of test texts.
        users: the number of their users; None if unknown.
        words: the number of words that count for `accuracy`.
        all_words: the number of all words, unknown words and ends of texts included.
        accuracy_of_all: the share of correct predictions among all of these.
        majority: the accuracy of always predicting the most frequent word.
        over_steps: the variation over the last steps (`StepSpread`), as plain data; None if no weights were kept.
    """

    accuracy: FigureInterval
    top5: float
    loss: float | None
    texts: int
    users: int | None
    words: int
    all_words: int
    accuracy_of_all: float
    majority: float
    over_steps: Mapping[str, Any] | None = None

    @property
    def tested(self) -> str:
        """The independent units of the interval, in words."""
        return f"{self.texts:,} test texts" if self.users is None else f"the texts of {self.users:,} test users"

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.nan if self.loss is None or self.loss > 700 else math.exp(self.loss)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data that `from_dict` reads back. Its `accuracy` is a number, as for any classifier."""
        names = ("top5", "loss", "texts", "users", "words", "all_words", "accuracy_of_all", "majority")
        return {
            "accuracy": self.accuracy.value,
            "accuracy_interval": list(self.accuracy[1:]),
            **{name: getattr(self, name) for name in names},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WordEvaluation:
        """The evaluation from a run's file."""
        rest = {name: value for name, value in data.items() if name not in ("accuracy", "accuracy_interval")}
        return cls(accuracy=FigureInterval(data["accuracy"], *data["accuracy_interval"]), **rest)

    def headline(self) -> dict[str, Any]:
        """The main figure of a page: the accuracy, and its baseline."""
        value, low, high = self.accuracy
        return {
            "name": "accuracy of the next word",
            "value": percent(value),
            "lines": [
                f"95% interval {percent(low)} to {percent(high)}, from {self.words:,} words in {self.tested}",
                f"always the most frequent word {percent(self.majority)}",
            ],
        }


def words_section(found: WordEvaluation, *, public_test: bool, averages: Mapping[str, str]) -> Markup:
    """The part of a page with the figures of words, and how they vary over the last steps."""
    return Markup(render("words.html.jinja", found=found, public_test=public_test, averages=averages))
