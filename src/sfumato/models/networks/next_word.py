"""The network for next-word prediction, from token numbers (N, T), padded with 0, to logits (N, T, V)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import positive_integer

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
        embedding, hidden = positive_integer("embedding", embedding), positive_integer("hidden", hidden)
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
