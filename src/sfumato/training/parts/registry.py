"""All parts that a private run may have, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.training.parts.budgeted import Budgeted
from sfumato.training.parts.declared_facts import ClassShares, Drift
from sfumato.training.parts.kept_weights import KeptWeights
from sfumato.training.parts.part import EarlyFacts, Part, RunRequest
from sfumato.training.parts.public_examples import PublicNormalisation
from sfumato.training.parts.published import PublishedFigures

PARTS: tuple[type[Part], ...] = (*(ClassShares, Drift, PublicNormalisation), *(PublishedFigures, KeptWeights, Budgeted))
OPTIONS = tuple(name for kind in PARTS for name in kind.options)
"""The names of all their options."""


def check(early: EarlyFacts) -> None:
    """Refuse invalid options of all parts, before any data are read."""
    for kind in PARTS:
        kind.check(early)


def parts_of(request: RunRequest) -> tuple[Part, ...]:
    """The parts of a run."""
    return tuple(part for kind in PARTS if (part := kind.from_request(request)) is not None)


def recorded_options(record: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The options of a run's parts, from its record."""
    return {name: value for kind in PARTS for name, value in kind.recorded_options(record, path).items()}


def split(choices: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits choices into options of the parts and all others."""
    own = {name: value for name, value in choices.items() if name in OPTIONS}
    return own, {name: value for name, value in choices.items() if name not in own}
