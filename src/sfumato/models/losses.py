"""Losses by name: logits and labels to one number, and logits to probabilities. The name decides whether classes
exclude each other. It is stored in the settings and in the model file, and determines how logits are read.

Declared shares of classes: weights that follow from them, and how logits are moved to other shares. Shares are declared
because counting the classes would release private labels.

Losses on the embeddings of a batch alone, without a head: by pairs and by triplets (DP-FedEmb, section 4.3). Embeddings
are normalised to length 1 first, as for comparisons. Distances are squared, |x - y|^2 in 0..4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from sfumato._checks import SfumatoError, fraction, one_of

TOLERANCE = 0.01
"""Tolerance for the sum of declared shares, which are rounded."""

REMEDY = "give every class's share, such as pneumonia=0.02 normal=0.98"


def parse_shares(declared: Mapping[str, float] | Sequence[str], name: str = "class_prevalence") -> dict[str, float]:
    """Reads shares by class name, each between 0 and 1, that sum to one.

    Args:
        declared, name: as for `parse_label_shares`.

    >>> parse_shares(["pneumonia=0.02,normal=0.98"])
    {'pneumonia': 0.02, 'normal': 0.98}
    """
    shares = parse_label_shares(declared, name)
    refuse_other_sum(shares, name)
    return shares


def parse_label_shares(
    declared: Mapping[str, float] | Sequence[str], name: str = "class_prevalence"
) -> dict[str, float]:
    """Reads shares by class name, each between 0 and 1. Their sum is not checked: an image may have several labels.

    Args:
        declared: a mapping, or texts NAME=SHARE. One text may hold several, separated by commas.
        name: name of the option.
    """
    is_mapping = isinstance(declared, Mapping)
    pairs = declared.items() if is_mapping else [_parse_share(text, name) for text in _pieces(declared)]
    shares: dict[str, float] = {}
    for label, share in pairs:
        if label in shares:
            raise SfumatoError(f"`{name}` names a class twice", "name each class once")
        shares[label] = fraction(optional=False, remedy=REMEDY, **{f"`{name}` of {label!r}": share})
    return shares


def refuse_other_sum(shares: Mapping[str, float], name: str = "class_prevalence") -> None:
    """Refuses shares of exclusive classes that do not sum to one."""
    total = math.fsum(shares.values())
    if abs(total - 1) > TOLERANCE + 1e-9:
        several = "; if an image may have several labels, name them as `label_columns`"
        remedy = REMEDY + (several if name == "class_prevalence" else "")
        raise SfumatoError(f"the shares of `{name}` sum to {total:g}, not to 1", remedy)


def ordered_shares(
    shares: Mapping[str, float], classes: Sequence[str], name: str = "class_prevalence"
) -> tuple[float, ...]:
    """The shares in the order of the classes.

    Raises:
        SfumatoError: a share of another class, or a class without a share.
    """
    for label in shares:
        one_of(classes, optional=False, remedy=None, **{f"a class that `{name}` names": label})
    missing = [label for label in classes if label not in shares]
    if missing:
        raise SfumatoError(f"`{name}` has no share for the class {missing[0]!r}", REMEDY)
    return tuple(shares[label] for label in classes)


def logit_offsets(trained: Sequence[float], used: Sequence[float], *, loss: str) -> tuple[float, ...]:
    """The offsets that adapt logits to other class shares (Saerens et al. 2002, equation 2.4; Elkan 2001, theorem 2).

    The offset is log q_c - log p_c for a softmax, and the difference of log odds for sigmoids. By Bayes' rule it is
    exact if only the shares change, and the distribution of images within each class stays the same. For sigmoids with
    more than two classes it is approximate, because the mixture of the other classes changes.

    Args:
        trained: p, (classes,), the shares in training.
        used: q, (classes,), the shares where the model is used.
        loss: the name of the model's loss.

    **Guarantee.** A function of declared or released numbers only, so shifting a released model's logits costs no
    privacy. If the shares are counted from private labels, the offsets are a release of these labels.

    >>> [round(one, 3) for one in logit_offsets((0.5, 0.5), (0.9, 0.1), loss="softmax")]
    [0.588, -1.609]
    """

    def of(share: float) -> float:
        return math.log(share) - (0.0 if loss == "softmax" else math.log1p(-share))

    return tuple(of(used_share) - of(trained_share) for used_share, trained_share in zip(used, trained, strict=True))


def _parse_share(text: str, name: str) -> tuple[str, float]:
    """Parses NAME=SHARE."""
    label, _, share = text.rpartition("=")
    try:
        return label.strip(), float(share)
    except ValueError:
        raise SfumatoError(f"`{name}` {text!r} is not NAME=SHARE", REMEDY) from None


def _pieces(texts: Sequence[str]) -> list[str]:
    """Splits texts at commas into NAME=SHARE. A name may contain commas."""
    pieces, current = [], ""
    for piece in (piece for text in ([texts] if isinstance(texts, str) else texts) for piece in f"{text}".split(",")):
        current += piece
        if "=" in piece:
            pieces.append(current)
            current = ""
        else:  # the comma is part of a name
            current += ","
    return [*pieces, *filter(None, [current.removesuffix(",")])]


def class_weights(prevalence: Mapping[str, float], classes: Sequence[str]) -> tuple[float, ...]:
    """Class weights w_c = min_k p_k / p_c in the order of the classes: inverse to the share, 1 for the rarest class.

    An example's clipped gradient is multiplied by the weight of its class. Weights in the loss would be undone by
    clipping: a gradient longer than C has norm C whatever its weight.

    **Guarantee.** The weights are a function of the declared shares only, and at most 1. An example's term in a step's
    sum is never longer than without weights, so the sensitivity is unchanged (unit: one example or one user; adjacency:
    any).

    Raises:
        SfumatoError: the shares are not those of exactly these classes, or don't sum to one.

    >>> class_weights({"normal": 0.8, "pneumonia": 0.2}, ("pneumonia", "normal"))
    (1.0, 0.25)
    """
    shares = ordered_shares(prevalence, classes)
    refuse_other_sum(prevalence)
    return tuple(min(shares) / share for share in shares)


def answer_weights(prevalence: Mapping[str, float], labels: Sequence[str]) -> tuple[tuple[float, float], ...]:
    """Weights (no, yes) of the two answers to each label, in the order of the labels, for multilabel losses.

    Each label has two answers, no and yes, with shares 1 - p and p. The weights are
    (min(p, 1 - p) / (1 - p), min(p, 1 - p) / p): 1 for the rarer answer, so that both have the same total weight on
    average. They multiply the terms of the loss, before clipping. Every example has an answer to each label, and the
    weights change the direction of its gradient, which clipping keeps. A single weight per example could not
    distinguish its labels.

    **Guarantee.** The weights are a function of the declared shares only. The weighted gradient is clipped afterwards,
    so an example's term is no longer than the clipping norm for any weights, and the sensitivity is unchanged (unit:
    one example; adjacency: any).

    Raises:
        SfumatoError: the shares are not those of exactly these labels. They need not sum to one.

    >>> answer_weights({"nodule": 0.2, "effusion": 0.5}, ("nodule", "effusion"))
    ((0.25, 1.0), (1.0, 1.0))
    """
    pairs = [(1 - share, share) for share in ordered_shares(prevalence, labels)]
    return tuple((min(pair) / pair[0], min(pair) / pair[1]) for pair in pairs)


def refuse_for_users() -> None:
    """Refuses class shares in runs that sample users."""
    raise SfumatoError(
        "`class_prevalence` weights single examples, but a step samples users, who are clipped as a whole",
        "leave it out",
    )


def sigmoid_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy, summed over classes and averaged over examples (Mehta et al. 2022, section 4).

    Args:
        logits: (N, classes).
        labels: (N,), class indices.

    Returns:
        () in nats.

    >>> import torch
    >>> round(sigmoid_cross_entropy(torch.zeros(2, 3), torch.tensor([0, 2])).item(), 4)  # 3 log 2
    2.0794
    """
    return multilabel_cross_entropy(logits, functional.one_hot(labels, logits.shape[-1]))


def multilabel_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Binary cross-entropy, summed over labels and averaged over examples; any number of labels may be 1.

    Labels are summed rather than averaged: clipping compensates for a gradient that is long because of many labels, but
    nothing compensates for one that averaging has made short relative to the noise.

    Args:
        logits: (N, L).
        labels: (N, L) of 0 and 1.
        weights: (L, 2), of the answers no and yes to each label (`answer_weights`); None for 1.

    Returns:
        () in nats.

    Raises:
        ValueError: labels of another shape.

    >>> round(multilabel_cross_entropy(torch.zeros(2, 3), torch.tensor([[0, 0, 0], [1, 0, 1]])).item(), 4)  # 3 log 2
    2.0794
    """
    if labels.shape != logits.shape:
        raise ValueError(f"labels must be of size {tuple(logits.shape)}, got {tuple(labels.shape)}")
    # The log probability of the true answer. Its gradient stays accurate for p near 1, where p - 1 loses all digits.
    right = functional.logsigmoid((2 * labels - 1) * logits)
    if weights is not None:
        right = right * torch.where(labels > 0, weights[:, 1], weights[:, 0])
    return -right.sum(-1).mean()


def next_word_cross_entropy(logits: Tensor, words: Tensor) -> Tensor:
    """Cross-entropy of each text's next words, averaged over the words of a text, and then over texts.

    Padding does not count. A text without words contributes 0.

    Args:
        logits: (N, T, V), at each position for the word that follows it.
        words: (N, T), the words that follow, 0 for padding.

    Returns:
        () in nats.

    >>> words = torch.tensor([[2, 1, 0], [3, 0, 0]])
    >>> round(next_word_cross_entropy(torch.zeros(2, 3, 4), words).item(), 4)  # log 4
    1.3863
    """
    counted = words > 0
    right = functional.log_softmax(logits, -1).gather(-1, words.unsqueeze(-1)).squeeze(-1)
    return -((right * counted).sum(-1) / counted.sum(-1).clamp_min(1)).mean()


MULTILABEL, NEXT_WORD = "multilabel", "next-word"
LOSSES: MappingProxyType[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "softmax": functional.cross_entropy,
        "sigmoid": sigmoid_cross_entropy,
        MULTILABEL: multilabel_cross_entropy,
        NEXT_WORD: next_word_cross_entropy,
    }
)


def weighted_loss(
    loss: str, prevalence: Mapping[str, float] | None, labels: Sequence[str], device: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of this name, with weights of the answers where shares of several labels are declared. Weights of
    classes multiply clipped gradients instead (`class_weights`)."""
    if prevalence is None or is_exclusive(loss):
        return LOSSES[loss]
    weights = torch.tensor(answer_weights(prevalence, labels), device=device)
    return partial(multilabel_cross_entropy, weights=weights)


def is_exclusive(loss: str) -> bool:
    """Whether classes are exclusive, that is, exactly one is correct."""
    return loss != MULTILABEL


def probabilities(logits: Tensor, loss: str) -> Tensor:
    """Probabilities from logits (N, classes): the softmax for loss "softmax", the sigmoid of each class otherwise."""
    return logits.softmax(-1) if loss in ("softmax", NEXT_WORD) else logits.sigmoid()


def logits_of(probabilities: Tensor, loss: str) -> Tensor:
    """Logits (N, classes) with these `probabilities`, finite even for 0 and 1.

    >>> p = torch.tensor([[0.2, 0.8]])
    >>> all(torch.allclose(probabilities(logits_of(p, loss), loss), p) for loss in LOSSES)
    True
    """
    within = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)
    if loss not in ("softmax", NEXT_WORD):
        return within.log() - (1 - probabilities).clamp(min=torch.finfo(probabilities.dtype).tiny).log()
    return within.log()


MARGIN = 0.2
"""The margin by which a triplet's negative should be farther than its positive (Schroff et al. 2015, section 3)."""
SHARPNESS = 10.0
"""The factor from cosine to logit of a pair: the initial value of Zhai et al. 2023 (arXiv 2303.15343)."""


def binary(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of whether two examples have the same class, averaged over all pairs of a batch.

    The logit of a pair is `SHARPNESS` (cosine - 1/2).

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        () in nats; 0 for a single example.

    >>> same = binary(torch.ones(2, 3), torch.tensor([1, 1]))
    >>> round(same.item(), 4), round(binary(torch.ones(2, 3), torch.tensor([1, 2])).item(), 4)
    (0.0067, 5.0067)
    """
    unit = functional.normalize(embeddings)
    first, second = torch.triu_indices(len(labels), len(labels), offset=1, device=labels.device)
    logits = SHARPNESS * ((unit[first] * unit[second]).sum(1) - 0.5)
    alike = (labels[first] == labels[second]).to(logits.dtype)
    total = functional.binary_cross_entropy_with_logits(logits, alike, reduction="sum")
    return total / max(1, len(first))


def triplet(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Triplet loss, averaged over all triplets of a batch that violate `MARGIN` ("batch all", Hermans et al. 2017).

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        (); 0 if there is no such triplet.
    """
    distances, positive, negative = _compared(embeddings, labels)
    short = torch.relu(distances[:, :, None] - distances[:, None, :] + MARGIN)
    short = short * (positive[:, :, None] & negative[:, None, :])
    return short.sum() / (short.detach() > 0).sum().clamp(min=1)


def triplet_hard(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Triplet loss of the farthest positive and the nearest negative of each example, averaged over examples.

    "Batch hard" of Hermans et al. 2017 (arXiv 1703.07737), equation 5, with `MARGIN`. Examples without a positive or
    without a negative in the batch do not count.

    Args:
        embeddings: (N, D).
        labels: (N,).

    Returns:
        (); 0 if no example counts.
    """
    distances, positive, negative = _compared(embeddings, labels)
    furthest = torch.where(positive, distances, -torch.inf).amax(1)
    nearest = torch.where(negative, distances, torch.inf).amin(1)
    counted = positive.any(1) & negative.any(1)
    short = torch.relu(furthest[counted] - nearest[counted] + MARGIN)
    return short.sum() / max(1, len(short))


def _compared(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances, positive pairs (same class) and negative pairs (different classes), each of shape (N, N)."""
    unit = functional.normalize(embeddings)
    alike = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return 2 - 2 * unit @ unit.T, alike & ~itself, ~alike


PAIRED: MappingProxyType[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"binary": binary, "triplet": triplet, "triplet-hard": triplet_hard}
)
