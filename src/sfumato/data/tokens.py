"""Texts as numbers: a fixed number of words, numbered by a public rule and padded with zeros.

The numbers of words come from a public list or a public hash, never from counting words, so no private text influences
another.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, exactly, one_of, positive_integer, within
from sfumato._files import path_errors, regular_file
from sfumato.data.classes import NEXT_WORD, TASKS
from sfumato.data.paths import expanded

PADDING, UNKNOWN, FIRST = 0, 1, 2
"""Number for padding, number for words outside the list, and first number for words."""

LENGTH = 64
"""Default number of words read from each text."""

VOCABULARY = 1 << 13
"""Default vocabulary for hashed words."""

LONGEST, LARGEST = 1 << 14, 1 << 22
_UNSPACED = (
    r"\u0e01-\u0e3e\u0e40-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf"  # Thai, Lao
    r"\u1000-\u103f\u1050-\u108f\u109a-\u109d\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f"  # Burmese
    r"\u1780-\u17d3\u17d7"  # Khmer
    r"\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # Japanese
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Letters, vowel signs and tone marks of scripts that put no spaces between words."""
WORD = re.compile(rf"(?=\w)[{_UNSPACED}](?:(?!\w)[{_UNSPACED}])*|[^\W_{_UNSPACED}]+(?:'[^\W_{_UNSPACED}]+)*")
"""A word of a lower-case text: letters and digits, with inner apostrophes; in scripts without spaces, a letter with its
signs and marks."""

TOKENIZERS = ("hashing", "words", "numbers")
PERSON = b"sfumato word"


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Converts a text to T numbers below V: one for each of its first T words, then zeros.

    **Guarantee.** The numbers of a text are a function of that text and of public constants: neither the list of words
    nor T is read from private texts, code points alone decide which characters are words by themselves, and a text is
    padded to T regardless of the others (unit: one example; adjacency: any). Assumes that the list of words is public,
    as its owner states.

    Args:
        length: T.
        vocabulary: V, including the numbers 0 (no word) and 1 (unknown).
        tokenizer: "hashing": the number of a word is 2 plus its BLAKE2b (8 bytes, big end first, person "sfumato word")
            modulo V - 2; "words": 2 plus its position in `words`, 1 for others; "numbers": texts are already numbers.
        words: the public list of words.

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

    further: ClassVar[int] = 0
    """Numbers above the words, of a form with further tokens."""

    def __post_init__(self) -> None:
        positive_integer(length=self.length, vocabulary=self.vocabulary)
        within(1, LONGEST, length=self.length)
        within(FIRST + 1, LARGEST, vocabulary=self.vocabulary)
        one_of(TOKENIZERS, tokenizer=self.tokenizer)
        if (self.tokenizer == "words") != (self.words is not None):
            raise TypeError("words are for the tokenizer words")
        if self.words is not None:
            object.__setattr__(self, "words", _checked(self.words))
            if self.vocabulary != (expected := len(self.words) + FIRST + self.further):
                raise TypeError(f"vocabulary must be {expected}, got {self.vocabulary}")
        object.__setattr__(self, "_places", {word: place + FIRST for place, word in enumerate(self.words or ())})

    @classmethod
    def from_declared(
        cls, *, length: int | None, vocabulary: int | None, words: str | Sequence[str] | None, numbers: bool = False
    ) -> Tokens:
        """From the declared facts, with defaults for the rest.

        Args:
            words: a file of public words, one per line, or the words themselves.
            numbers: whether the texts are already numbers.
        """
        length = LENGTH if length is None else length
        if numbers:
            if words is not None or vocabulary is None:
                raise SfumatoError(
                    "the texts are numbers, but the size of their vocabulary is not declared",
                    "declare `vocabulary`, such as 30522, and leave `words` out: the largest number in private texts "
                    "would reveal them",
                )
            return cls(length=length, vocabulary=vocabulary, tokenizer="numbers")
        if words is None:
            return cls(length=length, vocabulary=VOCABULARY if vocabulary is None else vocabulary)
        if vocabulary is not None:
            raise SfumatoError(
                f"vocabulary {vocabulary} and a list of words are both given",
                "give one of them; a list has its own length",
            )
        listed = _listed(words) if isinstance(words, str) else tuple(words)
        return cls(length=length, vocabulary=len(listed) + FIRST + cls.further, tokenizer="words", words=listed)

    @property
    def declaration(self) -> dict[str, Any]:
        """Arguments of `open_source` for the same conversion."""
        if self.words is not None:
            return {"length": self.length, "words": self.words}
        return {"length": self.length, "vocabulary": self.vocabulary}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one text as model input: (T,)."""
        return (self.length,)

    @property
    def identity(self) -> str:
        """SHA-256 of everything that determines the numbers of a text."""
        rule = {**self.to_dict(), "word": WORD.pattern, "hash": f"blake2b-8 {PERSON.decode()}"}
        return hashlib.sha256(json.dumps(rule, sort_keys=True).encode()).hexdigest()

    @property
    def described(self) -> str:
        """A description for statements and pages."""
        method = {
            "hashing": f"words hashed to {self.vocabulary - FIRST:,} numbers",
            "words": f"words by a list of {self.vocabulary - FIRST - self.further:,}",
            "numbers": f"numbers below {self.vocabulary:,}",
        }[self.tokenizer]
        unspaced = "" if self.tokenizer == "numbers" else ", characters as words in scripts without spaces"
        return f"the first {self.length} {method}{unspaced}, tokenizer {self.identity[:16]}"

    def numbers(self, text: str) -> list[int]:
        """The numbers of all words of a text."""
        words = WORD.findall(text.lower())
        if self.tokenizer == "words":
            return [self._places.get(word, UNKNOWN) for word in words]  # type: ignore[attr-defined]
        return [FIRST + _hash(word) % (self.vocabulary - FIRST) for word in words]

    def pad(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """The first T numbers, padded with zeros: int32 (T,)."""
        row = np.zeros(self.length, np.int32)
        row[: len(numbers)] = numbers[: self.length]
        return row

    def __call__(self, tokens: Any) -> Tensor:
        """Texts as model input: int64 (n, T).

        Args:
            tokens: stored numbers (n, T), an array or a tensor; or one text (n is 1) or several in any form that `read`
                takes.
        """
        if not isinstance(tokens, Tensor) and not (isinstance(tokens, np.ndarray) and tokens.ndim == 2):
            return torch.stack([torch.zeros(self.length, dtype=torch.long), *read_each(self, tokens)])[1:]
        tensor = torch.from_numpy(np.require(tokens, requirements="W")) if isinstance(tokens, np.ndarray) else tokens
        if tensor.is_floating_point() or tuple(tensor.shape[1:]) != self.shape:
            raise SfumatoError(
                f"texts must be integers (n, {self.length}), got {tensor.dtype} {tuple(tensor.shape)}",
                "convert texts with the method read",
            )
        return tensor.long()

    def read(self, text: str | Sequence[int] | np.ndarray) -> Tensor:
        """One text, or one row of numbers if texts are numbers, as int64 (T,)."""
        return torch.from_numpy(self.to_stored(text)).long()

    def to_stored(self, text: str | Sequence[int] | np.ndarray) -> np.ndarray:
        """One text, in any form that `read` takes, as stored by sources: int32 (T,)."""
        if isinstance(text, str) and self.tokenizer != "numbers":
            return self.pad(self.numbers(text))
        row = np.asarray(text)
        if self.tokenizer != "numbers" or row.ndim != 1 or row.dtype.kind not in "iu":
            form = "rows of whole numbers" if self.tokenizer == "numbers" else "texts"
            raise SfumatoError(f"the model reads {form}, got {type(text).__name__}", "give an array, or a str")
        self.check(row, "the text")
        return self.pad(row)

    def check(self, numbers: np.ndarray, where: str) -> None:
        """Refuses numbers outside the vocabulary."""
        outside = numbers[(numbers < 0) | (numbers >= self.vocabulary)]
        if outside.size:
            raise SfumatoError(
                f"{where} holds the number {outside.flat[0]}, but the vocabulary has {self.vocabulary:,}",
                "declare a larger `vocabulary`, or correct the numbers",
            )

    def is_one(self, texts: Any) -> bool:
        """Whether this is a single text rather than several."""
        if isinstance(texts, np.ndarray):
            return texts.ndim == 1 and texts.dtype.kind in "iu"
        return isinstance(texts, str)

    def synthetic(self, count: int) -> Tensor:
        """Synthetic texts int64 (count, T): a full one, an empty one, one with a single word, one with repeated words,
        and others of varying length."""
        waves = torch.arange(count * self.length).reshape(count, self.length)
        numbers = FIRST + (waves * 7919 + 12345) % (self.vocabulary - FIRST)
        if count > 3:
            numbers[3] = FIRST + torch.arange(self.length) % min(3, self.vocabulary - FIRST)
        lengths = [self.length, 0, 1, self.length, *(1 + 7 * place % self.length for place in range(4, count))][:count]
        return numbers.masked_fill(torch.arange(self.length) >= torch.tensor(lengths).unsqueeze(1), PADDING)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        words = None if self.words is None else list(self.words)
        return {"tokenizer": self.tokenizer, "length": self.length, "vocabulary": self.vocabulary, "words": words}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tokens:
        """The tokens that `to_dict` wrote."""
        exactly("tokens", data, ("tokenizer", "length", "vocabulary", "words"))
        return cls(**{**data, "words": None if data["words"] is None else tuple(data["words"])})


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8, person=PERSON).digest(), "big")


def _listed(path: str) -> tuple[str, ...]:
    """The words of a file, one per line."""
    file = expanded(path)
    name, remedy = f"the list of words {str(file)!r}", "give a file of public words, one per line, in UTF-8"
    with path_errors(name, remedy, remedy):
        content = regular_file(file).read_bytes()
    try:
        return tuple(line.strip() for line in content.decode("utf-8-sig").splitlines() if line.strip())
    except UnicodeDecodeError:
        raise SfumatoError(f"{name} is not UTF-8 text", remedy) from None


def _checked(words: Sequence[str]) -> tuple[str, ...]:
    """The words. Refuses words that no text can contain, and duplicates."""
    seen: set[str] = set()
    for word in words or ("",):
        valid = isinstance(word, str) and WORD.fullmatch(word.lower()) and word == word.lower()
        if not valid or word in seen:
            raise SfumatoError(
                f"words holds {word!r}{' twice' if valid else ', which cannot occur in a text'}",
                "list each lower-case word of letters, digits and inner apostrophes once, one per line; of scripts "
                "without spaces, single characters",
            )
        seen.add(word)
    return tuple(words)


NEXT_WORDS_LENGTH = 20
"""Default number of predicted words of each text: that of Reddi et al. 2021 (arXiv 2003.00295)."""


class Reader(Protocol):
    """Converts given records to model inputs: `Transform`, `FeatureTransform` and `Tokens`."""

    def is_one(self, record: Any, /) -> bool:
        """Whether this is a single record rather than several."""
        ...

    def read(self, record: Any, /) -> torch.Tensor:
        """The model input of one record."""
        ...


def read_each(reader: Reader, records: Any) -> Iterator[torch.Tensor]:
    """Yields the model inputs of one or several records.

    Errors: `SfumatoError`, with the position of the record among several.
    """
    if reader.is_one(records):
        yield reader.read(records)
        return
    for place, record in enumerate(records):
        try:
            yield reader.read(record)
        except SfumatoError as error:
            if isinstance(record, (str, os.PathLike)):  # already named in the error
                raise
            raise SfumatoError(f"input {place}: {error.problem}", error.remedy) from None


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
        length = NEXT_WORDS_LENGTH if length is None else length
        return super().from_declared(length=length, vocabulary=vocabulary, words=words, numbers=numbers)

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
            return super().to_stored(text)  # refuses it
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
        one_of(TASKS, task=data["task"])
        return super().from_dict({name: value for name, value in data.items() if name != "task"})
