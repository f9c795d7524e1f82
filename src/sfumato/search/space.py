"""The search space: the fields that a search may vary, and the text of a change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato._choices import nearest
from sfumato.experiment.clients import EmbeddingExperiment
from sfumato.experiment.experiment import Experiment

if TYPE_CHECKING:
    from sfumato.randomness import Space

# Zoom and unit decide how the shared data are read; groups and shares are properties of the data.
FIXED = (
    *("zoom", "seed", "unit", "per_user", "per_step", "drift_groups", "drift_size"),
    *("class_prevalence", "noise", "far"),
)


def varied(kind: type[Experiment | EmbeddingExperiment]) -> tuple[str, ...]:
    """The fields of an experiment that a search may vary."""
    return tuple(choice.name for choice in fields(kind) if choice.name not in FIXED)


VARIED = varied(Experiment)


def check(space: Space, names: Iterable[str]) -> None:
    """Refuse names that cannot be varied, and invalid rules."""
    names = sorted(names)
    unknown = sorted(set(space) - set(names))
    if unknown or not space:
        problem = f"a search cannot vary {', '.join(unknown)}" if unknown else "nothing is varied"
        meant = [near for name in unknown if (near := nearest(name, names))]
        raise SfumatoError(problem, f"did you mean {', '.join(meant)}" if meant else f"vary {', '.join(names)}")
    from sfumato.randomness import Choice, LogUniform, Uniform

    for name, rule in space.items():
        if not isinstance(rule, (Choice, Uniform, LogUniform)):
            raise SfumatoError(f"the space of {name} is {rule!r}", "give a Choice, Uniform or LogUniform")


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
