"""How a batch is run: by which path, found out once for each kind of batch, and in what pieces."""

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
from sfumato.gradients.captured import Captures
from sfumato.gradients.checks import isolation, memory, unseen
from sfumato.gradients.checks.discovery import discover, run_expanding
from sfumato.gradients.checks.synthetic import Examples, fits
from sfumato.gradients.conditions import DependsOnExample, Disagreement, agreeing
from sfumato.gradients.examples import each, signature, tensors
from sfumato.gradients.methods import sequential
from sfumato.gradients.methods.expanded import trainable_parameters
from sfumato.gradients.methods.vectorised import Objective, Run, RunPath
from sfumato.gradients.sites.dropout import fresh_keys
from sfumato.gradients.sums import ClippedSum, QueuedSum, exact_sum, first_sum
from sfumato.gradients.tuner import Tuner
from sfumato.gradients.use import slices
from sfumato.gradients.walk import named_modules


class Batches:
    """The clipped sums of batches of examples.

    Args:
        objective: whose gradients are clipped.
        max_norm: the bound C.
        template: examples on which paths are found out; None for random ones.
        capture: whether sums on a device are recorded as graphs (`Captures`).

    Attributes:
        template: those, or the latest made-up ones.
        paths: by kind of batch.
        latest: the path of the latest batch.
        captures: graphs of sums on a device; None where there are to be none.
    """

    def __init__(self, objective: Objective, max_norm: float, template: Examples | None, *, capture: bool = False):
        self._objective, self._max_norm = objective, max_norm
        self.template, self.given = template, template is not None
        self.paths: dict[tuple, RunPath] = {}
        self.latest: RunPath | None = None
        self._pieces: dict[tuple, int] = {}
        self.captures = Captures(objective.model, objective.forms.known.clear) if capture else None

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Within, no graph is recorded or used."""
        captures, self.captures = self.captures, None
        try:
            yield
        finally:
            self.captures = captures

    def path(self, batch: Examples) -> tuple[tuple, RunPath]:
        """The kind of the batch, and the path for it."""
        isolation.refuse_mixing_layers(self._objective.model)
        unseen.refuse_backward_hooks(self._objective.model, self._objective.loss)
        key = self._key(batch)
        if key not in self.paths:
            template = self.template if self.given or fits(self.template, batch) else None
            self.paths[key] = discover(self._objective, batch, template)
        self.latest = self.paths[key]
        return key, self.latest

    def know(self, batch: Examples, path: RunPath) -> None:
        """Take the path that was found out for such a batch and such a model in another floating-point type."""
        self.paths[self._key(batch)] = replace(path, synthetic=each(itemgetter(slice(1)), batch))

    def _key(self, batch: Examples) -> tuple:
        modules = [module for _, module in named_modules(self._objective.model)]
        trained = tuple(p.requires_grad for module in modules for p in module._parameters.values() if p is not None)
        return signature(batch), tuple(module.training for module in modules), trained

    def in_pieces(self, batch: Examples, key: tuple, *own: Tensor | None) -> ClippedSum:
        """The batch in pieces that stay near the processor, as large as makes no difference to the time.

        Args:
            own: the examples' keys and weights.
        """
        examples = len(tensors(batch)[0])
        count = -(-examples // self._piece(batch, key))
        bounds = [round(index * examples / count) for index in range(count + 1)]
        return reduce(
            ClippedSum.followed_by,
            (
                self._piece_of(each(itemgetter(piece), batch), key, *_at(piece, own))
                for piece in starmap(slice, pairwise(bounds))
            ),
        )

    def _piece(self, batch: Examples, key: tuple) -> int:
        """The most examples at once: on a CPU, by what one of them needs in memory."""
        first, least = tensors(batch)[0], -(-memory.LEAST_IMAGES // self._objective.views)
        if len(first) <= least or first.device.type != "cpu":
            return len(first)
        if key not in self._pieces:
            self._pieces[key] = max(least, memory.NEAR // memory.bytes_per_example(self._objective, self.paths[key]))
        return self._pieces[key]

    def _piece_of(self, batch: Examples, key: tuple, keys: Tensor | None, weights: Tensor | None) -> ClippedSum:
        """A piece of the batch: at once, or in parts whose examples take the same branches of the model."""
        examples = len(tensors(batch)[0])
        if keys is None and self.paths[key].draws:
            keys = fresh_keys(examples)  # what is run again is to be run with the same masks

        def part(rows: Any) -> ClippedSum:
            asking = self.paths[key].conditional or not self._runs_behind(batch)
            return self._at_once(each(itemgetter(rows), batch), key, *_at(rows, (keys, weights)), asking=asking)

        parts = agreeing(part, examples)
        places, total = next(parts)
        if len(places) == examples:
            return total
        for rows, found in parts:
            places, total = torch.cat([places, rows]), total.followed_by(found)
        return total.in_order(places)

    def _runs_behind(self, batch: Examples) -> bool:
        """Whether the host would have to wait for the answer to a question about numbers."""
        return tensors(batch)[0].device.type != "cpu"

    def _at_once(
        self, batch: Examples, key: tuple, keys: Tensor | None, weights: Tensor | None, *, asking: bool = True
    ) -> ClippedSum:
        """Examples that take the same branches; without asking, a sum that a device may still compute."""
        known = self.paths[key]
        try:
            if asking or known.draws or self.captures is None:
                total, others, some = self._first(batch, weights, key=key, keys=keys, asking=asking)
            else:
                first = partial(self._first, key=key, keys=None, asking=False)
                total, others, some = self.captures.sums(key, batch, weights, known.synthetic, first)
        except DependsOnExample:
            self.paths[key] = replace(known, conditional=True)
            return self._at_once(batch, key, keys, weights)
        except (SfumatoError, Disagreement, torch.OutOfMemoryError):
            raise
        except Exception:
            if not known.conditional:
                raise
            return self.one_at_a_time(batch, weights)  # a branch that no made-up example took may not be for vmap
        if isinstance(some, Tensor):
            return QueuedSum(total, some, self._later(total, others, batch, key, keys, weights))
        return self._completed(total, others, batch, key, keys, weights) if some else total

    def _first(
        self, batch: Examples, weights: Tensor | None, *, key: tuple, keys: Tensor | None, asking: bool
    ) -> tuple[ClippedSum, Tensor, bool | Tensor]:
        """What `first_sum` gives for the batch."""
        found = self._run(batch, key, keys, weights, asking=asking)
        parameters = trainable_parameters(self._objective.model)
        return first_sum(found, parameters, self._max_norm, weights, asking=asking)

    def _completed(
        self, total: ClippedSum, others: Tensor, batch: Examples, key: tuple, *own: Tensor | None
    ) -> ClippedSum:
        """The sum with the examples that the fast arithmetic left out."""
        rows = others.nonzero()[:, 0]
        size = sum(parameter.numel() for parameter in trainable_parameters(self._objective.model).values())
        pieces = slices(len(rows), size, on=rows.device)
        exact = (self._exactly(rows[piece], batch, key, *own) for piece in pieces)
        return total.completed(rows, reduce(ClippedSum.followed_by, exact))

    def _exactly(
        self, rows: Tensor, batch: Examples, key: tuple, keys: Tensor | None, weights: Tensor | None
    ) -> ClippedSum:
        """The examples at these places, with every gradient formed."""
        keys, weights = _at(rows, (keys, weights))
        found = self._run(each(itemgetter(rows), batch), key, keys, weights, exact=True)
        return exact_sum(found, trainable_parameters(self._objective.model), self._max_norm, weights)

    def _run(self, batch: Examples, key: tuple, keys: Tensor | None, weights: Tensor | None, **options: bool) -> Run:
        known, objective = self.paths[key], self._objective
        if known.conditional:  # which branches private examples take, and thus which sites they meet, is not remembered
            objective = replace(objective, tuner=Tuner(objective.tuner.methods))
        found, path = run_expanding(objective, batch, known, keys=keys, weights=weights, **options)
        if not known.conditional:
            self.paths[key] = self.latest = path.having(found)
        return found

    def _later(
        self,
        total: ClippedSum,
        others: Tensor,
        batch: Examples,
        key: tuple,
        *own: Tensor | None,
    ) -> Callable[[], ClippedSum]:
        """What to do about a sum of a device that turned out to lack some examples.

        These are computed again by themselves; or all are, where most are missing (a function that is none of rows)
        and where one that is not finite has spoilt the sum.
        """
        model = self._objective.model
        given = [*model.parameters(), *model.buffers(), *tensors(batch)]
        versions, kind = [tensor._version for tensor in given], tensors(batch)[0].device.type
        precision = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

        def later() -> ClippedSum:
            if versions != [tensor._version for tensor in given]:
                raise SfumatoError(
                    "the model, the inputs or the targets were written to before the clipped sum was read, of which a "
                    "part must be computed again",
                    "read `gradients` before the optimizer's step, and before a batch's memory is used again",
                )
            few = 2 * int(others.sum()) <= len(others)
            with torch.enable_grad(), precision:
                if few and all(bool(value.isfinite().all()) for value in total.gradients.values()):
                    return self._completed(total, others, batch, key, *own)
                return self._at_once(batch, key, *own)

        return later

    def one_at_a_time(self, batch: Examples, weights: Tensor | None) -> ClippedSum:
        """The same by the slow path."""
        return sequential.clipped_sum(self._objective, *batch, max_norm=self._max_norm, weights=weights)


def _at(rows: Any, tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """These rows of each tensor that is there."""
    return [None if tensor is None else tensor[rows] for tensor in tensors]
