"""The heading of a run's report page, written by its owner, and the settings as they may be published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from sfumato._checks import SfumatoError
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory

LONGEST = 300
_OF = {"ema_form": "ema", "aggregate_from": "aggregate", "public_examples": "public_data"}
"""Settings that have no effect without another one."""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The heading of a run's page.

    Args:
        title: the title, on every version of the page.
        owner, contact, date, purpose, about_data: who is responsible for the data, how to reach them, a date, what the
            model is for, and what the data are. On the owner's page alone, unless they are published.
        published: the names of those lines that appear on every version of the page.
    """

    title: str | None = None
    owner: str | None = None
    contact: str | None = None
    date: str | None = None
    purpose: str | None = None
    about_data: str | None = None
    published: tuple[str, ...] = ()

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
        """The lines that were given, by name."""
        return {name: value for name, value in asdict(self).items() if name != "published" and value is not None}

    @property
    def private(self) -> dict[str, str]:
        """All lines but the title."""
        return {name: value for name, value in self.given.items() if name != "title"}

    @property
    def public(self) -> dict[str, str]:
        """The published lines."""
        return {name: value for name, value in self.private.items() if name in self.published}

    @classmethod
    def read(cls, run: RunDirectory) -> Self:
        """The heading that was written for this run so far."""
        data: Any = run.read_json(names.PAGE) if (run / names.PAGE).exists() else {}
        known = {field.name for field in fields(cls)}
        published = data.get("published", []) if isinstance(data, dict) else None
        if not isinstance(published, list) or set(data) - known or not known.issuperset(map(str, published)):
            raise SfumatoError(
                f"{run / names.PAGE} holds other fields than {', '.join(sorted(known))}", "remove that file"
            )
        lines = {name: value for name, value in data.items() if name != "published"}
        return cls(**lines, published=tuple(published))

    def add_to(self, run: RunDirectory) -> None:
        """Store the given lines for every page of this run. Other lines stay.

        **Guarantee.** A line appears on the public page only as it was when it was published: a line that is rewritten
        for the owner's page is no longer published.
        """
        if self.given:
            before = Heading.read(run)
            published = sorted({*self.published, *before.published} - ({*self.given} - {*self.published}))
            kept = replace(before, **self.given).given | ({"published": published} if published else {})
            run.write_json(names.PAGE, kept, private=True)


def publishable_settings(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a page that may be published, or for a remote tracker: without paths and seeds."""
    unread = {name for name, of in _OF.items() if not choices.get(of)}
    shown = {name: value for name, value in choices.items() if value not in (None, [], ()) and name not in unread}
    if shown.get("pretrained") not in (None, "timm"):
        shown["pretrained"] = "weights from a file"
    if "public_data" in shown:
        shown["public_data"] = "a public source"
    if "seed" in shown:
        shown["seed"] = "chosen by the user"
    return shown
