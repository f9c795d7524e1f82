"""Figures of groups of test records, such as patients by sex or images by device, and which groups are too small."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from markupsafe import Markup

from sfumato.report.plots.drawing import render
from sfumato.report.sections.numbers import percent

Interval = tuple[float | None, float, float]
WIDEST = 0.2
"""The widest 95% interval of an accuracy that says anything: 10 points either way."""
MEANING = (
    "Each 95% interval misses the true value in one case of twenty. Where the intervals of two groups do not overlap, "
    "the groups differ by more than chance; where they overlap, these figures cannot tell."
)


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """The figures of one group. Each is (estimate, low, high) with the ends of its 95% interval; the estimate is None
    if it is unknown.

    Attributes:
        name: the name of the group.
        records: the number of its test records.
        accuracy: the share of correctly classified records, between 0 and 1.
        auc: the mean over classes of the area under the ROC curve of each class against all others, between 0 and 1.
        calibration_error: the expected calibration error, between 0 and 1.
    """

    name: str
    records: Interval
    accuracy: Interval
    auc: Interval
    calibration_error: Interval

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The figures that `dataclasses.asdict` gave, also as read from JSON."""
        values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in data.items()}
        return cls(**values)

    @property
    def says_something(self) -> bool:
        """Whether there are enough records to judge the group.

        >>> wide, unknown = (0.8, 0.6, 0.9), (None, 0.0, 1.0)
        >>> known = {"name": "a", "records": (9, 9, 9), "auc": unknown, "calibration_error": unknown}
        >>> GroupScore(accuracy=wide, **known).says_something, GroupScore(accuracy=unknown, **known).says_something
        (False, False)
        """
        value, low, high = self.accuracy
        return value is not None and high - low <= WIDEST

    @property
    def count(self) -> float:
        """The number of its records, at least 0."""
        return max(0.0, self.records[0] or 0.0)


def smallest_group(groups: Sequence[GroupScore]) -> str:
    """A sentence about the smallest group: whether it is too small to say anything; and the others that are."""
    first, *others = sorted(groups, key=lambda group: group.count)
    value, low, high = first.accuracy
    if first.says_something:
        width = f"the 95% interval of its accuracy is {100 * (high - low):.1f} points wide"
        text = f"The smallest group, “{first.name}”, is large enough to be judged: {width}."
    elif value is None:
        text = f"The smallest group, “{first.name}”, is too small to say anything: its accuracy is unknown."
    else:
        between = f"between {percent(low)} and {percent(high)}"
        text = f"The smallest group, “{first.name}”, is too small to say anything: its accuracy lies {between}."
    if few := [f"“{group.name}”" for group in others if not group.says_something]:
        text += f" Too small are also: {', '.join(few)}."
    return text


def groups_table(groups: Iterable[GroupScore], *, mean: str) -> Markup:
    """The figures of groups for a page; empty without groups.

    Args:
        mean: how the areas of classes were averaged, such as "weighted".
    """
    if not (found := list(groups)):
        return Markup("")
    values = {"groups": found, "smallest": smallest_group(found), "meaning": MEANING, "mean": mean}
    return Markup(render("groups.html.jinja", **values))
