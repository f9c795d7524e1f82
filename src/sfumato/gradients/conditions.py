"""Conditions: models that branch on their example (``if mask.all():``), run on all examples at once.

If all examples give the same answer to a condition, the model gets this answer. Otherwise the run is abandoned, and the
examples that say yes and those that say no are run separately from the beginning. So each example takes the branches
that it would take alone. Conditions are only answered in a run that is prepared for them: on copies, and with a record
of everything that the model holds, since a model could store an answer and expose it to the next example (`isolation`).

Random numbers drawn inside the model differ between runs, and repeating a run because of an answer that depends on them
would select among them. So after the model has drawn any, no condition is answered, and the examples take the slow
path, one at a time. Dropout follows the examples' keys and is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from sfumato._devices import rng_states
from sfumato.gradients.methods.batch_axis import depends_on_example, unwrap_batched

Result = TypeVar("Result")


class DependsOnExample(Exception):  # noqa: N818
    """The model branches on its example in a run that is not prepared for it."""


class Disagreement(Exception):  # noqa: N818
    """The examples give different answers to a condition.

    Attributes:
        answers: (B,) booleans, on the CPU.
    """

    def __init__(self, answers: Tensor):
        super().__init__("the examples give different answers to a condition")
        self.answers = answers


class Conditions:
    """The conditions of one run.

    As a context manager, it raises the exception of a condition again if the model caught it.

    Args:
        allowed: whether the run is prepared for conditions.
        device: the run's device.

    Attributes:
        met: whether the model evaluated a condition.
    """

    def __init__(self, *, allowed: bool, device: torch.device):
        self.met = False
        self._allowed, self._device = allowed, device
        self._failure: Callable[[], Exception] | None = None
        self._random = self._random_state() if allowed else []

    def __enter__(self) -> Conditions:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._failure is not None and (kind is None or issubclass(kind, Exception)):
            raise self._failure()

    def answer(self, tensor: Tensor) -> Any:
        """The truth value of a one-element tensor, or NotImplemented to leave the question to torch."""
        batched = unwrap_batched(tensor)
        if batched is None or tensor.numel() != 1:
            return NotImplemented
        self.met = True
        if not self._allowed:
            self._fail(DependsOnExample)
        if not all(map(torch.equal, self._random, self._random_state())):
            self._fail(partial(RuntimeError, "a condition after random numbers drawn inside the model"))
        values, axis = batched
        answers = values.detach().movedim(axis, 0).reshape(-1).bool().cpu()
        true = int(answers.sum())
        if 0 < true < len(answers):
            self._fail(partial(Disagreement, answers))
        return true > 0

    def _fail(self, failure: Callable[[], Exception]) -> NoReturn:
        self._failure = failure
        raise failure()

    def _random_state(self) -> list[Tensor]:
        return rng_states(self._device)


def run_by_branch(run: Callable[[Any], Result], examples: int) -> Iterator[tuple[Tensor, Result]]:
    """Splits a batch into parts in which all examples take the same branches, and runs each of them.

    Args:
        run: runs the examples at some places, given as an index: a slice for all, (b,) int64 for some.
        examples: B.

    Yields:
        places (b,) and the result of `run`; every example is in exactly one part.
    """
    pending: list[Tensor | slice] = [slice(None)]
    while pending:
        rows = pending.pop()
        places = torch.arange(examples)[rows]
        try:
            result = run(rows)
        except Disagreement as disagreement:
            pending += [places[~disagreement.answers], places[disagreement.answers]]
        else:
            yield places, result
            del result


def tap_truth(mode, self):
    """The handler of ``if tensor:``, ``not tensor``, ``tensor and ...`` and similar expressions."""
    return mode.tape.conditions.answer(self)


def tap_item(mode, self):
    """The handler of ``Tensor.item`` of a boolean; other numbers are not conditions."""
    return mode.tape.conditions.answer(self) if self.dtype == torch.bool else NotImplemented


def tap_contains(mode, self, element):
    """The handler of ``element in tensor``."""
    if not depends_on_example(self) and not depends_on_example(element):
        return NotImplemented
    with mode:
        return bool((element == self).any())


def tap_equal(mode, input, other):
    """The handler of ``torch.equal``."""
    if input.dtype != other.dtype or not (depends_on_example(input) or depends_on_example(other)):
        return NotImplemented
    with mode:
        return input.shape == other.shape and bool((input == other).all())


HANDLERS: dict[Callable, Callable] = {
    Tensor.__bool__: tap_truth,
    Tensor.is_nonzero: tap_truth,
    torch.is_nonzero: tap_truth,
    Tensor.item: tap_item,
    Tensor.__contains__: tap_contains,
    torch.equal: tap_equal,
    Tensor.equal: tap_equal,
}
