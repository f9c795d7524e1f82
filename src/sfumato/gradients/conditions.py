"""Conditions: a model that asks about its example (``if mask.all():``), run on all examples at once.

Where all examples give one answer, that is the answer. Where they don't, the run is given up; those that say yes are
run from the beginning by themselves, and so are those that say no. So each example takes the branches that it would
take alone. A question is only answered in a run that is prepared for it, on copies and with a record of whatever the
model holds, since the model could write the answer down for the next example to meet (`isolation`).

Random numbers of the model's own are other ones in each run, and to run again because of an answer that hangs on them
would choose among them. So after the first of them no question is answered, and the examples go the slow path, one at a
time. Dropout follows the examples' keys, and is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from sfumato._devices import random_states
from sfumato.gradients.methods.lowered import hides_examples, values_of

Result = TypeVar("Result")


class DependsOnExample(Exception):  # noqa: N818
    """The model asks about its example in a run that is not prepared for it."""


class Disagreement(Exception):  # noqa: N818
    """The examples give different answers.

    Attributes:
        answers: (B,) of booleans, on the CPU.
    """

    def __init__(self, answers: Tensor):
        super().__init__("the examples give different answers to a condition")
        self.answers = answers


class Conditions:
    """The questions of one run, and a context around it, which raises what a question raised even if the model caught
    it.

    Args:
        answered: whether the run is prepared for questions.
        device: of the run.

    Attributes:
        met: whether there was one.
    """

    def __init__(self, *, answered: bool, device: torch.device):
        self.met = False
        self._answered, self._device = answered, device
        self._failure: Callable[[], Exception] | None = None
        self._random = self._random_state() if answered else []

    def __enter__(self) -> Conditions:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._failure is not None and (kind is None or issubclass(kind, Exception)):
            raise self._failure()

    def answer(self, tensor: Tensor) -> Any:
        """The truth of a tensor of one number, or NotImplemented where that is the library's to say."""
        found = values_of(tensor)
        if found is None or tensor.numel() != 1:
            return NotImplemented
        self.met = True
        if not self._answered:
            self._fail(DependsOnExample)
        if not all(map(torch.equal, self._random, self._random_state())):
            self._fail(partial(RuntimeError, "a condition after random numbers of the model's own"))
        values, axis = found
        answers = values.detach().movedim(axis, 0).reshape(-1).bool().cpu()
        true = int(answers.sum())
        if 0 < true < len(answers):
            self._fail(partial(Disagreement, answers))
        return true > 0

    def _fail(self, failure: Callable[[], Exception]) -> NoReturn:
        self._failure = failure
        raise failure()

    def _random_state(self) -> list[Tensor]:
        return random_states(self._device)


def agreeing(run: Callable[[Any], Result], examples: int) -> Iterator[tuple[Tensor, Result]]:
    """Runs of parts of a batch, in each of which all examples take the same branches.

    Args:
        run: of the examples at some places, which are an index of their tensors: a slice for all, (b,) int64 for some.
        examples: B.

    Yields:
        places (b,) and what the run returned; every example is in one part.
    """
    waiting: list[Tensor | slice] = [slice(None)]
    while waiting:
        rows = waiting.pop()
        places = torch.arange(examples)[rows]
        try:
            result = run(rows)
        except Disagreement as found:
            waiting += [places[~found.answers], places[found.answers]]
        else:
            yield places, result
            del result


def tap_truth(mode, self):
    """The handler of ``if tensor:``, ``not tensor``, ``tensor and ...`` and their like."""
    return mode.tape.conditions.answer(self)


def tap_item(mode, self):
    """The handler of ``Tensor.item`` of a boolean; any other number is no condition yet."""
    return mode.tape.conditions.answer(self) if self.dtype == torch.bool else NotImplemented


def tap_contains(mode, self, element):
    """The handler of ``element in tensor``."""
    if not hides_examples(self) and not hides_examples(element):
        return NotImplemented
    with mode:
        return bool((element == self).any())


def tap_equal(mode, input, other):
    """The handler of ``torch.equal``."""
    if input.dtype != other.dtype or not (hides_examples(input) or hides_examples(other)):
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
