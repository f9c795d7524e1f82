"""Evaluation of next-word prediction: figures of each word. They have no noise and are private."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.data import NextWords, Part
from sfumato.data.tokens import PADDING, UNKNOWN
from sfumato.evaluation.accuracy import finite_or_none
from sfumato.models import evaluation_mode
from sfumato.report import FigureInterval, WordEvaluation, wilson

BATCH = 32
"""Texts at once. Each of their words has a logit for every word of the list."""
LIKELIEST = 5


def counted(targets: Tensor, vocabulary: int) -> Tensor:
    """Which targets count for accuracy, bool: neither padding nor unknown words nor the end of a text.

    As `accuracy_no_oov_or_eos` of Kairouz et al. 2021 (google-research/federated, dp_ftrl/run_stackoverflow.py).

    >>> counted(torch.tensor([0, 1, 2, 3, 5]), vocabulary=6).tolist()
    [False, False, True, True, False]
    """
    return (targets != PADDING) & (targets != UNKNOWN) & (targets != vocabulary - 1)


def _batches(
    module: nn.Module, form: NextWords, device: torch.device, records: Part, places: Sequence[int] | np.ndarray | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields logits (n, T, V) and targets (n, T), on the device, of all records or of those at `places`."""
    rows = np.arange(len(records)) if places is None else np.asarray(places, np.int64)
    with evaluation_mode(module), torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            inputs = form(torch.from_numpy(records.take(some))).to(device)
            yield module(inputs).float(), torch.from_numpy(records.labels[some]).to(device)


def figures_of_words(
    module: nn.Module,
    form: NextWords,
    device: torch.device,
    records: Part,
    places: Sequence[int] | np.ndarray | None = None,
) -> Tensor:
    """Figures float32 (N, T, 3) of each word, on the CPU, in evaluation mode: whether it is the likeliest (0 or 1),
    whether it is among the five likeliest, and its loss in nats; zeros for padding."""
    blocks = [torch.zeros(0, form.length, 3)]
    for logits, targets in _batches(module, form, device, records, places):
        nearest = logits.topk(min(LIKELIEST, logits.shape[2]), dim=2).indices == targets.unsqueeze(2)
        right = logits.argmax(2) == targets
        loss = -logits.log_softmax(2).gather(2, targets.unsqueeze(2)).squeeze(2)
        figures = torch.stack([right.float(), nearest.any(2).float(), loss], 2)
        blocks.append(figures.masked_fill((targets == PADDING).unsqueeze(2), 0).cpu())
    return torch.cat(blocks)


def decisions(
    module: nn.Module, form: NextWords, device: torch.device, records: Part, places: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Logits (n, V) and targets (n,), on the CPU, of the counted words of some records."""
    logits, labels = [torch.zeros(0, form.vocabulary)], [torch.zeros(0, dtype=torch.int64)]
    for some, targets in _batches(module, form, device, records, places):
        scored = counted(targets, form.vocabulary)
        logits.append(some[scored].cpu())
        labels.append(targets[scored].cpu())
    return torch.cat(logits), torch.cat(labels)


def score_of(figures: Tensor, targets: Tensor, vocabulary: int) -> dict[str, Any]:
    """Accuracy and top-5 accuracy over counted words, and the mean loss over all words.

    Args:
        figures: (N, T, 3), of each word.
        targets: (N, T).
        vocabulary: V.
    """
    scored, words = counted(targets, vocabulary), targets != PADDING
    right, nearest, loss = figures.double().unbind(2)
    count = max(1, int(scored.sum()))
    return {
        "accuracy": (right[scored].sum() / count).item(),
        "top5": (nearest[scored].sum() / count).item(),
        "loss": finite_or_none((loss.sum() / max(1, int(words.sum()))).item()),
    }


def evaluation(figures: Tensor, parts: Sequence[Part], vocabulary: int) -> WordEvaluation:
    """Evaluates the figures (N, T, 3) of each word of all records of the parts.

    The interval of the accuracy is Wilson's, with one trial for each user of the records, or for each text if users are
    unknown: words of one person are dependent, and a mean of shares has at most the variance of a single trial.
    """
    targets = torch.from_numpy(np.concatenate([part.labels for part in parts]))
    scored, words = counted(targets, vocabulary), targets != PADDING
    score, right = score_of(figures, targets, vocabulary), figures[..., 0].double()
    named = [part.users for part in parts if part.users is not None]
    users = len(np.unique(np.concatenate(named))) if len(named) == len(parts) else None
    trials = users or len(targets)
    frequent = torch.bincount(targets[scored], minlength=1).max().item()
    return WordEvaluation(
        accuracy=FigureInterval(score["accuracy"], *wilson(score["accuracy"] * trials, trials)),
        top5=score["top5"],
        loss=score["loss"],
        texts=len(targets),
        users=users,
        words=int(scored.sum()),
        all_words=int(words.sum()),
        accuracy_of_all=(right[words].sum() / max(1, int(words.sum()))).item(),
        majority=frequent / max(1, int(scored.sum())),
    )
