"""What the owner of a run writes over its page: a title, and for its own page who answers, when, for what; and its
settings as others may see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from sfumato._checks import SfumatoError
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory

LONGEST = 300
_OF = {"ema_form": "ema", "aggregate_from": "aggregate", "public_examples": "public_data"}
"""Settings that say nothing without another one."""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The head of a run's page.

    Args:
        title: stands on every version of the page.
        owner, contact, date, purpose, about_data: who answers for the data, how they are reached, a day, what the model
            is for, and what the data are: on the owner's page alone, unless they are published.
        published: those that stand on every version of the page.
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
        """What was written, by name."""
        return {name: value for name, value in asdict(self).items() if name != "published" and value is not None}

    @property
    def private(self) -> dict[str, str]:
        """What of it is for the owner's page, whatever else stands elsewhere too."""
        return {name: value for name, value in self.given.items() if name != "title"}

    @property
    def public(self) -> dict[str, str]:
        """What of it stands on every version of the page."""
        return {name: value for name, value in self.private.items() if name in self.published}

    @classmethod
    def read(cls, run: RunDirectory) -> Self:
        """What was written for this run so far."""
        data: Any = run.read_json(names.PAGE) if (run / names.PAGE).exists() else {}
        known = {field.name for field in fields(cls)}
        published = data.get("published", []) if isinstance(data, dict) else None
        if not isinstance(published, list) or set(data) - known or not known.issuperset(map(str, published)):
            raise SfumatoError(
                f"{run / names.PAGE} holds other things than {', '.join(sorted(known))}", "remove that file"
            )
        lines = {name: value for name, value in data.items() if name != "published"}
        return cls(**lines, published=tuple(published))

    def add_to(self, run: RunDirectory) -> None:
        """Remember it for every page of this run; what was not given stays as it was.

        **Guarantee.** A line stands on the public page only as it was when it was published: one that is written again
        for the owner's page is published no more.
        """
        if self.given:
            before = Heading.read(run)
            published = sorted({*self.published, *before.published} - ({*self.given} - {*self.published}))
            kept = replace(before, **self.given).given | ({"published": published} if published else {})
            run.write_json(names.PAGE, kept, private=True)


def presentable(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a page that may be published, or a tracker elsewhere: no path, no seed."""
    unread = {name for name, of in _OF.items() if not choices.get(of)}
    shown = {name: value for name, value in choices.items() if value not in (None, [], ()) and name not in unread}
    if shown.get("pretrained") not in (None, "timm"):
        shown["pretrained"] = "weights from a file"
    if "public_data" in shown:
        shown["public_data"] = "a public source"
    if "seed" in shown:
        shown["seed"] = "chosen by the user"
    return shown
