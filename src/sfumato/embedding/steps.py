"""A round as a step of the training loop: drawn users, their virtual clients, the private step; and its evaluation."""

from __future__ import annotations

import base64
import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError
from sfumato.data import Part, Source, by_user
from sfumato.embedding.choices import EVEN
from sfumato.embedding.experiment import known_groups
from sfumato.embedding.job import AnyJob, BackboneWithHead, EmbeddingJob, NoiselessJob, UntrainedJob
from sfumato.embedding.rounds import Assign, Rounds, assign_by_group, assign_evenly, assign_randomly
from sfumato.evaluation.recall import BEGINNING, PIXELS, RESULT, compare_recall, recall_at_far, roc
from sfumato.evaluation.similarity import embed, nearest, recall_at_k
from sfumato.gradients import GridSum
from sfumato.observers.progress import Progress
from sfumato.privacy import QuantileClipping
from sfumato.randomness import NoiseState, RunKey, Sampler
from sfumato.report import png
from sfumato.training import launch
from sfumato.training.parts.part import RunKind
from sfumato.training.preparation.building import noise_of
from sfumato.training.step import FARTHEST, NORM, AdaptiveStep, PrivateStep
from sfumato.training.steps import PlanSteps, PrivateTrainingSteps, PublicSteps
from sfumato.training.workers import ALONE, Workers

BATCH = 256
SAMPLED = 4096
"""The most test images for recall during training. At the end it is measured on all."""
MINIBATCH = 32
QUERIES, NEIGHBOURS = 8, 6
MOST_PIXELS = 32
"""Larger images are averaged down to about this side before their pixels are compared."""


class RoundClients:
    """The virtual clients of a job's rounds, with their records.

    Args:
        job: holds the grouping of users and the records.
        key: the run key.

    **Guarantee.** A user's client is a function of the run key and of that user alone (`clients`). With fixed groups it
    is the user's own group. With clients of equal size, under zero-out adjacency alone, it also depends on who is
    drawn.
    """

    def __init__(self, job: EmbeddingJob | NoiselessJob, key: RunKey):
        source, self._job = job.source, job
        users, names = by_user(source.train)
        self._group: np.ndarray | None = None
        assign: Assign
        if job.clients.grouping == "random":
            assign = assign_randomly(key, len(names), clients=job.clients.count)
        elif job.clients.grouping == EVEN:
            assign = assign_evenly(key, clients=job.clients.count)
        elif job.clients.grouping == "group":
            assign = assign_by_group(key, groups_by_user(source), clients=job.clients.count)
        else:
            _, group = np.unique(groups_by_user(source), return_inverse=True)
            self._group = group
            assign = lambda step, drawn: group[drawn]  # noqa: E731 - a fixed group is a client
        self.units = len(names) if self._group is None else int(self._group.max()) + 1
        self._rounds = Rounds(key=key, assign=assign, users=users, labels=source.train.labels, inputs=self._inputs)

    def micro_batches(
        self, step: int, drawn: np.ndarray, workers: Workers = ALONE
    ) -> Iterator[tuple[Tensor, Tensor, np.random.Generator]]:
        """Yields each client of the drawn users (or fixed groups): see `Rounds`."""
        users = drawn if self._group is None else np.flatnonzero(np.isin(self._group, drawn))
        return self._rounds.micro_batches(step, users, workers)

    def _inputs(self, records: np.ndarray) -> Tensor:
        job = self._job
        return job.transform(torch.from_numpy(job.source.train.take(records)).to(job.device))


class EmbeddingSteps(PlanSteps):
    """Users drawn by the plan, their virtual clients, and the private step.

    **Guarantee.** Users (or fixed groups of them) take part by the plan's own rule, each by a number that does not
    depend on the others. For the assignment of users to clients see `RoundClients`.
    """

    def __init__(self, job: EmbeddingJob, key: RunKey, progress: Progress | None = None):
        plan, self._plan = job.plan, job.plan
        adaptive = isinstance(plan.clipping, QuantileClipping)
        noise = noise_of(job.settings, plan, key, max_norm=1.0 if adaptive else None)
        kind = AdaptiveStep if adaptive else PrivateStep
        self._step = kind(
            plan=plan, gradient=job.gradient, noise=noise, divisor=job.clients.count, workers=launch.current_workers()
        )
        self._clients = RoundClients(job, key)
        self._sampler = Sampler(plan, key, records=self._clients.units)

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """The server's gradient in this round, and the noise's next state."""
        return self._step(
            step, self._clients.micro_batches(step, self._sampler.draw(step), launch.current_workers()), state
        )


class NoiselessSteps:
    """The mean of a round's clipped updates: no plan, no noise, no promise.

    Drawn users, clients, local training, clipping and the adaptive norm are those of `EmbeddingSteps` with the same
    key, except that the count for the adaptive norm is exact (Andrew et al. 2021, equation 2: C exp(-eta (b - gamma))).

    **Guarantee.** None: see `NoiselessJob`.
    """

    def __init__(self, job: NoiselessJob, key: RunKey, progress: Progress | None = None):
        self._job, self._key, self._clients = job, key, RoundClients(job, key)
        self._probability = job.batch_size / job.rounds.population
        self._bound = job.rounds.clipping.max_norm

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """The server's gradient in this round, and the next round's norm if it follows a quantile."""
        clipping, count = self._job.rounds.clipping, self._job.clients.count
        self._bound = bound = float(state.tensors[NORM]) if NORM in state.tensors else clipping.max_norm
        drawn = np.flatnonzero(self._key.generator("sampling", step).random(self._clients.units) < self._probability)
        query, within = self._job.gradient.with_max_norm(bound), 0.0
        total = GridSum(query.zeros(), max_norm=bound)
        for client in self._clients.micro_batches(step, drawn):
            found = query(*client)
            total.add(found.gradients)
            within += found.within
        following = NoiseState(step=step + 1)
        if isinstance(clipping, QuantileClipping):
            after = clipping.next_norm(bound, clipping.noisy_fraction(within, count))
            after = min(max(after, clipping.max_norm / FARTHEST), clipping.max_norm * FARTHEST)
            following.tensors[NORM] = torch.tensor(after, dtype=torch.float64)
        return {name: value / count for name, value in total.value().items()}, following

    def figures(self, step: int) -> dict[str, Any]:
        """The clipping norm of the last round. If it follows a quantile, it is an estimate of it."""
        return {"max_norm": self._bound}


class NoSteps:
    """The steps of an untrained embedding: there are none."""

    def __init__(self, job: UntrainedJob, key: RunKey, progress: Progress | None = None):
        pass

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """Raises TypeError."""
        raise TypeError("an untrained embedding has no steps")

    def figures(self, step: int) -> dict[str, Any]:
        """No figures."""
        return {}


class EmbeddingScorer:
    """Recall at a false accept rate on the test part: during training on some of its users, at the end on all.

    Args:
        job: the run.
        progress: where to report progress.
    """

    figure = "recall"

    def __init__(self, job: AnyJob, progress: Progress | None = None):
        self._job, self._shown = job, copy.deepcopy(job.module)
        self._rows = _sample_rows(job.source.test.users, job.source.test.labels)

    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Embeddings (n, D) of length 1 of some test images, on the CPU."""
        return self._embedded(weights, self._rows)

    def score(self, outputs: Tensor) -> dict[str, Any]:
        """Recall on those images."""
        labels = self._job.source.test.labels[self._rows]
        return {"recall": recall_at_far(outputs, labels, [self._job.clients.far]).points[0].recall}

    def evaluation(self, weights: Mapping[str, Tensor], outputs: Tensor | None = None) -> dict[str, Any]:
        """Recall over all pairs and by minibatch, the curve over false accept rates, and some nearest neighbours."""
        source, far = self._job.source, self._job.clients.far
        embeddings = self._embedded(weights, np.arange(len(source.test)))
        shown = _neighbours(embeddings, source.test, source.classes)
        measured = evaluation(embeddings, source.test.labels, far=far)
        return measured | {"compared": self._compared(embeddings), "neighbours": shown}

    def _compared(self, embeddings: Tensor) -> dict[str, Any]:
        """Recall of the pixels, the initial model and the trained model on the same images, with intervals."""
        test, rows = self._job.source.test, self._rows
        result = embeddings[torch.from_numpy(rows)]
        untrained = isinstance(self._job, UntrainedJob)
        vectors = {
            PIXELS: pixel_vectors(test, rows),
            BEGINNING: result if untrained else self._embedded(self._job.initial_weights, rows),
            RESULT: result,
        }
        return compare_recall(vectors, test.labels[rows], far=self._job.clients.far)

    def _embedded(self, weights: Mapping[str, Tensor], rows: np.ndarray) -> Tensor:
        job = self._job
        self._shown.load_state_dict(weights)
        backbone = self._shown.backbone if isinstance(self._shown, BackboneWithHead) else self._shown
        return embed_records(backbone, job.source.test, job.transform, job.device, rows)


EMBEDDING = RunKind(steps=EmbeddingSteps, scorer=EmbeddingScorer)
DPSGD = RunKind(steps=PrivateTrainingSteps, scorer=EmbeddingScorer)
CENTRAL = RunKind(steps=PublicSteps, scorer=EmbeddingScorer)
NOISELESS = RunKind(steps=NoiselessSteps, scorer=EmbeddingScorer)
NOTHING = RunKind(steps=NoSteps, scorer=EmbeddingScorer)


def groups_by_user(source: Source) -> np.ndarray:
    """The name of each user's own group, text (users,).

    Errors: `SfumatoError` if the source has no groups, or if a user's records name two groups.
    """
    numbers, names = by_user(source.train)
    groups = known_groups(source)
    _, first = np.unique(numbers, return_index=True)
    own = groups[first]
    if not np.array_equal(own[numbers], groups):
        odd = names[numbers[np.flatnonzero(own[numbers] != groups)[0]]]
        raise SfumatoError("the records of one user name two groups", f"give each user one group (user {odd!r})")
    return own


def embed_records(
    backbone: nn.Module, records: Part, transform: Any, device: torch.device, rows: np.ndarray | None = None
) -> Tensor:
    """Embeddings (n, D) of length 1 of all records, or of those in `rows`, on the CPU."""
    rows = np.arange(len(records)) if rows is None else rows
    pieces = np.array_split(rows, max(1, -(-len(rows) // BATCH)))
    return embed(backbone, (transform(torch.from_numpy(records.take(piece)).to(device)) for piece in pieces))


def pixel_vectors(records: Part, rows: np.ndarray) -> Tensor:
    """The centred pixels of some records, (n, H W C): the baseline of every embedding.

    Images larger than `MOST_PIXELS` per side are averaged down to about that size.
    """
    found = []
    for piece in np.array_split(rows, max(1, -(-len(rows) // BATCH))):
        images = torch.from_numpy(records.take(piece)).permute(0, 3, 1, 2).float() / 127.5 - 1  # of 8 bits, never 0
        shrink = max(1, round(min(images.shape[2:]) / MOST_PIXELS))
        found.append((functional.avg_pool2d(images, shrink) if shrink > 1 else images).flatten(1))
    return torch.cat(found)


def evaluation(embeddings: Tensor, labels: np.ndarray, *, far: float) -> dict[str, Any]:
    """The exact figures of embeddings (N, D) of images with labels (N,), JSON-ready."""
    whole, curve = recall_at_far(embeddings, labels, [far]), roc(embeddings, labels)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    batchwise: float | None = None  # stays None if no minibatch has two images of one class
    with contextlib.suppress(SfumatoError):
        mixed = embeddings[torch.from_numpy(shuffled)], labels[shuffled]
        batchwise = recall_at_far(*mixed, [far], minibatch=MINIBATCH).points[0].recall
    point = whole.points[0]
    return {
        "recall": point.recall,
        "far": far,
        "threshold": point.threshold,
        "recall_by_minibatch": batchwise,
        "images": whole.images,
        "pairs_of_one_class": whole.same,
        "pairs_of_two_classes": whole.different,
        "curve": [[one.at_far, one.recall] for one in curve.points],
        "retrieval": {str(k): share for k, share in recall_at_k(embeddings, labels, (1, 5)).items()},
    }


def _neighbours(embeddings: Tensor, records: Part, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Some images with their nearest neighbours, as PNG files in base64."""
    count = min(NEIGHBOURS, len(embeddings) - 1)
    asked = np.linspace(0, len(embeddings) - 1, min(QUERIES, len(embeddings))).astype(int)
    places, similar = nearest(embeddings, k=count)

    def shown(place: int) -> dict[str, Any]:
        image = records.take(np.array([place]))[0]
        return {"png": base64.b64encode(png(image)).decode("ascii"), "class": classes[int(records.labels[place])]}

    return [
        {
            "query": shown(int(query)),
            "nearest": [
                shown(int(place)) | {"similarity": float(value)}
                for place, value in zip(places[query], similar[query], strict=True)
            ],
        }
        for query in asked
    ]


def _sample_rows(users: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """At most `SAMPLED` rows, of whole users chosen by a fixed shuffle of their names."""
    if len(labels) <= SAMPLED:
        return np.arange(len(labels))
    shuffled = np.random.default_rng(0)
    if users is None:
        return np.sort(shuffled.choice(len(labels), SAMPLED, replace=False))
    _, numbers, counts = np.unique(users, return_inverse=True, return_counts=True)
    order = shuffled.permutation(len(counts))
    kept = order[np.cumsum(counts[order]) <= SAMPLED]
    return np.flatnonzero(np.isin(numbers, kept))
