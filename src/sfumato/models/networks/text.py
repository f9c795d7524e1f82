"""Text models, from token numbers (N, T), padded with 0, to logits: (N, classes), or (N, T, V) for next words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import one_of, positive_integer
from sfumato.models.networks.dictionary import WAVELET_NORM

NORMS = ("none", "layer")


class Bag(nn.Module):
    """A linear bag-of-words model: one weight per word and class, initialised to zero.

    A text with n_w occurrences of word w has the features sqrt(n_w), normalised, so that a step's noise changes every
    logit by a known amount.

    Args:
        classes: number of classes.
        vocabulary: V, the size of the vocabulary.
        length: T; not used.
        norm: the L2 norm of every text's features.
    """

    def __init__(self, *, classes: int, vocabulary: int, length: int, norm: float = WAVELET_NORM):
        super().__init__()
        self.norm = float(norm)
        self.head = nn.Embedding(vocabulary, classes, padding_idx=0)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps token numbers (N, T) to logits (N, classes)."""
        counts = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).sum(2)  # at each position, the count of its word
        words = tokens > 0
        squares = counts * words.sum(1, keepdim=True).clamp_min(1)
        return (self.head(tokens) * (self.norm * words / squares.sqrt()).unsqueeze(2)).sum(1)


class BiLSTM(nn.Module):
    """A word embedding, an LSTM in each direction, and a linear layer on the mean of the outputs over words.

    Davody et al. 2020 (arXiv 2006.10919), table 7: BiLSTM-DL, or LN-BiLSTM-DL with layer norm after each trainable
    layer. Embeddings are initialised with a standard deviation of 0.1, so that training soon dominates the random
    initialisation. The last layer is initialised to zero unless its output is normalised, because a normalisation
    cannot scale zeros.

    Args:
        classes: number of classes.
        vocabulary: V, the size of the vocabulary.
        length: T; not used.
        embedding: embedding dimension.
        hidden: state size per direction.
        norm: "none", or "layer" for layer norm after the embedding and after the LSTM, for each word.
        norm_last: with "layer", whether the output of the linear layer is normalised too.
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
        one_of(NORMS, norm=norm)
        embedding, hidden = positive_integer(embedding=embedding), positive_integer(hidden=hidden)

        def normalisation(width: int, *, enabled: bool = True) -> nn.Module:
            return nn.LayerNorm(width) if norm == "layer" and enabled else nn.Identity()

        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.norm1 = normalisation(embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.norm2 = normalisation(2 * hidden)
        self.head = nn.Linear(2 * hidden, classes)
        self.norm3 = normalisation(classes, enabled=bool(norm_last))
        with torch.no_grad():
            self.embedding.weight.mul_(0.1)
        if isinstance(self.norm3, nn.Identity):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps token numbers (N, T) to logits (N, classes)."""
        outputs, _ = self.lstm(self.norm1(self.embedding(tokens)))
        words = (tokens > 0).unsqueeze(2)
        mean = (self.norm2(outputs) * words).sum(1) / words.sum(1).clamp_min(1)
        return self.norm3(self.head(mean))


LARGEST = 0.05
"""Initial embeddings are uniform between minus this and this, as in Keras."""


class NextWordLSTM(nn.Module):
    """A word embedding, one LSTM layer, a linear layer back to the embedding's width, and a linear layer to the words.

    The network of Reddi et al. 2021 (arXiv 2003.00295, table 9) and of Kairouz et al. 2021 (arXiv 2103.00039, section
    5.3), with 4,050,748 parameters for 10,000 words and 4 other tokens. As in Keras, the LSTM has one bias, here the
    weights of an input that is always 1. Initial weights follow `create_recurrent_model` of google-research/federated.

    Args:
        classes: V, the number of predicted tokens.
        vocabulary: V too.
        length: T; not used.
        embedding: embedding dimension.
        hidden: H, the size of the LSTM's state.
        tied: whether the embedding is also the last layer, which then has no bias.
    """

    def __init__(
        self, *, classes: int, vocabulary: int, length: int, embedding: int = 96, hidden: int = 670, tied: bool = False
    ):
        super().__init__()
        embedding, hidden = positive_integer(embedding=embedding), positive_integer(hidden=hidden)
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding + 1, hidden, bias=False, batch_first=True)
        self.projection = nn.Linear(hidden, embedding)
        self.head = None if tied else nn.Linear(embedding, classes)
        entering, recurring = (self.lstm.get_parameter(f"weight_{name}_l0") for name in ("ih", "hh"))
        with torch.no_grad():
            nn.init.uniform_(self.embedding.weight, -LARGEST, LARGEST)
            self.embedding.weight[0] = 0
            nn.init.kaiming_normal_(entering[:, :-1])
            entering[:, -1] = torch.arange(4 * hidden) // hidden == 1  # 1 for the forget gate, else 0
            nn.init.orthogonal_(recurring)
            for layer in filter(None, (self.projection, self.head)):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps token numbers (N, T) to logits (N, T, V) of the next ones."""
        outputs, _ = self.lstm(functional.pad(self.embedding(tokens), (0, 1), value=1.0))
        projected = self.projection(outputs)
        return functional.linear(projected, self.embedding.weight) if self.head is None else self.head(projected)
