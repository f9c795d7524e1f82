"""Discovery: how a model is to be run, found out on made-up examples before any private one is touched."""

from __future__ import annotations

import random
import warnings
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch

from sfumato._checks import SfumatoError
from sfumato._devices import all_begun, own_randomness
from sfumato.gradients.checks.synthetic import Examples, candidates
from sfumato.gradients.conditions import DependsOnExample, agreeing
from sfumato.gradients.examples import each, tensors
from sfumato.gradients.methods import sequential
from sfumato.gradients.methods.vectorised import Objective, Run, RunPath, run
from sfumato.gradients.sites.dropout import WORDS
from sfumato.gradients.walk import named_parameters


@contextmanager
def undisturbed_random():
    """Puts back torch's and Python's global random states, so that a question costs a run no draws."""
    state = random.getstate()
    try:
        with own_randomness(*all_begun()):
            yield
    finally:
        random.setstate(state)


def run_expanding(objective: Objective, batch: Examples, path: RunPath, **options: Any) -> tuple[Run, RunPath]:
    """A run in which no gradient path was missed, and the path with what had to be known for it; options of `run`."""
    found, times = run(objective, *batch, path=path, **options), 0
    while found.missed:
        if (times := times + 1) > len(named_parameters(objective.model)):
            raise SfumatoError(
                "the model uses its parameters in another way at every run, so no way to clip it was found",
                "make its forward pass use the same parameters each time",
            )
        path = replace(path, expanded=path.expanded | found.missed)
        found = run(objective, *batch, path=path, **options)
    return found, path


def discover(objective: Objective, batch: Examples, template: Examples | None) -> RunPath:
    """The path for a batch of this shape: only structure, shapes and types of its tensors are looked at.

    The fast path is tried first, on a few made-up examples; if torch cannot vectorise the model, the slow one, with a
    warning; if that fails too, other made-up examples, and at last the model's own error is reported.
    """
    failure: Exception | None = None
    with undisturbed_random():
        for synthetic in candidates(batch, template):
            try:
                path = _found(objective, synthetic)
                break
            except SfumatoError:
                raise
            except Exception as error:
                failure = failure or error
        else:
            raise SfumatoError(
                f"the model or loss fails on one example: {first_line(failure)}",  # type: ignore[arg-type]
                "make it run on a batch of one made-up example of the same shape; where it takes only certain values "
                "(not random ones, not whole numbers that are all 0 or all 1), give template=(inputs, targets) of "
                "made-up examples",
            ) from failure
    if not path.used:
        raise SfumatoError(
            "loss does not depend on any trainable parameter of the model",
            "check the loss function, and that the forward pass is not detached or under torch.no_grad()",
        )
    return replace(path, synthetic=each(lambda tensor: tensor[:1], synthetic))


def _found(objective: Objective, synthetic: Examples) -> RunPath:
    """The path that these examples can go; the model's own error if there is none."""
    try:
        return _fast(objective, synthetic)
    except SfumatoError:
        raise
    except Exception as error:
        reason = first_line(error)
    used: set[str] = set()
    sequential.clipped_sum(objective, *synthetic, max_norm=1.0, used=used)
    warnings.warn(
        f"this model cannot be vectorised over examples, so they run one at a time, slowly: {reason}",
        RuntimeWarning,
        stacklevel=5,
    )
    return RunPath(fast=False, used=frozenset(used))


def _fast(objective: Objective, synthetic: Examples) -> RunPath:
    path, examples = RunPath(fast=True), len(tensors(synthetic)[0])
    keys = torch.zeros(examples, WORDS, dtype=torch.int64)

    def explore(rows: Any) -> None:
        nonlocal path
        part = each(itemgetter(rows), synthetic)
        try:
            found, path = run_expanding(objective, part, path, keys=keys[rows], own_copies=True)
        except DependsOnExample:
            path = replace(path, conditional=True)
            return explore(rows)
        path = replace(path.having(found), writes=path.writes or found.writes)
        return None

    for _ in agreeing(explore, examples):
        pass
    return path


def first_line(error: Exception) -> str:
    """The error's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
