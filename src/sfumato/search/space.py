"""The search space: the fields that a search may vary, and each run's change of the experiment."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato._choices import nearest
from sfumato._files import write_errors
from sfumato.experiment.experiment import Experiment

if TYPE_CHECKING:
    from pathlib import Path

    from sfumato.randomness import Dimension, Space

KEY = "search.key"
MOST_DRAWS = 20

# Zoom and unit decide how the shared data are read; groups and shares are properties of the data.
VARIED = tuple(
    one.name
    for one in fields(Experiment)
    if one.name not in ("zoom", "seed", "unit", "per_user", "per_step", "drift_groups", "drift_size")
    and one.name not in ("class_prevalence", "noise")
)


def check(space: Space, varied: Iterable[str]) -> None:
    """Refuse names that cannot be varied, and invalid rules."""
    known = sorted(varied)
    unknown = sorted(set(space) - set(known))
    if unknown or not space:
        problem = f"a search cannot vary {', '.join(unknown)}" if unknown else "nothing is varied"
        meant = [near for name in unknown if (near := nearest(name, known))]
        raise SfumatoError(problem, f"did you mean {', '.join(meant)}" if meant else f"vary {', '.join(known)}")
    from sfumato.randomness import Choice, LogUniform, Uniform

    for name, rule in space.items():
        if not isinstance(rule, (Choice, Uniform, LogUniform)):
            raise SfumatoError(f"the space of {name} is {rule!r}", "give a Choice, Uniform or LogUniform")


def grid(space: Space) -> list[dict[str, Any]]:
    """Every combination of the listed values."""
    values = [
        listed(name, rule, "of which there is no grid", "or give `candidates`").values for name, rule in space.items()
    ]
    return [dict(zip(space, combination, strict=True)) for combination in itertools.product(*values)]


def single_changes(space: Space) -> list[dict[str, Any]]:
    """The unchanged experiment, then each listed value as a single change."""
    changes: list[dict[str, Any]] = [{}]
    for name, rule in space.items():
        changes += [{name: value} for value in listed(name, rule, "", "to change them one at a time").values]
    return changes


def listed(name: str, rule: Dimension, without: str, instead: str) -> Any:
    """The rule, if it lists its values. Refuses a range."""
    from sfumato.randomness import Choice

    if not isinstance(rule, Choice):
        problem = ", ".join(filter(None, (f"{name} varies over a range", without)))
        raise SfumatoError(problem, f"list its values, {instead}")
    return rule


def plain(change: Mapping[str, Any]) -> dict[str, Any]:
    """A change as plain data."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in change.items()}


def line_of(change: Mapping[str, Any]) -> str:
    """A change as one line of text.

    >>> line_of({"learning_rate": 0.5, "schedule": "cosine"}), line_of({})
    ('learning rate 0.5, schedule cosine', 'no change')
    """
    named = (
        f"{name.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in change.items()
    )
    return ", ".join(named) or "no change"


def changes_of(
    space: Space, place: Path, candidates: int | None, seed: int | None, *, keep: bool
) -> list[dict[str, Any]]:
    """The settings of each run: the whole grid, or `candidates` draws, which are the same when a search is resumed."""
    if candidates is None:
        return grid(space)
    from sfumato.randomness import RunKey, draw_settings

    positive_integer("candidates", candidates)
    if seed is not None:
        key = RunKey.from_seed(seed, "search")
    elif (place / KEY).exists():
        key = RunKey.load(place / KEY)
    else:
        key = RunKey.fresh()
        if keep:
            with write_errors(place):
                place.mkdir(parents=True, exist_ok=True)
                key.save(place / KEY)
    changes: list[dict[str, Any]] = []
    for number in range(MOST_DRAWS * candidates):  # skip repeated settings, which would cost without a result
        change = draw_settings(number, space, key)
        if change not in changes:
            changes.append(change)
        if len(changes) == candidates:
            break
    return changes
