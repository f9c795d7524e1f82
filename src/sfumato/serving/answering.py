"""From the records of several requests to answers, in batches: what one request has wrong is its own affair."""

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
from sfumato.data import AsStored, Tokens
from sfumato.models.losses import exclusive
from sfumato.runs import Loaded
from sfumato.serving.batches import Asked
from sfumato.serving.limits import busy

THRESHOLD = 0.5
"""From which score on one of several labels is said to be there."""


class Answering:
    """A loaded model that answers.

    Args:
        loaded: the model, as `sfumato.load` gives it.
        batch: records that go through it together, at most.

    Errors: `SfumatoError` for a model of stored features, which nobody can send.
    """

    def __init__(self, loaded: Loaded, batch: int):
        if isinstance(loaded.transform, AsStored):
            raise SfumatoError(
                "the model takes features of a backbone that is not in its file", "serve one that takes images or texts"
            )
        self.loaded, self.batch, self._transform = loaded, batch, loaded.transform
        self.of_texts = isinstance(loaded.transform, Tokens)
        self.of_numbers = isinstance(loaded.transform, Tokens) and loaded.transform.tokenizer == "numbers"

    def answers(self, requests: Sequence[Asked]) -> list[Tensor | SfumatoError]:
        """Of each request the rows (n, classes) of probabilities or (n, D) of embeddings, or why there are none.

        **Guarantee.** Functions of the released model and of what was sent: whatever is made of many answers, the
        promise for the model covers it.
        """
        refused: dict[int, SfumatoError] = {}
        found: list[list[Tensor]] = [[] for _ in requests]
        stored = self._stored(requests, refused)
        while some := list(islice(stored, self.batch)):
            places, arrays = zip(*some, strict=True)
            rows = self._rows(self._transform(np.stack(arrays)))
            counts = Counter(places)
            for place, own in zip(counts, rows.split(list(counts.values())), strict=True):
                found[place].append(own)
        return [refused[place] if place in refused else torch.cat(rows) for place, rows in enumerate(found)]

    def _stored(self, requests: Sequence[Asked], refused: dict[int, SfumatoError]) -> Iterator[tuple[int, np.ndarray]]:
        """Request by request, with its place, the records as a source would store them, up to the first that cannot
        be read; none of a request that nobody waits for any more."""
        for place, request in enumerate(requests):
            for number, record in enumerate(request.records):
                if request.over:
                    refused[place] = busy("its time is over")
                    break
                try:
                    yield place, self._transform.stored(record)
                except SfumatoError as error:
                    of = f"number {number} of those given: " if len(request.records) > 1 else ""
                    refused[place] = SfumatoError(f"{of}{error.problem}", error.remedy)
                    break

    def _rows(self, inputs: Tensor) -> Tensor:
        """What the model says of inputs (n, ...)."""
        with torch.inference_mode():
            outputs = self.loaded.module(inputs)
            return (
                normalize(outputs, dim=1) if self.loaded.embedding is not None else self.loaded.reading.scores(outputs)
            )

    def labelled(self, row: Sequence[float]) -> dict[str, Any]:
        """Probabilities (classes,) as `sfumato predict --json` has them."""
        scores = dict(zip(self.loaded.classes, row, strict=True))
        if not exclusive(self.loaded.loss):
            return {"labels": [name for name, score in scores.items() if score >= THRESHOLD], "scores": scores}
        best = max(scores, key=scores.__getitem__)
        return {"label": best, "score": scores[best], "scores": scores}
