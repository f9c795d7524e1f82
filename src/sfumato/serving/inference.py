"""Batched inference on the records of several requests. An error in one request does not affect the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sfumato._checks import SfumatoError
from sfumato.data import FeatureTransform, Tokens
from sfumato.models.losses import is_exclusive
from sfumato.runs import Loaded
from sfumato.serving.batches import Pending
from sfumato.serving.limits import busy

THRESHOLD = 0.5
"""Score from which a multilabel model predicts a label."""


class Predictor:
    """Answers requests with a loaded model.

    Args:
        loaded: the model, as returned by `sfumato.load`.
        batch: largest number of records in a batch.

    Raises:
        SfumatoError: the model takes stored features, which clients cannot send.
    """

    def __init__(self, loaded: Loaded, batch: int):
        if isinstance(loaded.transform, FeatureTransform):
            raise SfumatoError(
                "the model takes features of a backbone that is not in its file", "serve a model of images or texts"
            )
        self.loaded, self.batch, self._transform = loaded, batch, loaded.transform
        self.takes_texts = isinstance(loaded.transform, Tokens)
        self.takes_numbers = isinstance(loaded.transform, Tokens) and loaded.transform.tokenizer == "numbers"

    def predict_batch(self, requests: Sequence[Pending]) -> list[Tensor | SfumatoError]:
        """For each request, the rows (n, classes) of probabilities or (n, D) of embeddings, or the error.

        **Guarantee.** Answers are functions of the released model and of what was sent. The model's promise covers
        anything computed from any number of answers.
        """
        refused: dict[int, SfumatoError] = {}
        answers: list[list[Tensor]] = [[] for _ in requests]
        stored = self._stored(requests, refused)
        while batch := list(islice(stored, self.batch)):
            indices, arrays = zip(*batch, strict=True)
            rows = self._rows(self._transform(np.stack(arrays)))
            counts = Counter(indices)
            for index, part in zip(counts, rows.split(list(counts.values())), strict=True):
                answers[index].append(part)
        return [refused[index] if index in refused else torch.cat(rows) for index, rows in enumerate(answers)]

    def _stored(
        self, requests: Sequence[Pending], refused: dict[int, SfumatoError]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the records as a source would store them, with the index of their request.

        A request ends at its first unreadable record, or when its client no longer waits.
        """
        for index, request in enumerate(requests):
            for number, record in enumerate(request.records):
                if request.is_abandoned:
                    refused[index] = busy("the request has timed out")
                    break
                try:
                    yield index, self._transform.to_stored(record)
                except SfumatoError as error:
                    which = f"record {number} of the request: " if len(request.records) > 1 else ""
                    refused[index] = SfumatoError(f"{which}{error.problem}", error.remedy)
                    break

    def _rows(self, inputs: Tensor) -> Tensor:
        """The scores or embeddings of inputs (n, ...)."""
        with torch.inference_mode():
            outputs = self.loaded.outputs(inputs)
            return (
                normalize(outputs, dim=1) if self.loaded.embedding is not None else self.loaded.reading.scores(outputs)
            )

    def labelled(self, row: Sequence[float]) -> dict[str, Any]:
        """Labels and scores from probabilities (classes,), in the format of `sfumato predict --json`."""
        scores = dict(zip(self.loaded.classes, row, strict=True))
        if not is_exclusive(self.loaded.loss):
            return {"labels": [name for name, score in scores.items() if score >= THRESHOLD], "scores": scores}
        best = max(scores, key=scores.__getitem__)
        return {"label": best, "score": scores[best], "scores": scores}
