"""Which of a drift's two groups each record is in, where a plan's participation drifts between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sfumato._checks import SfumatoError, shortened
from sfumato.privacy import DriftingPoisson, PrivacyPlan

if TYPE_CHECKING:
    from sfumato.data import Source


def second_group(source: Source, plan: PrivacyPlan) -> np.ndarray | None:
    """Whether each training record is in the drift's second group, bool (N,); None for a plan without a drift.

    **Guarantee.** A record's group is a function of its own group, or class, and of declared names: another record that
    is added, removed or changed moves none (unit: one record; adjacency: any).

    Errors: `SfumatoError` for a plan that names none, and for names that the source does not know.
    """
    rule = plan.participation
    if not isinstance(rule, DriftingPoisson):
        return None
    return of_names(source, rule.named)


def of_names(source: Source, names: Sequence[str]) -> np.ndarray:
    """Whether the own group of each training record has one of these names, bool (N,): its class, where the source has
    no column of groups."""
    groups, labels = source.train.groups, source.train.labels
    if not names:
        raise SfumatoError(
            "the drift's second group is not named, and no record is known to be in it",
            "give `drift_groups`, the names of its classes, or of its groups where the source has a column of them",
        )
    if groups is None:
        source.require_classes("a drift between classes")
    known = set(source.classes) if groups is None else set(np.unique(groups).tolist())
    if odd := sorted(set(names) - known):
        what = "class" if groups is None else "group"
        raise SfumatoError(
            f"`drift_groups` names {shortened(odd[0])}, which is no {what} of the source",
            f"name one of {shortened(', '.join(sorted(known)))}",
        )
    if groups is not None:
        return np.isin(groups, names)
    return np.isin(labels, [place for place, name in enumerate(source.classes) if name in names])


def counted_size(source: Source, names: Sequence[str]) -> int:
    """How many training records are in the second group, where N was not declared either.

    Errors: `SfumatoError` where N was declared, which a count beside it would undo, and where a group has no record.
    """
    if not ("examples" in source.read or source.published):
        raise SfumatoError(
            f"drift_size is left out, and the number of examples is declared, {source.examples}: counted, it would "
            "tell of the data what that was declared for",
            "declare `drift_size`, how many of them are of the groups that `drift_groups` names, or leave both out",
        )
    size = int(of_names(source, names).sum())
    if not 0 < size < source.examples:
        raise SfumatoError(
            f"`drift_groups` names {'all' if size else 'none'} of the training records",
            "a drift is between two groups: name the classes or groups of one of them",
        )
    return size


def facts_read(source: Source, plan: PrivacyPlan) -> tuple[str, ...]:
    """The sizes of a drift's groups, where N, which they make up, was read from the data."""
    drifts = isinstance(plan.participation, DriftingPoisson)
    return ("drift",) if drifts and "examples" in source.read else ()


def misdeclared(source: Source, plan: PrivacyPlan) -> str | None:
    """What to say, to the owner alone, of groups that are far from their declared sizes; None for others."""
    rule = plan.participation
    if not isinstance(rule, DriftingPoisson) or not rule.named:
        return None
    second = int(of_names(source, rule.named).sum())
    found = (len(source.train) - second, second)
    if all(0.8 * size <= planned <= 1.25 * size for planned, size in zip(rule.sizes, found, strict=True)):
        return None
    return (
        f"the drift's groups are declared to have {rule.sizes[0]} and {rule.sizes[1]} examples, and the data hold "
        f"{found[0]} and {found[1]}; the promise holds as stated, but steps are as much larger or smaller, and are "
        f"divided by {plan.expected_batch_size}"
    )
