"""Discovery: finds out on synthetic examples how to run a model, before any private example is used."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from sfumato._checks import SfumatoError
from sfumato._devices import fork_rng, used_accelerators
from sfumato.gradients.checks.synthetic import Examples, candidates
from sfumato.gradients.conditions import DependsOnExample, run_by_branch
from sfumato.gradients.examples import Tree, tree_map, tree_tensors
from sfumato.gradients.methods import sequential
from sfumato.gradients.methods.vectorised import Objective, RunPath, RunResult, run
from sfumato.gradients.sites.dropout import WORDS
from sfumato.gradients.walk import named_parameters


@contextmanager
def preserved_random_state():
    """Restores torch's and Python's global random states, so that a check does not change the draws of a run."""
    state = random.getstate()
    try:
        with fork_rng(*used_accelerators()):
            yield
    finally:
        random.setstate(state)


def run_expanding(objective: Objective, batch: Examples, path: RunPath, **options: Any) -> tuple[RunResult, RunPath]:
    """Runs a batch so that no gradient path is missed; returns the run and the extended path. Options as in `run`."""
    result, times = run(objective, *batch, path=path, **options), 0
    while result.missed:
        if (times := times + 1) > len(named_parameters(objective.model)):
            raise SfumatoError(
                "the model uses its parameters differently in every run, so no method of clipping fits it",
                "make its forward pass use the same parameters each time",
            )
        path = replace(path, expanded=path.expanded | result.missed)
        result = run(objective, *batch, path=path, **options)
    return result, path


@contextmanager
def own_errors(failing: str, model: nn.Module, inputs: Tree, targets: Tree) -> Iterator[None]:
    """Converts errors of the user's model or loss into one line with the types that they were given."""
    try:
        yield
    except SfumatoError:
        raise
    except Exception as error:
        given = {"inputs": tree_tensors(inputs), "targets": tree_tensors(targets), "parameters": model.parameters()}
        types = [f"{name} {', '.join(sorted({str(one.dtype)[6:] for one in given[name]}))}" for name in given]
        raise SfumatoError(
            f"{failing}: {first_line(error)}",
            f"make it run on a batch of one synthetic example of the same shape and types ({'; '.join(types)}), and "
            f"convert those that it does not take (inputs.to({next(model.parameters()).dtype}), targets.long()); if it "
            "accepts only certain values (not random ones, and not integers that are all 0 or all 1), give "
            "template=(inputs, targets) of synthetic examples",
        ) from error


def discover(objective: Objective, batch: Examples, template: Examples | None) -> RunPath:
    """Finds the path for a batch of this shape. Only structure, shapes and types of the batch's tensors are read.

    The fast path is tried first, on a few synthetic examples. If torch cannot vectorise the model, the slow path is
    tried, with a warning. If that fails too, other synthetic examples follow, and finally the model's own error is
    reported.
    """
    failure: Exception | None = None
    with preserved_random_state():
        for synthetic in candidates(batch, template):
            try:
                path = _path(objective, synthetic)
                break
            except SfumatoError:
                raise
            except Exception as error:
                failure = failure or error
        else:
            with own_errors("the model or loss fails on one example", objective.model, *batch):
                raise failure or AssertionError
    if not path.used:
        raise SfumatoError(
            "the loss does not depend on any trainable parameter of the model",
            "check the loss function, and that the forward pass is not detached or under torch.no_grad()",
        )
    return replace(path, synthetic=tree_map(lambda tensor: tensor[:1], synthetic))


def _path(objective: Objective, synthetic: Examples) -> RunPath:
    """Finds a path on these examples; raises the model's own error if there is none."""
    try:
        return _fast_path(objective, synthetic)
    except SfumatoError:
        raise
    except Exception as error:
        reason = first_line(error)
    used: set[str] = set()
    sequential.clipped_sum(objective, *synthetic, max_norm=1.0, used=used)
    warnings.warn(
        f"this model cannot be vectorised over examples, so it runs on one at a time, which is slow: {reason}",
        RuntimeWarning,
        stacklevel=5,
    )
    return RunPath(fast=False, used=frozenset(used))


def _fast_path(objective: Objective, synthetic: Examples) -> RunPath:
    path, examples = RunPath(fast=True), len(tree_tensors(synthetic)[0])
    keys = torch.zeros(examples, WORDS, dtype=torch.int64)

    def explore(rows: Any) -> None:
        nonlocal path
        part = tree_map(itemgetter(rows), synthetic)
        try:
            result, path = run_expanding(objective, part, path, keys=keys[rows], own_copies=True)
        except DependsOnExample:
            path = replace(path, conditional=True)
            return explore(rows)
        path = replace(path.extended_by(result), writes=path.writes or result.writes)
        return None

    for _ in run_by_branch(explore, examples):
        pass
    return path


def first_line(error: Exception) -> str:
    """The error's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
