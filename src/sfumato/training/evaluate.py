"""How a model does on records: accuracy, loss, confusion, samples. Without noise: private figures."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import Records, Transform
from sfumato.report import Evaluation

BATCH = 256
SAMPLES = 24


def logits(module: nn.Module, images: np.ndarray, transform: Transform, device: torch.device) -> Tensor:
    """Logits (N, classes), on the CPU, of uint8 images (N, H, W, C); the module is in evaluation mode meanwhile."""
    with evaluating(module), torch.inference_mode():
        parts = [
            module(transform(torch.from_numpy(images[start : start + BATCH]).to(device))).float().cpu()
            for start in range(0, len(images), BATCH)
        ]
    return torch.cat(parts)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode; all of its parts have their own modes again afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@dataclass(frozen=True, kw_only=True)
class Score:
    """How often the label is the first choice, how often among the first five (shares; None with five classes or
    fewer), and the mean cross-entropy (nats), on some records."""

    accuracy: float
    top5: float | None
    loss: float


def score(module: nn.Module, records: Records, transform: Transform, device: torch.device) -> Score:
    """How the module does on the records."""
    return score_of(logits(module, records.images, transform, device), torch.from_numpy(records.labels))


def score_of(outputs: Tensor, labels: Tensor) -> Score:
    """How logits (N, classes) do against labels (N,), both on the CPU."""
    top5 = None
    if outputs.shape[1] > 5:
        top5 = (outputs.topk(5, dim=1).indices == labels.unsqueeze(1)).any(1).double().mean().item()
    return Score(
        accuracy=(outputs.argmax(1) == labels).double().mean().item(),
        top5=top5,
        loss=functional.cross_entropy(outputs.double(), labels).item(),
    )


def evaluation(
    module: nn.Module, records: Records, transform: Transform, device: torch.device, classes: Sequence[str]
) -> Evaluation:
    """Accuracy, loss, confusion matrix and some samples, half of them errors where there are that many."""
    outputs = logits(module, records.images, transform, device)
    labels = torch.from_numpy(records.labels)
    chosen = outputs.argmax(1)
    count = len(classes)
    confusion = torch.bincount(labels * count + chosen, minlength=count * count).reshape(count, count)
    scores = outputs.double().softmax(1).max(1).values
    wrong = _across_classes(torch.nonzero(chosen != labels).flatten().tolist(), labels)[: SAMPLES // 2]
    right = _across_classes(torch.nonzero(chosen == labels).flatten().tolist(), labels)[: SAMPLES - len(wrong)]
    samples = [
        (_png(records.images[i]), classes[int(labels[i])], classes[int(chosen[i])], float(scores[i]))
        for i in sorted(wrong + right)
    ]
    figures = score_of(outputs, labels)
    return Evaluation(
        accuracy=figures.accuracy,
        top5=figures.top5,
        loss=figures.loss,
        classes=tuple(classes),
        confusion=confusion.tolist(),
        samples=samples,
    )


def _across_classes(places: list[int], labels: Tensor) -> list[int]:
    """The first of each class, then the second of each class, and so on."""
    seen: dict[int, int] = {}
    ranked = []
    for place in places:
        label = int(labels[place])
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], label, place))
    return [place for *_, place in sorted(ranked)]


def to_dict(result: Evaluation) -> dict[str, Any]:
    """The evaluation as JSON-ready data."""
    samples = [[base64.b64encode(png).decode("ascii"), *rest] for png, *rest in result.samples]
    return {
        "accuracy": result.accuracy,
        "top5": result.top5,
        "loss": result.loss,
        "classes": list(result.classes),
        "confusion": [list(row) for row in result.confusion],
        "samples": samples,
    }


def from_dict(data: Mapping[str, Any]) -> Evaluation:
    """The evaluation that `to_dict` wrote."""
    samples = [(base64.b64decode(png), truth, chosen, value) for png, truth, chosen, value in data["samples"]]
    return Evaluation(**{**data, "samples": samples})


def _png(image: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()
