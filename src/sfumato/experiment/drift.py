"""The two groups of records between which a plan's participation drifts."""

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

    **Guarantee.** A record's side of the drift is a function of its own group or class and of declared names. Adding,
    removing or changing another record does not move it (unit: one record; adjacency: any).

    Errors: `SfumatoError` for a plan that names no groups, and for names that the source does not have.
    """
    rule = plan.participation
    if not isinstance(rule, DriftingPoisson):
        return None
    return group_mask(source, rule.named)


def group_mask(source: Source, names: Sequence[str]) -> np.ndarray:
    """Whether each training record's group, or its class if the source has no groups, is one of `names`: bool (N,)."""
    groups, labels = source.train.groups, source.train.labels
    if not names:
        raise SfumatoError(
            "the drift's second group has no name, so no record can be assigned to it",
            "give `drift_groups`: the names of its classes, or of its groups if the source has a column of groups",
        )
    if groups is None:
        source.require_classes("a drift between classes")
    available = set(source.classes) if groups is None else set(np.unique(groups).tolist())
    if odd := sorted(set(names) - available):
        kind = "class" if groups is None else "group"
        raise SfumatoError(
            f"`drift_groups` names {shortened(odd[0])}, which is not a {kind} of the source",
            f"name one of {shortened(', '.join(sorted(available)))}",
        )
    if groups is not None:
        return np.isin(groups, names)
    return np.isin(labels, [place for place, name in enumerate(source.classes) if name in names])


def counted_size(source: Source, names: Sequence[str]) -> int:
    """The number of training records in the second group, counted if N was counted too.

    Errors: `SfumatoError` if N was declared, since a count would reveal what the declaration hides, and if a group has
    no record.
    """
    if not ("examples" in source.read or source.published):
        raise SfumatoError(
            f"drift_size is missing, and the number of examples is declared as {source.examples}: counting the group "
            "would reveal what the declaration hides",
            "declare `drift_size`, the number of examples in the groups of `drift_groups`, or leave out both",
        )
    size = int(group_mask(source, names).sum())
    if not 0 < size < source.examples:
        raise SfumatoError(
            f"`drift_groups` names {'all' if size else 'none'} of the training records",
            "a drift is between two groups: name the classes or groups in one of them",
        )
    return size


def facts_read(source: Source, plan: PrivacyPlan) -> tuple[str, ...]:
    """`("drift",)` if the sizes of a drift's groups were read from the data, because N, their sum, was."""
    drifts = isinstance(plan.participation, DriftingPoisson)
    return ("drift",) if drifts and "examples" in source.read else ()


def size_note(source: Source, plan: PrivacyPlan) -> str | None:
    """A note, for the owner alone, on groups whose sizes are far from the declared ones; else None."""
    rule = plan.participation
    if not isinstance(rule, DriftingPoisson) or not rule.named:
        return None
    second = int(group_mask(source, rule.named).sum())
    counts = (len(source.train) - second, second)
    if all(0.8 * size <= planned <= 1.25 * size for planned, size in zip(rule.sizes, counts, strict=True)):
        return None
    return (
        f"the drift's groups are declared to have {rule.sizes[0]} and {rule.sizes[1]} examples, but the data hold "
        f"{counts[0]} and {counts[1]}; the guarantee holds as stated, but batches are larger or smaller by the same "
        f"factor, and their sums are still divided by {plan.expected_batch_size}"
    )
