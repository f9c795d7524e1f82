"""The evaluation of a run on its test split: one class for each record, several labels, next words, or embeddings."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.data import NextWords
from sfumato.evaluation import accuracy, embeddings, next_words, recall
from sfumato.models.losses import NEXT_WORD, is_exclusive
from sfumato.observers.progress import NoProgress, Progress
from sfumato.training.inputs import features, head_on_features
from sfumato.training.job import Embedding, SourceJob
from sfumato.training.local import BackboneWithHead
from sfumato.training.planned import Measure


class Scorer:
    """Evaluates weights on the test split. The features of a fixed trunk are computed once."""

    figure = "accuracy"

    def __init__(self, job: SourceJob, progress: Progress | None = None):
        self._job, self._shown = job, copy.deepcopy(job.module)
        self._features = None if job.trunk is None else features(job, job.source.test, progress or NoProgress())
        self._labels = torch.from_numpy(job.source.test.labels)

    def outputs(self, weights: Mapping[str, Tensor], places: Sequence[int] | None = None) -> Tensor:
        """Logits (N, classes) of the model with these weights, on the CPU, for all test records or those at
        `places`."""
        self._shown.load_state_dict(weights)
        if self._job.trunk is None or self._features is None:
            records = self._job.source.test
            return accuracy.logits(self._shown, records, self._job.transform, self._job.device, places=places)
        with torch.inference_mode():
            chosen = self._features if places is None else self._features[torch.as_tensor(places)]
            return head_on_features(self._shown, self._job.trunk.head)(chosen).float().cpu()

    def per_example_outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Logits (N, classes) of the model with these weights, on the CPU, for all test records. For released figures.

        **Guarantee.** Each row is a function of its own record and of the weights (`accuracy.per_example_logits`).
        """
        job, records = self._job, self._job.source.test
        self._shown.load_state_dict(weights)
        if job.trunk is not None and self._features is not None:
            return accuracy.per_example_logits(
                head_on_features(self._shown, job.trunk.head), self._features.split(accuracy.BATCH)
            )
        starts = range(0, len(records), accuracy.BATCH)
        taken = (torch.from_numpy(records.take(slice(start, start + accuracy.BATCH))) for start in starts)
        return accuracy.per_example_logits(self._shown, (job.transform(one.to(job.device)) for one in taken))

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """Accuracy, top-5 accuracy and loss of logits (N, classes)."""
        return accuracy.score_of(outputs, self._labels, loss=self._job.settings.objective.loss).to_dict()

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """Accuracy, loss, confusion and samples of the model with these weights; `outputs` skips computing logits."""
        source, loss = self._job.source, self._job.settings.objective.loss
        outputs = self.outputs(weights) if outputs is None else outputs
        return accuracy.to_dict(accuracy.evaluation(outputs, source.test, source.classes, loss=loss))

    def spread(self, count: int) -> list[int]:
        """At most `count` test records, spread evenly."""
        whole = len(self._labels)
        return np.linspace(0, whole - 1, min(whole, count)).round().astype(int).tolist()

    def decisions(
        self, weights: Mapping[str, Tensor], outputs: Tensor | None, places: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Logits (n, classes) and labels (n,) of some test records; `outputs` of all skips computing them."""
        return self.outputs(weights, places) if outputs is None else outputs[places], self._labels[places]

    def samples(self, outputs: Tensor) -> list[int]:
        """The test records whose predictions are shown."""
        return accuracy.sample_indices(outputs, self._job.source.test)


class MultilabelScorer(Scorer):
    """Evaluates weights of a multilabel model on the test split."""

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """The share of correct decisions and the loss of logits (N, L)."""
        return accuracy.label_score(outputs, self._labels)

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """Figures for each label of the model with these weights; `outputs` skips computing logits."""
        outputs = self.outputs(weights) if outputs is None else outputs
        return accuracy.label_evaluation(outputs, self._labels, self._job.source.classes).to_dict()


class WordScorer(Scorer):
    """Evaluates weights of a model of next words on the test split. Its outputs are figures of each word
    (`next_words.figures_of_words`), because logits of all words would not fit in memory."""

    def outputs(self, weights: Mapping[str, Tensor], places: Sequence[int] | None = None) -> Tensor:
        """The figures (N, T, 3) of each word for the model with these weights, for all test records or those at
        `places`."""
        self._shown.load_state_dict(weights)
        return next_words.figures_of_words(self._shown, self._form, self._job.device, self._job.source.test, places)

    @property
    def _form(self) -> NextWords:
        if not isinstance(form := self._job.source.tokens, NextWords):
            raise TypeError(f"next words are of texts, got {form!r}")
        return form

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """Accuracy, top-5 accuracy and loss, from the figures of each word."""
        return next_words.score_of(outputs, self._labels, self._form.vocabulary)

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """The figures of the model with these weights; `outputs` skips computing those of each word."""
        outputs = self.outputs(weights) if outputs is None else outputs
        return next_words.evaluation(outputs, [self._job.source.test], self._form.vocabulary).to_dict()

    def spread(self, count: int) -> list[int]:
        """Test records with about this many words, spread evenly."""
        return super().spread(max(1, count // self._labels.shape[1]))

    def decisions(
        self, weights: Mapping[str, Tensor], outputs: Tensor | None, places: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Logits (n, classes) and labels (n,) of the counted words of some test records."""
        self._shown.load_state_dict(weights)
        return next_words.decisions(self._shown, self._form, self._job.device, self._job.source.test, places)

    def samples(self, outputs: Tensor) -> list[int]:
        """No samples are shown."""
        return []


class EmbeddingScorer:
    """Recall at a false accept rate on the test part: during training on some of its users, at the end on all."""

    figure = "recall"

    def __init__(self, job: SourceJob, embedding: Embedding):
        self._job, self._embedding, self._shown = job, embedding, copy.deepcopy(job.module)
        self._rows = embeddings.sample_rows(job.source.test.users, job.source.test.labels)

    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Embeddings (n, D) of length 1 of some test images, on the CPU."""
        return self._embedded(weights, self._rows)

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """Recall on those images."""
        labels, far = self._job.source.test.labels[self._rows], self._embedding.clients.far
        return {"recall": recall.recall_at_far(outputs, labels, [far]).points[0].recall}

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """Recall over all pairs and by minibatch, the curve over false accept rates, and some nearest neighbours; and
        recall of the pixels, the initial model and the trained model on the same images, with intervals."""
        source, far, rows = self._job.source, self._embedding.clients.far, self._rows
        result = self._embedded(weights, np.arange(len(source.test)))
        trained = result[torch.from_numpy(rows)]
        compared = {
            recall.PIXELS: embeddings.pixel_vectors(source.test, rows),
            recall.BEGINNING: self._embedded(self._embedding.initial_weights, rows) if self._job.steps else trained,
            recall.RESULT: trained,
        }
        return embeddings.evaluation(result, source.test.labels, far=far) | {
            "compared": recall.compare_recall(compared, source.test.labels[rows], far=far),
            "neighbours": embeddings.neighbours(result, source.test, source.classes),
        }

    def _embedded(self, weights: Mapping[str, Tensor], rows: np.ndarray) -> Tensor:
        self._shown.load_state_dict(weights)
        backbone = self._shown.backbone if isinstance(self._shown, BackboneWithHead) else self._shown
        return embeddings.embed_records(backbone, self._job.source.test, self._job.transform, self._job.device, rows)


def scorer_of(job: SourceJob, progress: Progress | None = None) -> Measure:
    """The scorer for the run: of embeddings, or for its loss, of exclusive classes, several labels, or next words."""
    if job.embedding is not None:
        return EmbeddingScorer(job, job.embedding)
    loss = job.settings.objective.loss
    kind = WordScorer if loss == NEXT_WORD else Scorer if is_exclusive(loss) else MultilabelScorer
    return kind(job, progress)
