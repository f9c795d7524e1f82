"""Model specs: a name, and options after commas. A run records the spec, because it suffices to rebuild the model."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sfumato._checks import SfumatoError


def parse(spelling: str) -> tuple[str, dict[str, Any]]:
    """Splits a model spec into name and options. Values are Python numbers, True, False, None and tuples, or text.

    >>> parse("wrn-16-4"), parse("wrn-16-1,norm=none,standardise=False")
    (('wrn-16-4', {}), ('wrn-16-1', {'norm': 'none', 'standardise': False}))
    >>> parse("timm:dm_nfnet_f0,skipinit=1,depths=(1,2,6,3)")
    ('timm:dm_nfnet_f0', {'skipinit': 1, 'depths': (1, 2, 6, 3)})
    """
    name, *parts = re.split(r",(?![^(]*\))", spelling)  # not at the commas inside a tuple
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise SfumatoError(
                f"model {spelling!r}: {part!r} is not an option",
                "write options as in wrn-16-4,norm=none, without spaces",
            )
        if key in options:
            raise SfumatoError(f"model {spelling!r}: the option {key} is given twice", "give it once")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options[key] = value
    return name, options


def refuse_unknown(name: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuses options that a model does not take."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        remedy = f"it takes {', '.join(known)}" if known else "it takes none"
        raise SfumatoError(f"model {name!r} has no option {', '.join(unknown)}", remedy)
