"""How weights do on a run's test split, as often as they are asked about."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato.evaluation import accuracy, multilabel
from sfumato.models.losses import exclusive
from sfumato.observers.progress import Progress, Silence
from sfumato.training.inputs import OnFeatures, features
from sfumato.training.job import Job


class Scorer:
    """The test split; where the model begins with a fixed trunk, its features are computed once.

    Args:
        job: the run.
        progress: where to report to.
    """

    figure = "accuracy"

    def __init__(self, job: Job, progress: Progress | None = None):
        self._job, self._shown = job, copy.deepcopy(job.module)
        self._features = None if job.trunk is None else features(job, job.source.test, progress or Silence())
        self._labels = torch.from_numpy(job.source.test.labels)

    def outputs(self, weights: Mapping[str, Tensor], places: Sequence[int] | None = None) -> Tensor:
        """Logits (N, classes) of the model with these weights, on the CPU: of all test records, or of those at these
        places."""
        self._shown.load_state_dict(weights)
        if self._job.trunk is None or self._features is None:
            records = self._job.source.test
            return accuracy.logits(self._shown, records, self._job.transform, self._job.device, places=places)
        with torch.inference_mode():
            chosen = self._features if places is None else self._features[torch.as_tensor(places)]
            return OnFeatures(self._shown, self._job.trunk.head)(chosen).float().cpu()

    def outputs_alone(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Logits (N, classes) of the model with these weights, on the CPU, of all test records, for what is released
        of them.

        **Guarantee.** Each row is a function of its own record and of the weights (`evaluate.logits_alone`).
        """
        job, records = self._job, self._job.source.test
        self._shown.load_state_dict(weights)
        if job.trunk is not None and self._features is not None:
            return accuracy.logits_alone(OnFeatures(self._shown, job.trunk.head), self._features.split(accuracy.BATCH))
        starts = range(0, len(records), accuracy.BATCH)
        taken = (torch.from_numpy(records.take(slice(start, start + accuracy.BATCH))) for start in starts)
        return accuracy.logits_alone(self._shown, (job.transform(one.to(job.device)) for one in taken))

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """Accuracy, top five and loss of logits (N, classes)."""
        return accuracy.score_of(outputs, self._labels, loss=self._job.settings.objective.loss).to_dict()

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """Accuracy, loss, confusion and samples of the model with these weights, whose logits may be known already."""
        source, loss = self._job.source, self._job.settings.objective.loss
        outputs = self.outputs(weights) if outputs is None else outputs
        return accuracy.to_dict(accuracy.evaluation(outputs, source.test, source.classes, loss=loss))


class MultilabelScorer(Scorer):
    """The same of a model that decides each of several labels by itself."""

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """The share of right decisions and the loss of logits (N, L)."""
        return multilabel.score_of(outputs, self._labels)

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """The figures of each label of the model with these weights, whose logits may be known already."""
        outputs = self.outputs(weights) if outputs is None else outputs
        return multilabel.evaluation(outputs, self._labels, self._job.source.classes).to_dict()


def scorer_of(job: Job, progress: Progress | None = None) -> Scorer:
    """What measures a run's classifier, by what its loss says of its classes."""
    return (Scorer if exclusive(job.settings.objective.loss) else MultilabelScorer)(job, progress)
