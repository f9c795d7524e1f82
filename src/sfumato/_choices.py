"""Choices: the options of a user, each declared once, in the package that uses it.

A *part* is a frozen dataclass of related choices, such as `optim.Descent`, with their checks. Two kinds of classes are
made of parts: settled choices (`NestedChoices`: every field has a value, as in `settings.descent.momentum`), and
requested choices (`all_optional`: every field may be left out). On the command line, in recipes, in Python keywords and
in records, choices are flat: they have the names of the parts' fields.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass, replace
from typing import Any, Self, get_type_hints

from sfumato._checks import SfumatoError


def choice(
    default: Any = MISSING, metavar: str = "NUMBER", by_default: str = "by rule", *, given_as: str | None = None
) -> Any:
    """A field of a part. The string literal below the field is its help text.

    Args:
        default: the settled value if the choice is left out. Without a default, a value is required.
        metavar: the placeholder for its value on the command line.
        by_default: a description of the default value.
        given_as: the type of the requested value, if the part converts it.
    """
    known = {"metavar": metavar, "default": by_default, "given_as": given_as}
    return field(metadata=known) if default is MISSING else field(default=default, metadata=known)


def optional_choice(metavar: str = "NUMBER", by_default: str = "by rule") -> Any:
    """A field that may be left out, with its placeholder and a description of its default."""
    return choice(None, metavar, by_default)


def all_optional(kind: type, *, without: Iterable[str] = ()) -> Any:
    """The request class of a part: a dataclass with the same fields, all of them optional.

    Args:
        without: fields that cannot be requested here.
    """
    kept = [one for one in fields(kind) if one.name not in without]
    types = {one.name: one.metadata["given_as"] or one.type for one in kept}
    options = [(one.name, f"{types[one.name]} | None", field(default=None, metadata=one.metadata)) for one in kept]
    made = make_dataclass(kind.__name__, options, frozen=True, kw_only=True)
    made.__module__, made.__doc__ = kind.__module__, kind.__doc__  # where to look up types and help texts
    return made


@functools.cache
def parts_of(kind: type) -> dict[str, type]:
    """The fields that are parts, with their types; empty unless the class is a `NestedChoices`."""
    if not issubclass(kind, NestedChoices):
        return {}
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if is_dataclass(hints[one.name])}  # type: ignore[arg-type]


@functools.cache
def choices_of(kind: type) -> dict[str, Field[Any]]:
    """The choices of a dataclass by their flat names, including those of its parts."""
    choices: dict[str, Field[Any]] = {}
    for one in fields(kind):
        part = parts_of(kind).get(one.name)
        choices |= {one.name: one} if part is None else choices_of(part)
    return choices


class NestedChoices:
    """Base class of frozen dataclasses that consist of parts. Their choices can be given and read flat.

    The constructor, and therefore `dataclasses.replace`, accepts parts, choices by their flat names, or both. A flat
    choice overrides the value in its part.
    """

    def __init__(self, **given: Any):
        left, known = dict(given), choices_of(type(self))
        for name in left:
            if name not in known and name not in parts_of(type(self)):
                refuse_unknown(name, type(self))
        for one in fields(self):  # type: ignore[arg-type]
            inside, value = parts_of(type(self)).get(one.name), left.pop(one.name, one.default)
            if inside is not None:
                own = {name: left.pop(name) for name in choices_of(inside) if name in left}
                if value is MISSING:
                    require(inside, own, type(self))
                    value = inside(**own)
                else:
                    value = replace(value, **own)
            object.__setattr__(self, one.name, value)

    def flat(self) -> dict[str, Any]:
        """Every choice by its flat name."""
        homes = {name: place for place, inside in parts_of(type(self)).items() for name in choices_of(inside)}
        return {
            name: getattr(getattr(self, homes[name]) if name in homes else self, name)
            for name in choices_of(type(self))
        }

    def to_dict(self) -> dict[str, Any]:
        """All choices as plain data, for `from_dict`."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.flat().items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**recorded(cls, data))


def recorded(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The choices in a record. Refuses missing and unknown ones."""
    if odd := sorted(set(data) ^ set(choices_of(kind))):
        raise SfumatoError(
            f"the run's record of its {kind.__name__.lower()} has missing or unknown fields: {', '.join(odd)}",
            "restore settings.json from a copy, or start another run",
        )
    return dict(data)


def require(part: type, given: Mapping[str, Any], kind: type) -> None:
    """Refuse the choices for a part if one without a default is missing."""
    wanted = [one.name for one in fields(part) if one.default is MISSING and one.default_factory is MISSING]
    if missing := [name for name in wanted if name not in given]:
        raise SfumatoError(f"{', '.join(missing)} must be given for {kind.__name__}", "give it by its name")


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that was probably meant: one that begins so, or else a close one; None if there is none."""
    longer = [one for one in known if len(name) > 2 and one.startswith(name)]
    return next(iter([*longer, *difflib.get_close_matches(name, known, n=1)]), None)


def refuse_unknown(name: str, kind: type, *, others: Collection[str] = ()) -> None:
    """Refuse an unknown name, and suggest a similar one among the choices and the other allowed names."""
    near = nearest(name, [*choices_of(kind), *others])
    remedy = f"did you mean {near}" if near else f"give one of those that help({kind.__name__}) lists"
    raise SfumatoError(f"{name} is not a field of {kind.__name__}", remedy)
