"""Runs a batch: chooses a path once for each kind of batch, and splits the batch into pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise, starmap
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.gradients.checks import hooks, isolation, memory
from sfumato.gradients.checks.discovery import discover, run_expanding
from sfumato.gradients.checks.synthetic import Examples, fits
from sfumato.gradients.conditions import DependsOnExample, Disagreement, run_by_branch
from sfumato.gradients.cuda_graphs import Captures
from sfumato.gradients.examples import signature, tree_map, tree_tensors
from sfumato.gradients.methods import sequential
from sfumato.gradients.methods.leaves import trainable_parameters
from sfumato.gradients.methods.vectorised import Objective, RunPath, RunResult
from sfumato.gradients.sites.dropout import fresh_keys
from sfumato.gradients.sums import ClippedSum, QueuedSum, exact_sum, fast_sum
from sfumato.gradients.tuner import Tuner
from sfumato.gradients.use import slices
from sfumato.gradients.walk import named_modules


class BatchRunner:
    """The clipped sums of batches of examples.

    Args:
        objective: the model and loss whose gradients are clipped.
        max_norm: the clipping norm C.
        template: the user's examples for finding out paths; None for random ones.
        capture: whether sums on a device are recorded as graphs (`Captures`).

    Attributes:
        template: the user's template, or else the latest synthetic examples.
        user_template: whether the template came from the user.
        paths: one for each kind of batch.
        latest: the path of the latest batch.
        captures: graphs of sums on a device; None to record none.
    """

    def __init__(self, objective: Objective, max_norm: float, template: Examples | None, *, capture: bool = False):
        self._objective, self._max_norm = objective, max_norm
        self.template, self.user_template = template, template is not None
        self.paths: dict[tuple, RunPath] = {}
        self.latest: RunPath | None = None
        self._pieces: dict[tuple, int] = {}
        self.captures = Captures(objective.model, objective.forms.known.clear) if capture else None

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Disables the recording and use of graphs within the context."""
        captures, self.captures = self.captures, None
        try:
            yield
        finally:
            self.captures = captures

    def path(self, batch: Examples) -> tuple[tuple, RunPath]:
        """The key of the batch's kind, and the path for it."""
        isolation.refuse_mixing_layers(self._objective.model)
        hooks.refuse_backward_hooks(self._objective.model, self._objective.loss)
        key = self._key(batch)
        if key not in self.paths:
            template = self.template if self.user_template or fits(self.template, batch) else None
            self.paths[key] = discover(self._objective, batch, template)
        self.latest = self.paths[key]
        return key, self.latest

    def reuse_path(self, batch: Examples, path: RunPath) -> None:
        """Reuses a path that was found out for such a batch and the same model in another floating-point type."""
        self.paths[self._key(batch)] = replace(path, synthetic=tree_map(itemgetter(slice(1)), batch))

    def _key(self, batch: Examples) -> tuple:
        modules = [module for _, module in named_modules(self._objective.model)]
        trained = tuple(p.requires_grad for module in modules for p in module._parameters.values() if p is not None)
        return signature(batch), tuple(module.training for module in modules), trained

    def sum_in_pieces(self, batch: Examples, key: tuple, *keys_weights: Tensor | None) -> ClippedSum:
        """Sums the batch in pieces that stay in the processor's cache, and are large enough not to cost time.

        Args:
            keys_weights: the examples' keys and weights.
        """
        examples = len(tree_tensors(batch)[0])
        count = -(-examples // self._piece_size(batch, key))
        bounds = [round(index * examples / count) for index in range(count + 1)]
        return reduce(
            ClippedSum.merge,
            (
                self._sum_of_piece(tree_map(itemgetter(piece), batch), key, *_select_rows(piece, keys_weights))
                for piece in starmap(slice, pairwise(bounds))
            ),
        )

    def _piece_size(self, batch: Examples, key: tuple) -> int:
        """The largest number of examples to run at once; on a CPU it follows from the memory of one example."""
        first, least = tree_tensors(batch)[0], -(-memory.LEAST_IMAGES // self._objective.views)
        if len(first) <= least or first.device.type != "cpu":
            return len(first)
        if key not in self._pieces:
            self._pieces[key] = max(least, memory.NEAR // memory.bytes_per_example(self._objective, self.paths[key]))
        return self._pieces[key]

    def _sum_of_piece(self, batch: Examples, key: tuple, keys: Tensor | None, weights: Tensor | None) -> ClippedSum:
        """Sums a piece of the batch at once, or in parts whose examples take the same branches of the model."""
        examples = len(tree_tensors(batch)[0])
        if keys is None and self.paths[key].draws:
            keys = fresh_keys(examples)  # examples that are run again must get the same masks

        def part(rows: Any) -> ClippedSum:
            synchronize = self.paths[key].conditional or not self._asynchronous(batch)
            rows_batch = tree_map(itemgetter(rows), batch)
            return self._sum_at_once(rows_batch, key, *_select_rows(rows, (keys, weights)), synchronize=synchronize)

        parts = run_by_branch(part, examples)
        places, total = next(parts)
        if len(places) == examples:
            return total
        for rows, partial_sum in parts:
            places, total = torch.cat([places, rows]), total.merge(partial_sum)
        return total.reorder(places)

    def _asynchronous(self, batch: Examples) -> bool:
        """Whether reading a value makes the host wait for a device."""
        return tree_tensors(batch)[0].device.type != "cpu"

    def _sum_at_once(
        self, batch: Examples, key: tuple, keys: Tensor | None, weights: Tensor | None, *, synchronize: bool = True
    ) -> ClippedSum:
        """Sums examples that take the same branches. Unless `synchronize`, a device may still compute the sum."""
        path = self.paths[key]
        try:
            if synchronize or path.draws or self.captures is None:
                total, doubtful, some = self._fast_sum(batch, weights, key=key, keys=keys, synchronize=synchronize)
            else:
                first = partial(self._fast_sum, key=key, keys=None, synchronize=False)
                total, doubtful, some = self.captures.sums(key, batch, weights, path.synthetic, first)
        except DependsOnExample:
            self.paths[key] = replace(path, conditional=True)
            return self._sum_at_once(batch, key, keys, weights)
        except (SfumatoError, Disagreement, torch.OutOfMemoryError):
            raise
        except Exception:
            if not path.conditional:
                raise
            return self.sum_one_by_one(batch, weights)  # vmap may fail in a branch that no synthetic example took
        if isinstance(some, Tensor):
            return QueuedSum(total, some, self._completion(total, doubtful, batch, key, keys, weights))
        return self._completed(total, doubtful, batch, key, keys, weights) if some else total

    def _fast_sum(
        self, batch: Examples, weights: Tensor | None, *, key: tuple, keys: Tensor | None, synchronize: bool
    ) -> tuple[ClippedSum, Tensor, bool | Tensor]:
        """The result of `fast_sum` for the batch."""
        run = self._run(batch, key, keys, weights, synchronize=synchronize)
        parameters = trainable_parameters(self._objective.model)
        return fast_sum(run, parameters, self._max_norm, weights, synchronize=synchronize)

    def _completed(
        self, total: ClippedSum, doubtful: Tensor, batch: Examples, key: tuple, *keys_weights: Tensor | None
    ) -> ClippedSum:
        """The sum with the doubtful examples, which the fast arithmetic left out, computed exactly and added."""
        rows = doubtful.nonzero()[:, 0]
        size = sum(parameter.numel() for parameter in trainable_parameters(self._objective.model).values())
        pieces = slices(len(rows), size, on=rows.device)
        exact = (self._exact_sum(rows[piece], batch, key, *keys_weights) for piece in pieces)
        return total.add_missing(rows, reduce(ClippedSum.merge, exact))

    def _exact_sum(
        self, rows: Tensor, batch: Examples, key: tuple, keys: Tensor | None, weights: Tensor | None
    ) -> ClippedSum:
        """The exact sum of the examples `rows`, from instantiated per-example gradients."""
        keys, weights = _select_rows(rows, (keys, weights))
        run = self._run(tree_map(itemgetter(rows), batch), key, keys, weights, exact=True)
        return exact_sum(run, trainable_parameters(self._objective.model), self._max_norm, weights)

    def _run(
        self, batch: Examples, key: tuple, keys: Tensor | None, weights: Tensor | None, **options: bool
    ) -> RunResult:
        known, objective = self.paths[key], self._objective
        if known.conditional:  # the branches of private examples, and thus the sites they use, must not be remembered
            objective = replace(objective, tuner=Tuner(objective.tuner.methods))
        run, path = run_expanding(objective, batch, known, keys=keys, weights=weights, **options)
        if not known.conditional:
            self.paths[key] = self.latest = path.extended_by(run)
        return run

    def _completion(
        self,
        total: ClippedSum,
        doubtful: Tensor,
        batch: Examples,
        key: tuple,
        *keys_weights: Tensor | None,
    ) -> Callable[[], ClippedSum]:
        """Returns a function that completes a device's sum that turned out to lack some examples.

        Only the missing examples are computed again, unless most are missing (a tensor that turned out not to be a
        function of rows) or one that is not finite has spoilt the sum; then all are.
        """
        model = self._objective.model
        read = [*model.parameters(), *model.buffers(), *tree_tensors(batch)]
        versions, kind = [tensor._version for tensor in read], tree_tensors(batch)[0].device.type
        precision = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

        def complete() -> ClippedSum:
            if versions != [tensor._version for tensor in read]:
                raise SfumatoError(
                    "the model, the inputs or the targets were written to before the clipped sum was read, and a part "
                    "of the sum must be computed again",
                    "read `gradients` before the optimizer's step and before the memory of the batch is reused",
                )
            few = 2 * int(doubtful.sum()) <= len(doubtful)
            with torch.enable_grad(), precision:
                if few and all(bool(value.isfinite().all()) for value in total.gradients.values()):
                    return self._completed(total, doubtful, batch, key, *keys_weights)
                return self._sum_at_once(batch, key, *keys_weights)

        return complete

    def sum_one_by_one(self, batch: Examples, weights: Tensor | None) -> ClippedSum:
        """Sums the batch by the slow path."""
        return sequential.clipped_sum(self._objective, *batch, max_norm=self._max_norm, weights=weights)


def _select_rows(rows: Any, tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """The given rows of each tensor that is not None."""
    return [None if tensor is None else tensor[rows] for tensor in tensors]
