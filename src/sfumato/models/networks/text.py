"""Models of texts: rows of word numbers (N, T), 0 after the last word, to logits (N, classes)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato._checks import one_of, positive_integer
from sfumato.models.networks.dictionary import WAVELET_NORM

NORMS = ("none", "layer")


class Bag(nn.Module):
    """The linear model of which words a text has: one weight for each word and class, starting at zero.

    A text with n_w times the word w has the features sqrt(n_w), brought to one norm, so that a step's noise moves every
    logit by a known amount.

    Args:
        classes: number of classes.
        vocabulary: V, the numbers that words have.
        length: T; of no consequence.
        norm: the L2 norm of every text's features.
    """

    def __init__(self, *, classes: int, vocabulary: int, length: int, norm: float = WAVELET_NORM):
        super().__init__()
        self.norm = float(norm)
        self.head = nn.Embedding(vocabulary, classes, padding_idx=0)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Word numbers (N, T) to logits (N, classes)."""
        counts = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).sum(2)  # of each word, at each of its places
        words = tokens > 0
        squares = counts * words.sum(1, keepdim=True).clamp_min(1)
        return (self.head(tokens) * (self.norm * words / squares.sqrt()).unsqueeze(2)).sum(1)


class BiLSTM(nn.Module):
    """An embedding of words, one LSTM in each direction, and one linear layer on the mean of its outputs over words.

    Davody et al. 2020 (arXiv 2006.10919), table 7: BiLSTM-DL, and with layer norm after each trainable layer
    LN-BiLSTM-DL. Words start near each other (a standard deviation of 0.1), so that what is learnt soon outweighs it,
    and the last layer at zero, but not where its output is normalised, since there is nothing to divide by at zero.

    Args:
        classes: number of classes.
        vocabulary: V, the numbers that words have.
        length: T; of no consequence.
        embedding: numbers of each word.
        hidden: of the states of each direction.
        norm: "none", or "layer" for layer norm after the embedding and after the LSTM, word by word.
        norm_last: with "layer", after the linear layer too.
    """

    def __init__(
        self,
        *,
        classes: int,
        vocabulary: int,
        length: int,
        embedding: int = 32,
        hidden: int = 32,
        norm: str = "none",
        norm_last: bool = False,
    ):
        super().__init__()
        one_of("norm", norm, NORMS)
        embedding, hidden = positive_integer("embedding", embedding), positive_integer("hidden", hidden)

        def normalisation(width: int, *, there: bool = True) -> nn.Module:
            return nn.LayerNorm(width) if norm == "layer" and there else nn.Identity()

        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.norm1 = normalisation(embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.norm2 = normalisation(2 * hidden)
        self.head = nn.Linear(2 * hidden, classes)
        self.norm3 = normalisation(classes, there=bool(norm_last))
        with torch.no_grad():
            self.embedding.weight.mul_(0.1)
        if isinstance(self.norm3, nn.Identity):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Word numbers (N, T) to logits (N, classes)."""
        outputs, _ = self.lstm(self.norm1(self.embedding(tokens)))
        words = (tokens > 0).unsqueeze(2)
        mean = (self.norm2(outputs) * words).sum(1) / words.sum(1).clamp_min(1)
        return self.norm3(self.head(mean))
