"""What the owner of a run writes over its page: a title, and for its own page who answers, when, for what."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from sfumato._checks import SfumatoError
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory

LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The head of a run's page.

    Args:
        title: stands on every version of the page.
        owner, date, purpose: who answers for the data, a day, and what the model is for: on the owner's page alone.
    """

    title: str | None = None
    owner: str | None = None
    date: str | None = None
    purpose: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            if not (isinstance(value, str) and value.strip() and len(value) <= LONGEST and value.isprintable()):
                start = value if isinstance(value, str) and len(value) <= 40 else f"{str(value)[:40]}..."
                raise SfumatoError(
                    f"{name} must be one line of 1 to {LONGEST} characters, got {start!r}",
                    'give words such as "Ward 3, chest X-rays", or leave it out',
                )

    @property
    def given(self) -> dict[str, str]:
        """What was written, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def private(self) -> dict[str, str]:
        """What of it is for the owner's page alone."""
        return {name: value for name, value in self.given.items() if name != "title"}

    @classmethod
    def read(cls, run: RunDirectory) -> Self:
        """What was written for this run so far."""
        data: Any = run.read_json(names.PAGE) if (run / names.PAGE).exists() else {}
        known = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or set(data) - known:
            raise SfumatoError(
                f"{run / names.PAGE} holds other things than {', '.join(sorted(known))}", "remove that file"
            )
        return cls(**data)

    def add_to(self, run: RunDirectory) -> None:
        """Remember it for every page of this run; what was not given stays as it was."""
        if self.given:
            run.write_json(names.PAGE, replace(Heading.read(run), **self.given).given, private=True)
