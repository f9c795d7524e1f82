"""Texts as numbers: words by a public rule, so many of them, filled up with zeros.

No word of a private text decides anything of another one: the numbers of words come from a public list, or from a
public hash, never from counting words.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato._files import ordinary
from sfumato.data.images.given import each
from sfumato.data.paths import expanded

PADDING, UNKNOWN, FIRST = 0, 1, 2
"""Numbers that stand for no word, and for a word that is not in the list; those of words begin after them."""

LENGTH = 64
"""Words that are read of each text, where nothing else is declared."""

VOCABULARY = 1 << 13
"""How many numbers there are where words are hashed and nothing else is declared."""

LONGEST, LARGEST = 1 << 14, 1 << 22
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
"""What is a word, in a text of lower-case letters: letters and digits, with apostrophes inside."""

TOKENIZERS = ("hashing", "words", "numbers")
PERSON = b"sfumato word"


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """How a text becomes T numbers below V: its first T words, one number for each, and zeros after them.

    **Guarantee.** The numbers of a text are a function of that text and of public constants: neither the list of words
    nor T is read from private texts, and a text is filled up to T whatever others are as long (unit: one example;
    adjacency: any). That a list of words is public is its owner's word.

    Args:
        length: T.
        vocabulary: V, the numbers 0 (no word) and 1 (unknown) included.
        tokenizer: "hashing": the number of a word is 2 plus its BLAKE2b (8 bytes, big end first, person "sfumato word")
            modulo V - 2; "words": 2 plus its place in `words`, 1 for others; "numbers": texts are numbers already.
        words: the list, public.

    >>> tokens = Tokens(length=5, vocabulary=100)
    >>> tokens.read("The cat's hat, the CAT'S hat and all").tolist()
    [21, 83, 7, 21, 83]
    >>> tokens.read("Hat?").tolist()
    [7, 0, 0, 0, 0]
    >>> Tokens.from_dict(tokens.to_dict()) == tokens
    True
    """

    length: int = LENGTH
    vocabulary: int = VOCABULARY
    tokenizer: str = "hashing"
    words: tuple[str, ...] | None = field(repr=False, default=None)

    def __post_init__(self) -> None:
        for name, most in (("length", LONGEST), ("vocabulary", LARGEST)):
            if positive_integer(name, getattr(self, name)) > most:
                raise SfumatoError(
                    f"{name} must be at most {most:,}, got {getattr(self, name):,}", "give a smaller one"
                )
        one_of("tokenizer", self.tokenizer, TOKENIZERS)
        if self.vocabulary <= FIRST:
            raise SfumatoError(
                f"vocabulary must be more than {FIRST}, got {self.vocabulary}",
                "count the numbers 0 (no word) and 1 (unknown) as well",
            )
        if (self.tokenizer == "words") != (self.words is not None):
            raise TypeError("words are for the tokenizer of that name")
        if self.words is not None:
            object.__setattr__(self, "words", _checked(self.words))
            if self.vocabulary != len(self.words) + FIRST:
                raise TypeError(f"vocabulary must be {len(self.words) + FIRST}, got {self.vocabulary}")
        object.__setattr__(self, "_places", {word: place + FIRST for place, word in enumerate(self.words or ())})

    @classmethod
    def declared(
        cls, *, length: int | None, vocabulary: int | None, words: str | Sequence[str] | None, numbers: bool = False
    ) -> Tokens:
        """By what an owner declared; the rest is by default.

        Args:
            words: a file of public words, one a line, or these words themselves.
            numbers: whether the texts are numbers already.
        """
        own = LENGTH if length is None else length
        if numbers:
            if words is not None:
                raise SfumatoError("words are given, and the texts are numbers already", "leave `words` out")
            if vocabulary is None:
                raise SfumatoError(
                    "the texts are numbers, and nobody has declared how many different ones there may be",
                    "declare `vocabulary`, such as 30522: the largest number in private texts tells of them",
                )
            return cls(length=own, vocabulary=vocabulary, tokenizer="numbers")
        if words is None:
            return cls(length=own, vocabulary=VOCABULARY if vocabulary is None else vocabulary)
        if vocabulary is not None:
            raise SfumatoError(
                f"vocabulary {vocabulary} and a list of words are both given", "give one of them: a list has its length"
            )
        listed = _listed(words) if isinstance(words, str) else tuple(words)
        return cls(length=own, vocabulary=len(listed) + FIRST, tokenizer="words", words=listed)

    @property
    def declaration(self) -> dict[str, Any]:
        """By what arguments of `open_source` texts become the same numbers."""
        if self.words is not None:
            return {"length": self.length, "words": self.words}
        return {"length": self.length, "vocabulary": self.vocabulary}

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one text as a model takes it: (T,)."""
        return (self.length,)

    @property
    def identity(self) -> str:
        """SHA-256 of everything that decides the numbers of a text."""
        rule = {**self.to_dict(), "word": WORD.pattern, "hash": f"blake2b-8 {PERSON.decode()}"}
        return hashlib.sha256(json.dumps(rule, sort_keys=True).encode()).hexdigest()

    @property
    def described(self) -> str:
        """In words, for statements and pages."""
        how = {
            "hashing": f"words hashed to {self.vocabulary - FIRST:,} numbers",
            "words": f"words by a list of {self.vocabulary - FIRST:,}",
            "numbers": f"numbers below {self.vocabulary:,}",
        }[self.tokenizer]
        return f"the first {self.length} {how}, tokenizer {self.identity[:16]}"

    def numbers(self, text: str) -> list[int]:
        """The numbers of a text's words, all of them."""
        found = WORD.findall(text.lower())
        if self.tokenizer == "words":
            return [self._places.get(word, UNKNOWN) for word in found]  # type: ignore[attr-defined]
        return [FIRST + _hash(word) % (self.vocabulary - FIRST) for word in found]

    def filled(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """The first T numbers, with zeros after them: int32 (T,)."""
        row = np.zeros(self.length, np.int32)
        row[: len(numbers)] = numbers[: self.length]
        return row

    def __call__(self, tokens: Any) -> Tensor:
        """Texts as a model takes them: int64 (n, T).

        Args:
            tokens: numbers (n, T) as they are stored, an array or a tensor; or whatever `read` takes, one of it (n is
                1) or several.
        """
        if not isinstance(tokens, Tensor) and not (isinstance(tokens, np.ndarray) and tokens.ndim == 2):
            return torch.stack([torch.zeros(self.length, dtype=torch.long), *each(self, tokens)])[1:]
        tensor = torch.from_numpy(np.require(tokens, requirements="W")) if isinstance(tokens, np.ndarray) else tokens
        if tensor.is_floating_point() or tuple(tensor.shape[1:]) != self.shape:
            raise SfumatoError(
                f"texts must be whole numbers (n, {self.length}), got {tensor.dtype} {tuple(tensor.shape)}",
                "bring texts to this form with the read method",
            )
        return tensor.long()

    def read(self, text: str | Sequence[int] | np.ndarray) -> Tensor:
        """One text, or one row of numbers where texts are numbers already, as int64 (T,)."""
        return torch.from_numpy(self.stored(text)).long()

    def stored(self, text: str | Sequence[int] | np.ndarray) -> np.ndarray:
        """One text as a source would store it, int32 (T,); whatever `read` takes."""
        if isinstance(text, str) and self.tokenizer != "numbers":
            return self.filled(self.numbers(text))
        row = np.asarray(text)
        if self.tokenizer != "numbers" or row.ndim != 1 or row.dtype.kind not in "iu":
            known = "rows of whole numbers" if self.tokenizer == "numbers" else "texts"
            raise SfumatoError(
                f"the model reads {known}, got {type(text).__name__}",
                "give numpy.array([12, 7, ...])" if self.tokenizer == "numbers" else "give a str for each text",
            )
        self.check(row, "the text")
        return self.filled(row)

    def check(self, numbers: np.ndarray, where: str) -> None:
        """Refuse numbers that are none of this vocabulary's."""
        odd = numbers[(numbers < 0) | (numbers >= self.vocabulary)]
        if odd.size:
            raise SfumatoError(
                f"{where} holds the number {odd.flat[0]}, and the vocabulary has {self.vocabulary:,}",
                "declare a larger `vocabulary`, or mend the numbers",
            )

    def is_one(self, given: Any) -> bool:
        """Whether this is a single text, and no list of them."""
        if isinstance(given, np.ndarray):
            return given.ndim == 1 and given.dtype.kind in "iu"
        return isinstance(given, str)

    def synthetic(self, count: int) -> Tensor:
        """Made-up texts int64 (count, T): a full one, an empty one, one of a single word, one with words that come
        again, and then others of any length."""
        waves = torch.arange(count * self.length).reshape(count, self.length)
        found = FIRST + (waves * 7919 + 12345) % (self.vocabulary - FIRST)
        if count > 3:
            found[3] = FIRST + torch.arange(self.length) % min(3, self.vocabulary - FIRST)
        lengths = [self.length, 0, 1, self.length, *(1 + 7 * place % self.length for place in range(4, count))][:count]
        return found.masked_fill(torch.arange(self.length) >= torch.tensor(lengths).unsqueeze(1), PADDING)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        words = None if self.words is None else list(self.words)
        return {"tokenizer": self.tokenizer, "length": self.length, "vocabulary": self.vocabulary, "words": words}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tokens:
        """What `to_dict` wrote down."""
        if set(data) != {"tokenizer", "length", "vocabulary", "words"}:
            raise SfumatoError(
                f"tokens hold tokenizer, length, vocabulary and words, got {sorted(data)}", "restore the file"
            )
        return cls(**{**data, "words": None if data["words"] is None else tuple(data["words"])})


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8, person=PERSON).digest(), "big")


def _listed(path: str) -> tuple[str, ...]:
    """The words of a file, one a line."""
    file = expanded(path)
    try:
        lines = ordinary(file).read_text("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise SfumatoError(f"words {str(file)!r} do not exist", "give a file of public words, one a line") from None
    except (OSError, UnicodeDecodeError) as problem:
        reason = "it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else problem.strerror or problem
        raise SfumatoError(f"words {str(file)!r} cannot be read ({reason})", "give one word a line, in UTF-8") from None
    return tuple(line.strip() for line in lines if line.strip())


def _checked(words: Sequence[str]) -> tuple[str, ...]:
    """The words, refused where one of them could never be met, or stands there twice."""
    for word in words:
        if not isinstance(word, str) or not WORD.fullmatch(word.lower()) or word != word.lower():
            raise SfumatoError(
                f"words holds {word!r}, which no text is split into",
                "list lower-case words of letters, digits and inner apostrophes, one a line",
            )
    if len(set(words)) < len(words):
        (twice, *_) = (word for word in words if words.count(word) > 1)
        raise SfumatoError(f"words holds {twice!r} twice", "list each word once")
    if not words:
        raise SfumatoError("words holds no word", "list one a line")
    return tuple(words)
