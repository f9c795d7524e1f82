"""Texts for next-word prediction: each word is to be predicted from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, one_of
from sfumato.data.classes import NEXT_WORD, TASKS
from sfumato.data.tokens import Tokens

LENGTH = 20
"""Default number of predicted words of each text: that of Reddi et al. 2021 (arXiv 2003.00295)."""


@dataclass(frozen=True, kw_only=True)
class NextWords(Tokens):
    """Converts a text to T inputs and T targets: the beginning and the words, and the words and the end.

    The tokens are those of Reddi et al. 2021 (arXiv 2003.00295, appendix C.4): words of a list, padding (0), unknown
    words (1), the beginning (V - 2) and the end (V - 1) of a text. A text with T words or more is cut after T words and
    has no end.

    **Guarantee.** As for `Tokens`: inputs and targets of a text are a function of that text and of the public list.

    Args:
        length: T.
        vocabulary: V, the number of listed words plus 4.

    >>> form = NextWords(length=4, vocabulary=6, tokenizer="words", words=("cat", "hat"))
    >>> [row.tolist() for row in form.inputs_and_targets("The cat's hat, hat")]
    [[4, 1, 1, 3], [1, 1, 3, 3]]
    >>> [row.tolist() for row in form.inputs_and_targets("Cat")]
    [[4, 2, 0, 0], [2, 5, 0, 0]]
    >>> form.read("the cat and the hat").tolist()  # the last words, to predict the one that follows
    [4, 1, 1, 3]
    """

    further: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.words is None:
            raise TypeError(f"task {NEXT_WORD} needs a list of words")
        super().__post_init__()

    @classmethod
    def from_declared(
        cls, *, length: int | None, vocabulary: int | None, words: str | Sequence[str] | None, numbers: bool = False
    ) -> Tokens:
        """From the declared facts."""
        own = LENGTH if length is None else length
        return super().from_declared(length=own, vocabulary=vocabulary, words=words, numbers=numbers)

    @property
    def declaration(self) -> dict[str, Any]:
        """Arguments of `open_source` for the same conversion."""
        return super().declaration | {"task": NEXT_WORD}

    @property
    def described(self) -> str:
        """A description for statements and pages."""
        return f"{super().described}, each predicted from those before it"

    @property
    def names(self) -> tuple[str, ...]:
        """The V tokens by number, as the names of classes."""
        return ("<pad>", "<unk>", *(self.words or ()), "<s>", "</s>")

    def inputs_and_targets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The inputs int32 (T,) and the targets int64 (T,) of a text, padded with zeros."""
        numbers = self.numbers(text)[: self.length]
        end = [self.vocabulary - 1] if len(numbers) < self.length else []
        return self.pad([self.vocabulary - 2, *numbers]), self.pad([*numbers, *end]).astype(np.int64)

    def to_stored(self, text: str | Sequence[int] | np.ndarray) -> np.ndarray:
        """The inputs int32 (T,) that predict the word after a text: its beginning, and its last T - 1 words."""
        if not isinstance(text, str):
            raise SfumatoError(f"the model reads texts, got {type(text).__name__}", "give a str for each text")
        words = self.numbers(text)
        return self.pad([self.vocabulary - 2, *words[max(0, len(words) - self.length + 1) :]])

    def synthetic(self, count: int) -> Tensor:
        """Synthetic inputs int64 (count, T): the beginning, then words, of varying length."""
        words = super().synthetic(count)
        return torch.cat([torch.full((count, 1), self.vocabulary - 2), words[:, :-1]], 1)

    def synthetic_targets(self, count: int) -> Tensor:
        """Synthetic targets int64 (count, T), of varying length, one without any word."""
        return super().synthetic(count)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return super().to_dict() | {"task": NEXT_WORD}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tokens:
        """The form that `to_dict` wrote."""
        one_of("task", data["task"], TASKS)
        return super().from_dict({name: value for name, value in data.items() if name != "task"})
